#pragma once
// How many tokens an answer took, as clients are billed and benchmarks count.
#include <cstdint>
#include <optional>
#include <string>

namespace ladder {

struct Usage {
  int64_t num_prompt_tokens = 0;
  int64_t num_completion_tokens = 0;
  std::optional<int64_t> num_cached_tokens;  // of the prompts'; none: not known yet
};

// {"prompt_tokens":..,"total_tokens":..,"completion_tokens":..,"prompt_tokens_details":{"cached_tokens":..}}
void append_usage(std::string& out, const Usage& usage);

}  // namespace ladder
