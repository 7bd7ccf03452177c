#include "step6_engine/server/http/http_server.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <thread>

#include "step1_layers/core/error.h"
#include "step6_engine/server/http/connection.h"
#include "step6_engine/server/http/errors.h"
#include "step6_engine/server/http/listening_socket.h"

namespace ladder {

using asio::ip::tcp;

namespace {

IoThread::Clock::duration tick_of(const HttpServerOptions& options) {
  const auto shortest = std::min({options.idle_timeout, options.header_timeout, options.body_timeout,
                                  options.write_timeout, options.linger_timeout});
  return std::clamp<HttpServerOptions::Milliseconds>(shortest / 4, std::chrono::milliseconds(5),
                                                     std::chrono::milliseconds(250));
}

void check_options(const HttpServerOptions& options) {
  LADDER_CHECK(options.io_threads >= 1, "io_threads {}: expected at least 1", options.io_threads);
  LADDER_CHECK(options.ssl_certfile.empty() == options.ssl_keyfile.empty(),
               "--ssl-certfile and --ssl-keyfile: expected both or none");
}

// A machine that vanished says nothing: one whose stream is silent is asked after a minute whether it is still there, and
// given up half a minute later.
void watch_peer(tcp::socket& socket) {
  ErrorCode ignored;
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [&](int option, int value) {
    setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
  };
  set(TCP_KEEPIDLE, 60);
  set(TCP_KEEPINTVL, 10);
  set(TCP_KEEPCNT, 3);
}

}  // namespace

struct HttpServer::Impl {
  Impl(HttpServerOptions options, Router router) : core(std::move(options), std::move(router)) {}

  ServerCore core;
  std::vector<std::shared_ptr<IoThread>> threads;  // the first one listens
  std::unique_ptr<tcp::acceptor> acceptor;
  std::unique_ptr<asio::steady_timer> pause;  // after a failed accept
  std::shared_ptr<asio::ssl::context> tls;
  size_t next_thread = 0;
  uint16_t port = 0;

  void listen();
  void accept();
  void take(tcp::socket socket, const std::shared_ptr<IoThread>& thread);
};

void HttpServer::Impl::listen() {
  FileDescriptor opened;
  int number = core.options.listening_socket;
  if (number < 0) {
    opened = open_bound_socket(core.options);
    number = opened.number();
  }
  begin_to_listen(number);
  port = port_of(number);
  int family = AF_INET;
  socklen_t size = sizeof family;
  getsockopt(number, SOL_SOCKET, SO_DOMAIN, &family, &size);
  acceptor = std::make_unique<tcp::acceptor>(threads[0]->context());
  acceptor->assign(family == AF_INET6 ? tcp::v6() : tcp::v4(), fcntl(number, F_DUPFD_CLOEXEC, 0));
  pause = std::make_unique<asio::steady_timer>(threads[0]->context());
}

void HttpServer::Impl::accept() {
  const std::shared_ptr<IoThread>& thread = threads[next_thread++ % threads.size()];
  acceptor->async_accept(thread->context(), [this, &thread](ErrorCode code, tcp::socket socket) {
    if (!acceptor->is_open()) return;
    if (!code) {
      take(std::move(socket), thread);
    } else if (code !=
               asio::error::connection_aborted) {  // most likely no descriptor is left: there may be soon
      pause->expires_after(std::chrono::milliseconds(50));
      pause->async_wait([this](ErrorCode cancelled) {
        if (!cancelled && acceptor->is_open()) accept();
      });
      return;
    }
    accept();
  });
}

// On the first thread; from then on the socket is the given thread's.
void HttpServer::Impl::take(tcp::socket socket, const std::shared_ptr<IoThread>& thread) {
  ErrorCode ignored;
  if (core.num_connections >= core.options.max_connections) {
    std::string answer;
    HttpResponse full = error_response(503, "too many connections: ask again later");
    full.headers.emplace_back("Retry-After", "1");
    append_head(full, {.content_length = std::ssize(full.body), .keep_alive = false}, answer);
    answer += full.body;
    socket.non_blocking(true, ignored);
    if (!tls) socket.write_some(asio::buffer(answer), ignored);
    return;  // closes it
  }
  socket.set_option(tcp::no_delay(true), ignored);
  watch_peer(socket);
  const tcp::endpoint peer = socket.remote_endpoint(ignored);
  auto transport = tls ? make_tls_transport(std::move(socket), *tls)
                       : make_plain_transport(std::move(socket), thread->read_buffer());
  auto connection = std::make_shared<Connection>(
      core, *thread, std::move(transport),
      fmt::format("{}:{}", url_host(peer.address().to_string(ignored)), peer.port()));
  thread->post([connection] { connection->start(); });
}

HttpServer::HttpServer(HttpServerOptions options, Router router) {
  check_options(options);
  impl_ = std::make_unique<Impl>(std::move(options), std::move(router));
  const HttpServerOptions& checked = impl_->core.options;
  if (!checked.ssl_certfile.empty()) impl_->tls = make_tls_context(checked.ssl_certfile, checked.ssl_keyfile);
  for (int i = 0; i < checked.io_threads; ++i)
    impl_->threads.push_back(std::make_shared<IoThread>(
        tick_of(checked), [core = &impl_->core](const std::string& line) { core->log_error(line); }));
  impl_->listen();
  for (const auto& thread : impl_->threads) thread->start();
  impl_->threads[0]->post([impl = impl_.get()] { impl->accept(); });
}

HttpServer::~HttpServer() {
  stop();
}

uint16_t HttpServer::port() const {
  return impl_->port;
}

std::string HttpServer::address() const {
  return http_address(impl_->core.options, impl_->port);
}

void HttpServer::stop_accepting() {
  impl_->core.draining = true;
  impl_->threads[0]->post([impl = impl_.get()] {
    ErrorCode ignored;
    impl->acceptor->close(ignored);
    impl->pause->cancel();
  });
}

bool HttpServer::wait_until_idle(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (num_requests() > 0) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

void HttpServer::stop() {
  stop_accepting();
  impl_->core.workers.stop();
  for (const auto& thread : impl_->threads) thread->stop();
}

int64_t HttpServer::num_connections() const {
  return impl_->core.num_connections;
}

int64_t HttpServer::num_requests() const {
  return impl_->core.num_requests;
}

}  // namespace ladder
