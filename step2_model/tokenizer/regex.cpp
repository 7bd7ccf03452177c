#include "step2_model/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder {
namespace {

constexpr int64_t kMaxPatternBytes = 1 << 16;
// Steps of one match: enough to give back a run of a megabyte character by character, several times over.
constexpr int64_t kMatchSteps = 1'000'000;
constexpr int64_t kMatchStepsPerByte = 16;
constexpr uint32_t kHeapKibibytes = 256 * 1024;
constexpr size_t kJitStackBytes = 8 << 20;

// Ranges of the inside of a bracket class, as PCRE2 writes them.
std::string class_ranges(uint8_t wanted, bool inverted = false) {
  std::string out;
  uint32_t from = 0;
  const auto put = [&out](uint32_t first, uint32_t last) {
    if (first <= last) out += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", first, last);
  };
  for (const UnicodeRange& range : unicode_ranges()) {
    if ((range.classes & wanted) != wanted) continue;
    if (inverted) {
      put(from, range.first - 1);
      from = range.last + 1;
    } else {
      put(range.first, range.last);
    }
  }
  if (inverted) {
    put(from, 0xd7ff);
    put(0xe000, 0x10ffff);
  }
  return out;
}

// The length of an interval such as {1,3} at the beginning of the text, or 0.
size_t interval_length(std::string_view text) {
  const size_t end = text.find_first_not_of("0123456789,", 1);
  const bool closed = text[0] == '{' && end != std::string_view::npos && end > 1 && text[end] == '}';
  return closed ? end + 1 : 0;
}

std::string error_message(int code) {
  PCRE2_UCHAR message[200] = {};
  pcre2_get_error_message(code, message, sizeof(message));
  return reinterpret_cast<const char*>(message);
}

using MatchData = std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)>;
using MatchContext = std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)>;

MatchContext limited_context(int64_t steps) {
  MatchContext context(pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const auto limit = static_cast<uint32_t>(std::min<int64_t>(steps, UINT32_MAX));
  pcre2_set_match_limit(context.get(), limit);
  pcre2_set_depth_limit(context.get(), limit);
  pcre2_set_heap_limit(context.get(), kHeapKibibytes);
  return context;
}

}  // namespace

