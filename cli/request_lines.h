#pragma once
// JSON lines in: the requests of `generate --prompts` and `score --input`, and the records of `tokenize`.
//
// One JSON object per line (step6_engine/request_json.h). A line may carry any sampling field; it overrides the
// command line's flag of that name for this line. Blank lines are skipped. Every error names the file and the
// line.
#include <cstdint>
#include <string>
#include <vector>

#include "step6_engine/request.h"

namespace ladder {

struct RequestLine {
  std::string where;  // "prompts.jsonl:3", for messages; "--prompt" for a request from a flag
  Request request;
};

// All lines of a file, "-" for standard input. Error: as parse_request_json; no request in it.
std::vector<RequestLine> read_request_lines(const std::string& file, const SamplingParams& defaults);

}  // namespace ladder
