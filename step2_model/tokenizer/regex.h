#pragma once
// The general way to split a text by a pattern from tokenizer.json: PCRE2. Names of modules are matched with it too.
//
// Hugging Face runs these patterns with Oniguruma. What both engines read the same passes; \p{L}, \p{N} and
// \s are replaced by what Oniguruma's tables say they match; what the two read differently (\w, \b, \h,
// nested classes ...) is refused by name. Other properties (\p{Lu}, \p{M}) follow PCRE2's Unicode version.
// The pattern is not trusted: matching runs under limits on steps, depth and memory.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

class Regex {
 public:
  // Error, starting with `what`, where the pattern is malformed or uses what is not supported.
  Regex(std::string_view pattern, std::string_view what);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Appends `offset` + the end of each piece of `text`: the matches, and what lies between them. `text` is
  // valid UTF-8. Error where matching exceeds its limits. May be called from several threads.
  void split(std::string_view text, int64_t offset, std::vector<int64_t>& ends) const;

  // Whether a match begins where `text` begins (it need not reach its end). Error where finding out takes more than
  // `max_steps`. May be called from several threads.
  bool matches_beginning(std::string_view text, int64_t max_steps) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string what_;
};

// The pattern with Oniguruma's \p{L}, \p{N} and \s spelled out for PCRE2; Error for what differs between the
// two.
std::string translate_pattern(std::string_view pattern, std::string_view what);

}  // namespace ladder
