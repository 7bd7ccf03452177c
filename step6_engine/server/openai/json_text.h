#pragma once
// JSON written straight into a buffer that is reused: what a streamed token costs is mostly this.
#include <string>
#include <string_view>

namespace ladder {

// Appends the text as a JSON string, quotes included. Bytes that are no UTF-8 are replaced by U+FFFD, so what is
// written is valid whatever comes. Equal to nlohmann's dump(-1, ' ', false, error_handler_t::replace).
void append_json_string(std::string& out, std::string_view text);
// The same without the quotes, for a text that is written in parts.
void append_json_escaped(std::string& out, std::string_view text);

// A log probability. -inf, which JSON has no number for, is -9999, as vLLM writes it.
void append_json_logprob(std::string& out, float logprob);

}  // namespace ladder
