#include "step6_engine/server/http/response_head.h"

#include <fmt/format.h>

#include <ctime>

#include "step6_engine/server/http/errors.h"

namespace ladder {

namespace {

// "Sun, 06 Nov 1994 08:49:37 GMT", made once per second and thread.
std::string_view date() {
  thread_local std::time_t second = 0;
  thread_local std::string text;
  const std::time_t now = std::time(nullptr);
  if (now == second && !text.empty()) return text;
  second = now;
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm tm{};
  gmtime_r(&now, &tm);
  text = fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[tm.tm_wday], tm.tm_mday,
                     kMonths[tm.tm_mon], tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
  return text;
}

void append_value(std::string_view value, std::string& out) {
  for (const char c : value) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
}

void append_header(std::string_view name, std::string_view value, std::string& out) {
  append_value(name, out);
  out += ": ";
  append_value(value, out);
  out += "\r\n";
}

}  // namespace

void append_head(const HttpResponse& response, const ResponseHead& head, std::string& out) {
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\n", response.status,
                 status_phrase(response.status));
  append_header("Date", date(), out);
  append_header("Server", "ladder", out);
  if (!response.content_type.empty() && response.status != 204)
    append_header("Content-Type", response.content_type, out);
  if (head.framing == BodyFraming::chunked) {
    append_header("Transfer-Encoding", "chunked", out);
  } else if (head.framing == BodyFraming::length && response.status != 204) {
    append_header("Content-Length", std::to_string(head.content_length), out);
  }
  append_header("Connection", head.keep_alive ? "keep-alive" : "close", out);
  for (const auto& [name, value] : response.headers) append_header(name, value, out);
  out += "\r\n";
}

void append_chunk(std::string_view bytes, std::string& out) {
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", bytes.size());
  out += bytes;
  out += "\r\n";
}

}  // namespace ladder
