#pragma once
// Task 8.5: the texts that a model is judged and calibrated by.
//
// A file that ends in .jsonl has one document per line, {"text": TEXT}, {"prompt": TEXT} or {"prompt_token_ids": [...]};
// any other file is one document. Documents are cut into windows one by one, or, joined, as one text with "\n\n" between
// them. A window begins at position 0 and knows nothing of the one before it: window and stride are equal (windows that
// overlap give lower perplexities). The begin token, where the tokenizer adds one, stands where a text begins, not in each window of it.
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "step2_model/tokenizer/tokenizer.h"

namespace ladder {

using TokenIds = std::vector<int32_t>;

// The documents' ids; at most max_documents (0: all). `tokenizer` may be nullptr where all lines are ids. Error naming file and
// line: nothing in it, bytes that are no UTF-8, a line of another kind, an id outside the vocabulary, `joined` with lines of ids.
std::vector<TokenIds> read_texts(const std::filesystem::path& path, const Tokenizer* tokenizer,
                                 int64_t vocab_size, bool joined, int64_t max_documents = 0);

struct TextWindow {
  TokenIds ids;  // 2 to `window` of them: the first has nothing before it, and is not predicted
  int64_t cluster =
      0;  // windows of one cluster depend on one another; standard errors are taken between clusters
};

// What is left of a document at its end is a window too, unless it is one token. A document is a cluster; where there is one
// document alone each window is.
std::vector<TextWindow> cut_windows(std::span<const TokenIds> documents, int64_t window);

}  // namespace ladder
