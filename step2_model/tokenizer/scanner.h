#pragma once
// The three splitting patterns that nearly all byte-level BPE tokenizers use, written by hand.
//
// Splitting a text into words before BPE is a regular expression in tokenizer.json. Run by a regex engine it
// takes more time than BPE itself; the patterns of GPT-2, Qwen 2/2.5/3 and Llama 3 are few and simple, so
// each is one loop over the text here, several times as fast. Any other pattern goes the general way
// (regex.h); a test holds both ways to the same answer.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace ladder {

enum class KnownPattern { kGpt2, kQwen2, kLlama3 };

// The pattern's text as it stands in tokenizer.json (GPT-2's is what `ByteLevel` with use_regex means).
std::string_view known_pattern_text(KnownPattern pattern);

// The pattern with exactly this text, if it is one of the three.
std::optional<KnownPattern> find_known_pattern(std::string_view text);

// Appends `offset` + the end of each piece of `text` in turn; the pieces follow each other without a gap.
// `text` is valid UTF-8. Linear time.
void scan_pieces(KnownPattern pattern, std::string_view text, int64_t offset, std::vector<int64_t>& ends);

}  // namespace ladder
