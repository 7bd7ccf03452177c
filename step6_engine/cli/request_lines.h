#pragma once
// JSON lines in: the requests of `generate --prompts` and `score --input`, and the records of `tokenize`.
//
//   {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}
//   {"prompt_token_ids": [1, 2, 3], "stop": ["\n"], "seed": 7}
//
// A line may carry any sampling field; it overrides the command line's flag of that name for this line. Blank
// lines are skipped. Every error names the file and the line.
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step6_engine/request.h"

namespace ladder {

struct RequestLine {
  std::string where;  // "prompts.jsonl:3", for messages; "--prompt" for a request from a flag
  Request request;
};

// The text of one line. Error, beginning with `where`: not a JSON object, neither or both of prompt and
// prompt_token_ids, an unknown field, a value of the wrong type, an empty prompt.
Request parse_request_line(std::string_view line, std::string_view where, const SamplingParams& defaults);

// All lines of a file, "-" for standard input. Error: as above; no request in it.
std::vector<RequestLine> read_request_lines(const std::string& file, const SamplingParams& defaults);

// "1,2,3". Error naming `flag`.
std::vector<int32_t> parse_token_ids(std::string_view text, std::string_view flag);

// Error naming `where` unless every id is in [0, vocab_size).
void check_token_ids(std::span<const int32_t> ids, int64_t vocab_size, std::string_view where);

}  // namespace ladder
