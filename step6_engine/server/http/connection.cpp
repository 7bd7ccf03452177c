#include "step6_engine/server/http/connection.h"

#include "step1_layers/core/error.h"
#include "step6_engine/server/http/errors.h"
#include "step6_engine/server/http/exchange_of_connection.h"

namespace ladder {

namespace {

// A buffer that one large request or answer made large does not stay so.
constexpr size_t kKeptBuffer = 16 * 1024;
// Of a second request that comes before the first one's answer has left: with that many no more are read.
constexpr size_t kMaxEarlyBytes = 64 * 1024;

void empty(std::string& buffer) {
  buffer.clear();
  if (buffer.capacity() > kKeptBuffer) buffer = std::string();
}

std::string_view without_empty_lines(std::string_view bytes) {
  while (!bytes.empty() && (bytes.front() == '\r' || bytes.front() == '\n')) bytes.remove_prefix(1);
  return bytes;
}

}  // namespace

Connection::Connection(ServerCore& core, IoThread& thread, std::unique_ptr<Transport> transport,
                       std::string peer)
    : core_(core), thread_(thread), transport_(std::move(transport)), peer_(std::move(peer)) {
  ++core_.num_connections;
}

Connection::~Connection() {
  --core_.num_connections;
}

void Connection::start() {
  thread_.add(shared_from_this());
  set_deadline(core_.options.header_timeout);
  transport_->open(shared_from_this());
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  phase_ = Phase::closed;
  const auto self = shared_from_this();
  no_deadline();
  transport_->close();
  if (counted_) {
    --core_.num_requests;
    counted_ = false;
    log_access();
  }
  answer_.reset();
  exchange_.reset();
  thread_.remove(self);
}

void Connection::on_deadline() {
  no_deadline();
  if (phase_ == Phase::head && reader_ && reader_->started())
    return refuse(408, "the headers took too long to arrive");
  if (phase_ == Phase::body) return refuse(408, "the body took too long to arrive");
  close();  // idle, or it does not read what it asked for
}

void Connection::on_open(ErrorCode code) {
  if (phase_ == Phase::closed) return;
  if (code) return close();
  phase_ = Phase::head;
  read_more();
}

void Connection::read_more() {
  if (reading_ || phase_ == Phase::closed) return;
  reading_ = true;
  transport_->read(shared_from_this());
}

void Connection::on_read(ErrorCode code, std::string_view bytes) {
  reading_ = false;
  switch (phase_) {
    case Phase::head:
    case Phase::body:
      if (code) return close();
      return take(bytes);
    case Phase::answering:
      if (code) return client_gone();
      if (all_made_) {
        early_ += bytes;
        if (early_.size() > kMaxEarlyBytes) return;  // what follows waits in the kernel
      } else if (!without_empty_lines(bytes).empty()) {
        keep_alive_ = false;
      }
      return read_more();
    case Phase::lingering:
      if (code) return close();
      return read_more();
    case Phase::opening:
    case Phase::closed:
      return;
  }
}

void Connection::take(std::string_view bytes) {
  if (!reader_) {
    bytes = without_empty_lines(bytes);
    if (bytes.empty()) return read_more();
    reader_ = std::make_unique<RequestReader>(core_.options.request);
    began_ = Clock::now();
    method_.clear();
    target_.clear();
    common_ = {};
    set_deadline(core_.options.header_timeout);
  }
  bytes.remove_prefix(reader_->feed(bytes));
  if (phase_ == Phase::head && reader_->has_head()) {
    HttpRequest& request = reader_->request();
    method_ = request.method;
    target_ = request.path;
    if (reader_->error_status() != 0) return refuse(reader_->error_status(), reader_->error());
    is_http_1_0_ = reader_->is_http_1_0();
    core_.cors.add_headers(request, common_);
    Decision decision = core_.gate.decide(request);
    if (decision.answer) {
      begin_answer();
      keep_alive_ = reader_->done() && reader_->keep_alive() && without_empty_lines(bytes).empty();
      const bool is_preflight = decision.answer->status < 300 && method_ == "OPTIONS";
      return send(is_preflight ? *decision.answer : with_common_headers(std::move(*decision.answer)));
    }
    route_ = decision.route;
    if (!reader_->done()) {
      phase_ = Phase::body;
      set_deadline(core_.options.body_timeout);
      if (bytes.empty() && reader_->expects_continue()) {
        next_ += "HTTP/1.1 100 Continue\r\n\r\n";
        write_more();
      }
      bytes.remove_prefix(reader_->feed(bytes));
    }
  }
  if (reader_->error_status() != 0) return refuse(reader_->error_status(), reader_->error());
  if (reader_->done()) return ask(bytes);
  read_more();
}

void Connection::begin_answer() {
  phase_ = Phase::answering;
  no_deadline();
  ++exchange_number_;
  counted_ = true;
  ++core_.num_requests;
  woken_ = began_stream_ = all_made_ = false;
  framing_ = BodyFraming::length;
  status_ = 0;
  num_sent_ = 0;
}

void Connection::ask(std::string_view rest) {
  begin_answer();
  keep_alive_ = reader_->keep_alive() && without_empty_lines(rest).empty();
  auto exchange = std::make_shared<Exchange>(std::move(reader_->request()), thread_.shared_from_this(),
                                             weak_from_this(), exchange_number_);
  reader_.reset();
  read_more();
  if (route_->runs_on == RunsOn::connection) {
    in_handler_ = true;
    run_handler(core_, *route_, exchange);
    in_handler_ = false;
    return pump();
  }
  const bool taken = core_.workers.post([&core = core_, route = route_, exchange] {
    if (!exchange->client_gone()) run_handler(core, *route, exchange);
  });
  if (taken) return;
  HttpResponse busy = error_response(503, "too many requests wait to be looked at: ask again later");
  busy.headers.emplace_back("Retry-After", "1");
  exchange->respond(std::move(busy));
}

// Without having read all of the request, so nothing can follow it.
void Connection::refuse(int status, std::string_view why) {
  begin_answer();
  keep_alive_ = false;
  send(with_common_headers(error_response(status, why)));
}

void Connection::write_more() {
  if (writing_ || next_.empty() || phase_ == Phase::closed) return;
  out_.swap(next_);
  out_sent_ = 0;
  writing_ = true;
  if (phase_ == Phase::answering) set_deadline(core_.options.write_timeout);
  transport_->write(shared_from_this(), out_);
}

void Connection::on_written(ErrorCode code, size_t num_bytes) {
  if (phase_ == Phase::closed) return;
  if (code) return close();
  out_sent_ += num_bytes;
  num_sent_ += static_cast<int64_t>(num_bytes);
  if (out_sent_ < out_.size()) {
    if (phase_ == Phase::answering) set_deadline(core_.options.write_timeout);
    return transport_->write(shared_from_this(), std::string_view(out_).substr(out_sent_));
  }
  writing_ = false;
  empty(out_);
  if (!next_.empty()) return write_more();
  if (phase_ == Phase::answering) all_written();
}

void Connection::end_answer() {
  --core_.num_requests;
  counted_ = false;
  log_access();
  exchange_.reset();
  reader_.reset();
  empty(piece_);
  empty(next_);
  if (!keep_alive_) return linger();
  phase_ = Phase::head;
  set_deadline(core_.options.idle_timeout);
  std::string early;
  early.swap(early_);
  if (!early.empty()) return take(early);
  read_more();
}

// Closing a socket that has unread bytes would take the answer from the client: so our side is closed, and what the
// client still sends is thrown away until it closes its own.
void Connection::linger() {
  phase_ = Phase::lingering;
  set_deadline(core_.options.linger_timeout);
  transport_->shut(shared_from_this());
  read_more();
}

void Connection::log_access() const {
  if (!core_.options.access_log) return;
  std::string request =
      fmt::format("{} {}", method_.empty() ? "-" : method_, target_.empty() ? "-" : target_);
  for (char& c : request)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f || c == '"') c = '?';
  const double milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - began_).count();
  core_.options.access_log(fmt::format("{} \"{}\" {} {} bytes {:.1f} ms{}", peer_, request, status_,
                                       num_sent_, milliseconds, phase_ == Phase::closed ? " (cut)" : ""));
}

}  // namespace ladder
