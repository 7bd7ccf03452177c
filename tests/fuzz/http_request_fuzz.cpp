// Bytes as a client might send them, fed whole and in pieces: both give the same request, or none, within the limits.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "step6_engine/server/http/request_reader.h"

namespace {

constexpr ladder::RequestLimits kLimits = {
    .max_header_bytes = 2048, .max_headers = 20, .max_body_bytes = 4096};

struct Result {
  int status = 0;
  bool done = false;
  std::string text;  // of the request
  size_t taken = 0;
};

Result read(std::string_view bytes, size_t piece) {
  ladder::RequestReader reader(kLimits);
  Result result;
  for (size_t begin = 0; begin < bytes.size() && !reader.done() && reader.error_status() == 0;
       begin += piece) {
    const std::string_view part = bytes.substr(begin, piece);
    size_t taken = reader.feed(part);
    // A call ends with the head: what is left of the piece goes into the next one.
    if (reader.has_head() && !reader.done()) taken += reader.feed(part.substr(taken));
    if (taken > part.size()) std::abort();
    if (!reader.done() && reader.error_status() == 0 && taken != part.size()) std::abort();
    result.taken += taken;
  }
  result.status = reader.error_status();
  result.done = reader.done();
  if (!result.done) return result;
  const ladder::HttpRequest& request = reader.request();
  if (std::ssize(request.body) > kLimits.max_body_bytes ||
      std::ssize(request.headers) > kLimits.max_headers || request.method.empty() || request.path.empty())
    std::abort();
  result.text = request.method + " " + request.path + "?" + request.query;
  for (const auto& [name, value] : request.headers) {
    if ((name + value).find_first_of("\r\n") != std::string::npos) std::abort();
    result.text += "\n" + name + ":" + value;
  }
  result.text += "\n\n" + request.body;
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Result whole = read(bytes, std::max<size_t>(bytes.size(), 1));
  const Result parts = read(bytes, std::max<size_t>(data[0] % 64, 1));
  if (whole.done != parts.done || whole.text != parts.text) std::abort();
  if (whole.done && whole.taken != parts.taken) std::abort();
  // The parser refuses a head that comes in pieces when it has its end, and so later than one that it has seen at once.
  if (parts.status != 0 && whole.status == 0) std::abort();
  return 0;
}
