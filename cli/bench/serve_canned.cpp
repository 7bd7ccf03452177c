#include "cli/bench/serve_canned.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "step2_model/json.h"
#include "step6_engine/server/http/errors.h"
#include "step6_engine/server/http/http_server.h"

namespace ladder {

namespace {

constexpr std::string_view kModel = "canned";

// The steps of an engine that is not there: wakes all streams together, again and again.
class Ticker {
 public:
  explicit Ticker(double step_seconds) {
    if (step_seconds > 0.0) thread_ = std::thread([this, step_seconds] { run(step_seconds); });
  }
  ~Ticker() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  bool paces() const { return thread_.joinable(); }
  int64_t steps() const { return steps_.load(std::memory_order_acquire); }

  int64_t add(std::function<void()> wake) {
    std::lock_guard lock(mutex_);
    wakes_.emplace(++last_, std::move(wake));
    return last_;
  }
  void remove(int64_t number) {
    std::lock_guard lock(mutex_);
    wakes_.erase(number);
  }

 private:
  void run(double step_seconds) {
    const auto step = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(step_seconds));
    auto next = std::chrono::steady_clock::now() + step;
    std::unique_lock lock(mutex_);
    while (!changed_.wait_until(lock, next, [this] { return ending_; })) {
      steps_.fetch_add(1, std::memory_order_release);
      for (const auto& [number, wake] : wakes_) wake();
      next += step;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, std::function<void()>> wakes_;
  int64_t last_ = 0;
  bool ending_ = false;
  std::atomic<int64_t> steps_{0};
  std::thread thread_;
};

struct CannedRequest {
  bool chat = false;
  int64_t num_prompt_tokens = 0, num_tokens = 16;
};

class CannedAnswer final : public HttpAnswer {
 public:
  CannedAnswer(const CannedRequest& request, Ticker& ticker, std::function<void()> wake)
      : request_(request),
        ticker_(ticker),
        wake_(std::move(wake)),
        number_(ticker.add(wake_)),
        begin_(ticker.steps()),
        chunk_(fmt::format(
            R"(data: {{"id":"cmpl-0","object":"{}","created":0,"model":"{}","choices":[{{"index":0,{},)"
            R"("logprobs":null,"finish_reason":)",
            request.chat ? "chat.completion.chunk" : "text_completion", kModel,
            request.chat ? R"("delta":{"content":" word"})" : R"("text":" word")")) {}
  ~CannedAnswer() override { ticker_.remove(number_); }

  void advance(HttpExchange& exchange) override {
    if (!begun_) {
      exchange.begin({.status = 200, .content_type = "text/event-stream"});
      begun_ = true;
    }
    const int64_t due = ticker_.paces() ? std::min(ticker_.steps() - begin_, request_.num_tokens)
                                        : std::min(sent_ + 1, request_.num_tokens);
    while (sent_ < due) {
      exchange.write(chunk_);
      exchange.write(++sent_ == request_.num_tokens ? "\"length\"}]}\n\n" : "null}]}\n\n");
    }
    if (sent_ < request_.num_tokens) {
      if (!ticker_.paces()) wake_();
      return;
    }
    exchange.write(fmt::format(
        R"(data: {{"id":"cmpl-0","object":"{}","created":0,"model":"{}","choices":[],"usage":{{"prompt_tokens":{},)"
        R"("completion_tokens":{},"total_tokens":{}}}}})"
        "\n\ndata: [DONE]\n\n",
        request_.chat ? "chat.completion.chunk" : "text_completion", kModel, request_.num_prompt_tokens,
        request_.num_tokens, request_.num_prompt_tokens + request_.num_tokens));
    exchange.finish();
  }

 private:
  const CannedRequest request_;
  Ticker& ticker_;
  const std::function<void()> wake_;
  const int64_t number_, begin_;
  const std::string chunk_;
  int64_t sent_ = 0;
  bool begun_ = false;
};

void complete(const std::shared_ptr<HttpExchange>& exchange, bool chat, Ticker& ticker) {
  const Json body = Json::parse(exchange->request().body, nullptr, false);
  if (!body.is_object() || !body.value("stream", false))
    return exchange->respond(error_response(400, "the canned responder streams: \"stream\": true"));
  CannedRequest request;
  request.chat = chat;
  const auto prompt = body.find("prompt");
  if (prompt != body.end() && prompt->is_array())
    request.num_prompt_tokens = static_cast<int64_t>(prompt->size());
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    const auto field = body.find(name);
    if (field != body.end() && field->is_number_integer())
      request.num_tokens = std::clamp<int64_t>(field->get<int64_t>(), 1, int64_t{1} << 20);
  }
  exchange->hold(std::make_unique<CannedAnswer>(request, ticker, exchange->waker()));
}

}  // namespace

struct CannedServer::Impl {
  explicit Impl(const CannedOptions& options)
      : ticker(options.step_seconds),
        http({.host = options.host, .port = options.port, .io_threads = options.io_threads}, routes()) {}

  Router routes() {
    Router router;
    const auto add = [&](const char* method, const char* path, HttpHandler handler) {
      router.add({method, path, Access::anyone, RunsOn::connection, std::move(handler)});
    };
    add("GET", "/health", [](const auto& exchange) { exchange->respond({}); });
    add("GET", "/v1/models", [](const auto& exchange) {
      exchange->respond(
          {.body = fmt::format(R"({{"object":"list","data":[{{"id":"{}","object":"model","created":0,)"
                               R"("owned_by":"ladder","max_model_len":1048576}}]}})",
                               kModel)});
    });
    add("POST", "/v1/completions", [this](const auto& exchange) { complete(exchange, false, ticker); });
    add("POST", "/v1/chat/completions", [this](const auto& exchange) { complete(exchange, true, ticker); });
    return router;
  }

  Ticker ticker;  // outlives the answers
  HttpServer http;
};

CannedServer::CannedServer(const CannedOptions& options) : impl_(std::make_unique<Impl>(options)) {}
CannedServer::~CannedServer() = default;
std::string CannedServer::address() const {
  return impl_->http.address();
}

}  // namespace ladder
