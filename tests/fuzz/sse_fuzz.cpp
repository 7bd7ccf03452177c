// Server-sent events as a server might send them, fed whole and in pieces: both give the same events, and whatever an
// event says, the client reads it. The first byte is the length of a piece.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/serve_sse.h"

namespace {

struct Result {
  std::vector<std::string> events;
  bool between_events = false;
};

Result read(std::string_view bytes, size_t piece) {
  ladder::SseReader reader;
  Result result;
  for (size_t begin = 0; begin < bytes.size(); begin += piece) {
    // A copy that ends with the call: no event may be a view of bytes that are gone.
    const std::string part(bytes.substr(begin, piece));
    reader.feed(part, [&](std::string_view event) {
      const ladder::ChunkNews news = ladder::read_chunk(event);
      if (news.finish_reason.size() > event.size()) std::abort();
      result.events.emplace_back(event);
    });
  }
  result.between_events = reader.between_events();
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Result whole = read(bytes, std::max<size_t>(bytes.size(), 1));
  const Result parts = read(bytes, std::max<size_t>(data[0] % 64, 1));
  if (whole.events != parts.events || whole.between_events != parts.between_events) std::abort();
  for (const std::string& event : whole.events)
    if (event.find('\r') == std::string::npos && bytes.find(event.substr(0, event.find('\n'))) == bytes.npos)
      std::abort();  // it was never sent
  return 0;
}
