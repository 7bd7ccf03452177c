#pragma once
// An OpenAI server without a model, which does what a test tells it: a thread for each connection.
#include <atomic>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/step6_engine/server/http_client.h"

namespace ladder::testing {

using Json = nlohmann::json;

class FakeBackend {
 public:
  // One connection, whose request has been read.
  class Connection {
   public:
    Connection(int descriptor, const std::atomic<bool>& ending) : fd_(descriptor), ending_(ending) {}
    ~Connection() { close(); }

    std::string head, body;
    std::string path() const {
      return head.substr(head.find(' ') + 1, head.find(" HTTP") - head.find(' ') - 1);
    }
    Json json() const { return Json::parse(body, nullptr, false); }

    bool send(std::string_view bytes) {
      while (!bytes.empty()) {
        const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes.remove_prefix(static_cast<size_t>(sent));
      }
      return true;
    }
    void answer(int status, std::string_view text, std::string_view headers = {},
                std::string_view type = "application/json") {
      send("HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: " + std::string(type) +
           "\r\nContent-Length: " + std::to_string(text.size()) + "\r\n" + std::string(headers) + "\r\n" +
           std::string(text));
    }
    void begin_stream() {
      send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
    }
    bool event(std::string_view data) {
      const std::string text = "data: " + std::string(data) + "\n\n";
      char size[32];
      std::snprintf(size, sizeof size, "%zx\r\n", text.size());
      return send(size + text + "\r\n");
    }
    void end_stream() { send("0\r\n\r\n"); }
    // Waits until the other side has gone (true), or this server ends.
    bool wait_for_close() {
      while (!ending_) {
        pollfd waited{fd_, POLLIN, 0};
        if (poll(&waited, 1, 10) > 0) {
          char byte = 0;
          if (recv(fd_, &byte, 1, 0) <= 0) return true;
        }
      }
      return false;
    }
    void close() {
      if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }
    bool receive() {
      while (true) {
        const size_t end = got_.find("\r\n\r\n");
        if (end != got_.npos) {
          head = got_.substr(0, end + 2);
          const size_t field = head.find("Content-Length: ");
          const size_t length = field == head.npos ? 0 : std::stoul(head.substr(field + 16));
          if (got_.size() >= end + 4 + length) {
            body = got_.substr(end + 4, length);
            return true;
          }
        }
        pollfd waited{fd_, POLLIN, 0};
        if (poll(&waited, 1, 10) == 0) {
          if (ending_) return false;
          continue;
        }
        char buffer[65536];
        const ssize_t size = recv(fd_, buffer, sizeof buffer, 0);
        if (size <= 0) return false;
        got_.append(buffer, static_cast<size_t>(size));
      }
    }

   private:
    int fd_;
    const std::atomic<bool>& ending_;
    std::string got_;
  };
  using Script = std::function<void(Connection&)>;

  explicit FakeBackend(Script script) : script_(std::move(script)) { listen(0); }
  ~FakeBackend() { stop(); }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  // Of its requests but health checks and metrics: how many came, and their bodies.
  int64_t num_requests() const {
    std::lock_guard lock(mutex_);
    return std::ssize(bodies_);
  }
  Json request(size_t index) const {
    std::lock_guard lock(mutex_);
    return index < bodies_.size() ? bodies_[index] : Json();
  }
  std::string head(size_t index) const {
    std::lock_guard lock(mutex_);
    return index < heads_.size() ? heads_[index] : std::string();
  }
  // Of the last health check that was answered.
  std::string check_head() const {
    std::lock_guard lock(mutex_);
    return check_head_;
  }

  std::atomic<int> health = 200;            // of GET /health; 0: it says nothing
  std::atomic<int> num_checks = 0;          // answered
  std::atomic<bool> hides_metrics = false;  // GET /metrics ends without an answer
  std::atomic<int> num_reports_asked = 0;   // GET /metrics
  std::atomic<int> num_abandoned = 0;       // for scripts: the client went away
  void set_metrics(std::string text) {
    std::lock_guard lock(mutex_);
    metrics_ = std::move(text);
  }
  void set_script(Script script) {
    std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }

