#include "step6_engine/server/http/request_reader.h"

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>
#include <optional>

#include "step1_layers/core/error.h"

namespace ladder {

namespace beast = boost::beast;
namespace http = boost::beast::http;

struct RequestReader::State {
  State(const RequestLimits& limits) : limits(limits) {}

  const RequestLimits limits;
  std::optional<http::request_parser<http::string_body>> parser{std::in_place};
  std::string rest;  // taken, but too little for the parser to go on with
  HttpRequest request;
  bool has_head = false, done = false, started = false;
  bool expects_continue = false, keep_alive = false, is_http_1_0 = false;
  int error_status = 0;
  std::string error;

  void refuse(int status, std::string why) {
    error_status = status;
    error = std::move(why);
    parser.reset();
    rest = {};
  }
  void refuse(const beast::error_code& code);
  void take_head();
};

void RequestReader::State::refuse(const beast::error_code& code) {
  if (code == http::error::header_limit)
    return refuse(431, fmt::format("the headers are longer than {} bytes, which is all they may be",
                                   limits.max_header_bytes));
  if (code == http::error::body_limit)
    return refuse(
        413, fmt::format("the body is longer than {} bytes, which is all it may be", limits.max_body_bytes));
  if (code == http::error::bad_version) return refuse(505, "expected HTTP/1.1 or HTTP/1.0");
  refuse(400, fmt::format("this is no HTTP request: {}", code.message()));
}

void RequestReader::State::take_head() {
  const auto& message = parser->get();
  has_head = true;
  is_http_1_0 = message.version() == 10;
  keep_alive = message.keep_alive();
  request.method = std::string(message.method_string());

  int64_t num_headers = 0, num_lengths = 0, num_encodings = 0, num_hosts = 0;
  for (const auto& field : message) {
    ++num_headers;
    if (field.name() == http::field::content_length &&  // Beast takes "5, 5" for 5
        field.value().find_first_not_of("0123456789") != field.value().npos)
      return refuse(400, "Content-Length: expected a number");
    num_lengths += field.name() == http::field::content_length;
    num_encodings += field.name() == http::field::transfer_encoding;
    num_hosts += field.name() == http::field::host;
  }
  if (num_headers > limits.max_headers)
    return refuse(431, fmt::format("{} headers, expected at most {}", num_headers, limits.max_headers));
  if (num_lengths > 1) return refuse(400, "expected one Content-Length");
  if (num_lengths > 0 && num_encodings > 0)
    return refuse(400, "expected Content-Length or Transfer-Encoding, not both");
  if (num_encodings > 0 && (is_http_1_0 || num_encodings > 1 ||
                            !beast::iequals(message[http::field::transfer_encoding], "chunked")))
    return refuse(400, "Transfer-Encoding: expected chunked, and HTTP/1.1");
  if (num_hosts > 1 || (num_hosts == 0 && !is_http_1_0)) return refuse(400, "expected one Host");
  if (message.count(http::field::expect) > 0 && !is_http_1_0) {
    if (!beast::iequals(message[http::field::expect], "100-continue"))
      return refuse(417, "Expect: expected 100-continue");
    expects_continue = num_encodings > 0 || parser->content_length_remaining().value_or(0) > 0;
  }

  std::string_view target(message.target().data(), message.target().size());
  if (const size_t scheme = target.find("://"); !target.starts_with('/') && scheme != target.npos) {
    const size_t path = target.find('/', scheme + 3);  // as sent to a proxy: http://host/path
    target = path == target.npos ? std::string_view("/") : target.substr(path);
  }
  if (!target.starts_with('/') && !(target == "*" && request.method == "OPTIONS"))
    return refuse(400, "the request's target must be a path");
  target = target.substr(0, target.find('#'));
  const size_t query = std::min(target.find('?'), target.size());
  request.path = std::string(target.substr(0, query));
  if (query < target.size()) request.query = std::string(target.substr(query + 1));
  request.headers.reserve(static_cast<size_t>(num_headers));
  for (const auto& field : message)
    request.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  if (const auto length = parser->content_length_remaining();
      length && *length > static_cast<uint64_t>(limits.max_body_bytes))
    refuse(http::make_error_code(http::error::body_limit));
}

RequestReader::RequestReader(const RequestLimits& limits) : state_(std::make_unique<State>(limits)) {
  state_->parser->header_limit(static_cast<uint32_t>(
      std::min<int64_t>(limits.max_header_bytes, std::numeric_limits<uint32_t>::max())));
  state_->parser->body_limit(static_cast<uint64_t>(limits.max_body_bytes));
}

RequestReader::~RequestReader() = default;

size_t RequestReader::feed(std::string_view bytes) {
  State& s = *state_;
  if (s.done || s.error_status != 0) return 0;
  size_t skipped = 0;  // empty lines before a request
  while (!s.started && skipped < bytes.size() && (bytes[skipped] == '\r' || bytes[skipped] == '\n'))
    ++skipped;
  bytes.remove_prefix(skipped);
  s.started |= !bytes.empty();

  // What was left of the last call comes first; the parser goes on where it stopped.
  const size_t num_rest = s.rest.size();
  std::string joined;
  if (num_rest > 0) {
    joined = std::move(s.rest);
    joined.append(bytes);
    s.rest = {};
  }
  const std::string_view input = num_rest > 0 ? std::string_view(joined) : bytes;
  size_t position = 0;
  const bool had_head = s.has_head;
  while (s.error_status == 0 && !s.parser->is_done() && !(s.has_head && !had_head)) {
    beast::error_code code;
    const size_t taken = s.parser->put({input.data() + position, input.size() - position}, code);
    position += taken;
    if (code == http::error::need_more) {
      if (taken == 0 || position == input.size()) break;
      continue;
    }
    if (code) {
      s.refuse(code);
    } else if (s.parser->is_header_done() && !s.has_head) {
      s.take_head();
    } else if (taken == 0) {
      break;
    }
  }
  if (s.error_status == 0 && s.parser->is_done()) {
    s.request.body = std::move(s.parser->get().body());
    s.parser.reset();
    s.done = true;
  }
  if (s.error_status != 0 || s.done || s.has_head != had_head)
    return skipped + (position >= num_rest ? position - num_rest : 0);
  s.rest = std::string(input.substr(position));
  if (std::ssize(s.rest) > s.limits.max_header_bytes)  // a line of a chunk that does not end
    s.refuse(had_head ? 400 : 431,
             had_head ? "the body's chunks are malformed"
                      : fmt::format("the headers are longer than {} bytes", s.limits.max_header_bytes));
  return skipped + bytes.size();
}

bool RequestReader::has_head() const {
  return state_->has_head;
}
bool RequestReader::done() const {
  return state_->done;
}
int RequestReader::error_status() const {
  return state_->error_status;
}
const std::string& RequestReader::error() const {
  return state_->error;
}
bool RequestReader::started() const {
  return state_->started;
}
bool RequestReader::expects_continue() const {
  return state_->expects_continue;
}
bool RequestReader::keep_alive() const {
  return state_->keep_alive;
}
bool RequestReader::is_http_1_0() const {
  return state_->is_http_1_0;
}
HttpRequest& RequestReader::request() {
  return state_->request;
}

}  // namespace ladder
