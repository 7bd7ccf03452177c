#include "cli/bench/serve_sse.h"

#include <cstring>

namespace ladder {

namespace {

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  return text;
}

// What follows the first `"key":`, blanks skipped; a view without data where there is none.
std::string_view value_of(std::string_view json, std::string_view quoted_key) {
  while (true) {
    const void* found = memmem(json.data(), json.size(), quoted_key.data(), quoted_key.size());
    if (found == nullptr) return {};
    json.remove_prefix(static_cast<size_t>(static_cast<const char*>(found) - json.data()) +
                       quoted_key.size());
    const std::string_view rest = without_blanks(json);
    if (rest.starts_with(':')) return without_blanks(rest.substr(1));
  }
}

long long count_of(std::string_view json, std::string_view quoted_key) {
  const std::string_view digits = value_of(json, quoted_key);
  long long count = 0;
  size_t i = 0;
  for (; i < digits.size() && i < 18 && digits[i] >= '0' && digits[i] <= '9'; ++i)
    count = count * 10 + (digits[i] - '0');
  return i > 0 ? count : -1;
}

// The first delta of a chat may bring only whose turn it is.
bool only_a_role(std::string_view choices) {
  if (value_of(choices, "\"role\"").empty()) return false;
  const std::string_view content = value_of(choices, "\"content\"");
  return content.empty() || content.starts_with("\"\"") || content.starts_with("null");
}

}  // namespace

ChunkNews read_chunk(std::string_view data) {
  ChunkNews news;
  data = without_blanks(data);
  if (data == "[DONE]") {
    news.done = true;
    return news;
  }
  if (data.starts_with("{\"error\"")) {
    news.error = true;
    return news;
  }
  const std::string_view choices = value_of(data, "\"choices\"");
  if (choices.starts_with('[') && !without_blanks(choices.substr(1)).starts_with(']')) {
    news.token = !only_a_role(choices);
    const std::string_view reason = value_of(choices, "\"finish_reason\"");
    if (reason.starts_with('"')) news.finish_reason = reason.substr(1, reason.find('"', 1) - 1);
  }
  const std::string_view usage = value_of(data, "\"usage\"");
  if (usage.starts_with('{')) {
    news.usage = true;
    news.prompt_tokens = count_of(usage, "\"prompt_tokens\"");
    news.completion_tokens = count_of(usage, "\"completion_tokens\"");
    news.cached_tokens = count_of(usage, "\"cached_tokens\"");
  }
  return news;
}

}  // namespace ladder