  // As a process that dies: its connections break, and its port refuses.
  void stop() {
    if (!listener_thread_.joinable()) return;
    ending_ = true;
    listener_thread_.join();
    ::close(listener_);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // At the same port.
  void start_again() {
    ending_ = false;
    listen(port_);
  }

 private:
  void listen(uint16_t port) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(listener_, 64), 0);
    socklen_t size = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    listener_thread_ = std::thread([this] { accept(); });
  }
  void accept() {
    while (!ending_) {
      pollfd waited{listener_, POLLIN, 0};
      if (poll(&waited, 1, 10) <= 0) continue;
      const int descriptor = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (descriptor < 0) continue;
      threads_.emplace_back([this, descriptor] { serve(descriptor); });
    }
  }
  void serve(int descriptor) {
    Connection connection(descriptor, ending_);
    if (!connection.receive()) return;
    if (connection.path().ends_with("/health")) {
      if (health == 0) {
        connection.wait_for_close();
        return;
      }
      connection.answer(health, "{}");
      {
        std::lock_guard lock(mutex_);
        check_head_ = connection.head;
      }
      ++num_checks;
      return;
    }
    if (connection.path().ends_with("/metrics")) {
      ++num_reports_asked;
      if (hides_metrics) return;
      std::lock_guard lock(mutex_);
      return connection.answer(200, metrics_, {}, "text/plain");
    }
    Script script;
    {
      std::lock_guard lock(mutex_);
      bodies_.push_back(connection.json());
      heads_.push_back(connection.head);
      script = script_;
    }
    script(connection);
  }

  mutable std::mutex mutex_;
  Script script_;
  std::string metrics_;
  std::vector<Json> bodies_;
  std::vector<std::string> heads_;
  std::string check_head_;
  std::atomic<bool> ending_ = false;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::thread listener_thread_;
  std::vector<std::thread> threads_;
};

// A prefill server that has computed the prompt, as its `name` in the transfer tells.
inline FakeBackend::Script prefills(std::string name) {
  return [name](FakeBackend::Connection& connection) {
    const Json asked = connection.json();
    connection.answer(200, Json{{"choices", Json::array({{{"index", 0}, {"text", "FIRST"}}})},
                                {"kv_transfer_params",
                                 {{"do_remote_decode", true},
                                  {"remote_engine_id", name},
                                  {"remote_request_id", asked["kv_transfer_params"]["remote_request_id"]},
                                  {"remote_address", "tcp://127.0.0.1:1"}}}}
                               .dump());
  };
}

// A decode server that answers with `words`, as a stream or whole.
inline FakeBackend::Script decodes(std::vector<std::string> words) {
  return [words](FakeBackend::Connection& connection) {
    if (connection.json().value("stream", false)) {
      connection.begin_stream();
      for (const std::string& word : words) connection.event("{\"text\":\"" + word + "\"}");
      connection.event(R"({"choices":[],"kv_transfer_params":{"remote_address":"secret"}})");
      connection.event("[DONE]");
      return connection.end_stream();
    }
    std::string text;
    for (const std::string& word : words) text += word;
    connection.answer(200,
                      R"({"text": ")" + text + R"(", "kv_transfer_params": {"remote_address":"secret"}})");
  };
}

inline FakeBackend::Script says(int status, std::string headers = {}) {
  return [status, headers](FakeBackend::Connection& connection) {
    connection.answer(status, "{\"error\":{\"code\":" + std::to_string(status) + "}}", headers);
  };
}

inline FakeBackend::Script dies() {
  return [](FakeBackend::Connection& connection) { connection.close(); };
}

}  // namespace ladder::testing