std::string translate_pattern(std::string_view pattern, std::string_view what) {
  const std::string letters = "\\p{L}" + class_ranges(kLetter | kRecent);
  const std::string numbers = "\\p{N}" + class_ranges(kNumber | kRecent);
  const std::string spaces = class_ranges(kSpace);
  std::string out;
  bool in_class = false;
  const auto unsupported = [&](std::string_view construct) {
    fail("{}: the pattern uses \"{}\", which is not supported", what, construct);
  };
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    if (rest.starts_with("\\p{L}") || rest.starts_with("\\p{N}")) {
      const std::string& members = rest[3] == 'L' ? letters : numbers;
      out += in_class ? members : '[' + members + ']';
      i += 4;
    } else if (rest.starts_with("\\P{L}") || rest.starts_with("\\P{N}")) {
      if (in_class) unsupported(fmt::format("[{}]", rest.substr(0, 5)));
      out += "[^" + (rest[3] == 'L' ? letters : numbers) + ']';
      i += 4;
    } else if (rest.starts_with("\\s")) {
      out += in_class ? spaces : '[' + spaces + ']';
      ++i;
    } else if (rest.starts_with("\\S")) {
      const std::string others = class_ranges(kSpace, true);
      out += in_class ? others : '[' + others + ']';
      ++i;
    } else if (rest[0] == '\\') {
      LADDER_CHECK(rest.size() > 1, "{}: the pattern ends with a backslash", what);
      // What is left after these means the same in both: escapes of punctuation and control characters, \d,
      // properties, \A \z, numbered back references.
      if (std::string_view("wWbBhHvVRXCKGgkNQEuoOyYMcZ").find(rest[1]) != std::string_view::npos)
        unsupported(rest.substr(0, 2));
      const size_t brace = rest.size() > 2 && rest[2] == '{' ? rest.find('}') : std::string_view::npos;
      const bool has_braces = std::string_view("pPx").find(rest[1]) != std::string_view::npos;
      const size_t length = has_braces && brace != std::string_view::npos ? brace + 1 : 2;
      out += rest.substr(0, length);
      i += length - 1;
    } else if (in_class) {
      if (rest[0] == '[') unsupported("[ within a class");
      if (rest.starts_with("&&")) unsupported("&&");
      if (rest[0] == ']') in_class = false;
      out += rest[0];
    } else {
      if (rest.starts_with("(*")) unsupported("(*");
      if (rest.starts_with("{,")) unsupported("{,");
      if (const size_t interval = interval_length(rest); interval > 0 && interval < rest.size()) {
        // Possessive and lazy to PCRE2; to Oniguruma the repetition of a repetition.
        const char next = rest[interval];
        const bool one_number = rest.substr(0, interval).find(',') == std::string_view::npos;
        if (next == '+' || (next == '?' && one_number)) unsupported(rest.substr(0, interval + 1));
      }
      if (rest.starts_with("(?"))
        for (size_t k = 2;
             k < rest.size() && std::string_view("imxs-").find(rest[k]) != std::string_view::npos; ++k)
          if (rest[k] != 'i' && rest[k] != '-') unsupported(rest.substr(0, k + 1));
      if (rest[0] == '[') {
        in_class = true;
        out += '[';
        // A bracket that closes nothing yet is a member of the class.
        if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
        if (i + 1 < pattern.size() && pattern[i + 1] == ']') unsupported("[]");
        continue;
      }
      out += rest[0];
    }
  }
  return out;
}

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, std::string_view what) : code_(std::make_unique<Code>()), what_(what) {
  LADDER_CHECK(static_cast<int64_t>(pattern.size()) <= kMaxPatternBytes,
               "{}: a pattern of {} bytes, at most {}", what, pattern.size(), kMaxPatternBytes);
  LADDER_CHECK(pattern.find('\0') == std::string_view::npos, "{}: a zero byte in the pattern", what);
  const std::string translated = translate_pattern(pattern, what);
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_parens_nest_limit(context.get(), 100);
  int error = 0;
  PCRE2_SIZE position = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                              &position, context.get());
  if (code_->code == nullptr)
    fail("{}: the pattern is no regular expression: {}", what, error_message(error));
  code_->jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::matches_beginning(std::string_view text, int64_t max_steps) const {
  const MatchData data(pcre2_match_data_create_from_pattern(code_->code, nullptr), pcre2_match_data_free);
  const MatchContext context = limited_context(max_steps);
  // Anchored matching is not compiled: the interpreter does it, which counts every step.
  const int count = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                                PCRE2_ANCHORED, data.get(), context.get());
  if (count < 0 && count != PCRE2_ERROR_NOMATCH)
    fail("{}: matching {} failed: {}", what_, text.substr(0, 100), error_message(count));
  return count >= 0;
}

void Regex::split(std::string_view text, int64_t offset, std::vector<int64_t>& ends) const {
  if (text.empty()) return;
  const MatchData data(pcre2_match_data_create_from_pattern(code_->code, nullptr), pcre2_match_data_free);
  const MatchContext context =
      limited_context(kMatchSteps + kMatchStepsPerByte * static_cast<int64_t>(text.size()));
  std::unique_ptr<pcre2_jit_stack, void (*)(pcre2_jit_stack*)> stack(nullptr, pcre2_jit_stack_free);
  if (code_->jit) {
    stack.reset(pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr));
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  // Empty matches cut the text where they stand, except right after the match before: Oniguruma's iteration.
  size_t from = 0, piece = 0, last_match = std::string_view::npos;
  while (from <= text.size()) {
    // The text was checked once; without NO_UTF_CHECK every match would check it again.
    const int count = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) fail("{}: splitting a text by the pattern failed: {}", what_, error_message(count));
    const PCRE2_SIZE* match = pcre2_get_ovector_pointer(data.get());
    const size_t begin = match[0], end = match[1];
    if (begin == end && end == last_match) {
      if (from >= text.size()) break;
      from += static_cast<size_t>(utf8_decode(text.data() + from).length);
      continue;
    }
    for (const size_t cut : {begin, end}) {
      if (cut > piece) {
        ends.push_back(offset + static_cast<int64_t>(cut));
        piece = cut;
      }
    }
    from = last_match = end;
  }
  if (piece < text.size()) ends.push_back(offset + static_cast<int64_t>(text.size()));
}

}  // namespace ladder
