#pragma once
// What stands before an answer's body on the wire, and around a piece of it.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "step6_engine/server/http/exchange.h"

namespace ladder {

enum class BodyFraming { length, chunked, until_close };

struct ResponseHead {
  BodyFraming framing = BodyFraming::length;
  int64_t content_length = 0;
  bool keep_alive = true;
};

// Appends status line, headers and the empty line. Bytes that would end a header are replaced by spaces.
void append_head(const HttpResponse& response, const ResponseHead& head, std::string& out);

// Appends `bytes`, not empty, as one chunk.
void append_chunk(std::string_view bytes, std::string& out);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace ladder
