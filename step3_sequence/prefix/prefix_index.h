#pragma once
// Task 3.4: the seam between the block manager and whatever finds cached prefixes.
//
// An index knows which blocks hold the keys and values of which token prefix. It neither counts references
// nor decides what to evict: the block manager does, and tells the index when a block's content is gone.
// Only full blocks are indexed. The first implementation is HashPrefixIndex (chained block hashes, as vLLM);
// a radix tree (SGLang: Zheng et al., 2023, arXiv 2312.07104) fits behind the same functions.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "step3_sequence/prefix/block_hash.h"

namespace ladder {

// The tokens of a sequence: a prompt, which the completions of one request share, and an output of its own.
// One list of tokens is a view without output.
struct TokenView {
  TokenView(std::span<const int32_t> tokens) : prompt(tokens) {}
  TokenView(const std::vector<int32_t>& tokens) : prompt(tokens) {}
  TokenView(std::span<const int32_t> prompt_tokens, std::span<const int32_t> output_tokens)
      : prompt(prompt_tokens), output(output_tokens) {}

  int64_t size() const { return std::ssize(prompt) + std::ssize(output); }
  // Tokens [begin, begin + count). `scratch` is used where they lie on both sides of the prompt's end.
  std::span<const int32_t> subspan(int64_t begin, int64_t count, std::vector<int32_t>& scratch) const;

  std::span<const int32_t> prompt, output;
};

// What an index remembers about one sequence between calls, so that no block is hashed twice: not by one
// sequence, and not by the completions of one request, which share the names of their prompt's blocks. The
// sequence owns it, sets salt and adapter and, to share, prompt_hashes and num_prompt_tokens; the rest is the
// index's.
struct PrefixKey {
  int64_t num_indexed_blocks = 0;  // leading blocks of the sequence's table that are in the index
  uint64_t last_entry = 0;         // the entry of the last of them
  // Names, as far as they were needed: the root's and those of the full blocks among the first
  // num_prompt_tokens tokens, then those of the blocks that follow.
  std::shared_ptr<std::vector<BlockHash>> prompt_hashes;
  int64_t num_prompt_tokens = 0;
  std::vector<BlockHash> own_hashes;
  std::string salt;     // only equal salts share blocks
  std::string adapter;  // keys and values depend on the adapter too

  // The table was given up, or filled from elsewhere than a match.
  void forget_table() { num_indexed_blocks = 0, last_entry = 0; }
};

class PrefixIndex {
 public:
  virtual ~PrefixIndex() = default;

  // Replaces `block_ids` by the blocks of the longest indexed prefix of `tokens`, at most `max_blocks`, which is
  // not more than `tokens` has full blocks. The key counts these from now on (num_indexed_blocks, last_entry; 0
  // and 0 if none is found), whatever it counted before. It names the blocks that it finds, and at most one more.
  virtual void match(PrefixKey& key, const TokenView& tokens, int64_t max_blocks,
                     std::vector<int32_t>& block_ids) = 0;

  // The first `num_full_blocks` blocks of `block_table`, which are held, hold the prefix of `tokens`: indexes
  // those that are not in the index (the key counts the leading ones that are; a sibling may have indexed
  // further ones, which are not named again), and the key counts all of them. `num_full_blocks` is at least what
  // the key counts; a call takes time for the blocks beyond that only, however long the table is.
  // Content that other blocks hold already gets one more block: a table is never rewritten, and nothing is
  // freed.
  virtual void insert(PrefixKey& key, const TokenView& tokens, std::span<const int32_t> block_table,
                      int64_t num_full_blocks) = 0;

  // The block, which is in the index, is about to be overwritten: it is not found any more.
  virtual void erase(int32_t block_id) = 0;

  virtual bool contains(int32_t block_id) const = 0;
  virtual int64_t size() const = 0;  // indexed blocks
};

}  // namespace ladder
