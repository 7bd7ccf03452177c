#pragma once
// Byte pair encoding (Sennrich et al. 2016, over bytes as in GPT-2): a piece of text becomes token ids.
//
// A piece starts as one token per byte. The vocabulary comes with a list of merges, most important first;
// again and again the pair of neighbours that stands earliest in the list (the leftmost of equal ones)
// becomes one token, until no pair is in the list.
//
//     l o w e r     merges: (l,o) (e,r) (lo,w)
//     lo w e r      rank 0
//     lo w er       rank 1
//     low er        rank 2; (low,er) is not in the list: done
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step2_model/json.h"
#include "step2_model/tokenizer/token_table.h"
#include "step2_model/tokenizer/word_cache.h"

namespace ladder {

class Bpe {
 public:
  // From the `model` object of tokenizer.json; `what` is how errors call it.
  static Bpe parse(const Json& model, std::string_view what);

  // Appends the ids of the pieces of `text` that end at `ends` (ascending). A byte without a token is left
  // out, as Hugging Face does. May be called from several threads.
  void encode(std::string_view text, std::span<const int64_t> ends, std::vector<int32_t>& ids) const;

  // The id of the token written so in the file ("Ġthe").
  std::optional<int32_t> find_written(std::string_view written) const;

  const TokenTable& tokens() const { return tokens_; }

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX >> 1;  // larger than any rank, and positive when signed

  struct PairSlot {
    int32_t left = -1, right = -1;
    uint32_t rank = kNoRank;
  };
  struct WordSlot {
    uint32_t tag = 0;
    int32_t id = -1;
  };
  struct Workspace;  // memory of the merges of long pieces

  void parse_vocabulary(const Json& vocabulary, std::string_view what);
  void parse_merges(const Json& merges, std::string_view what);
  void add_join(int32_t left_id, int32_t right_id);
  void build_tables(bool ignore_merges);

  uint32_t rank(int32_t left, int32_t right) const;
  std::optional<int32_t> find_bytes(std::string_view bytes) const;
  int32_t find_in(const std::vector<WordSlot>& table, uint64_t hash, std::string_view word) const;
  bool may_join(const char* border) const;
  int64_t encode_piece(std::string_view piece, const char* text_end, int32_t* ids,
                       Workspace& workspace) const;
  int64_t encode_word(const ShortWord& key, uint64_t hash, std::string_view word, const char* text_end,
                      int32_t* ids, Workspace& workspace) const;
  int64_t encode_parts(std::string_view piece, const char* text_end, int32_t* ids,
                       Workspace& workspace) const;
  int64_t merge(std::string_view piece, int32_t* ids, Workspace& workspace) const;
  // Merge the tokens ids[0, count) of one piece in place until no pair has a rank, and return how many are left.
  // rank(left, right) is kNoRank for a pair that is no merge, and merged_ids_[rank] the token that a merge
  // gives. ranks[i], given and used up, is the rank of the pair (i, i + 1). A short piece is scanned for each
  // merge; a long one takes time n log n: the workspace has memory for a list and a heap.
  int64_t merge_short(int32_t* ids, uint32_t* ranks, int64_t count) const;
  int64_t merge_long(int32_t* ids, int64_t count, Workspace& workspace) const;

  TokenTable tokens_;
  std::array<int32_t, 256> byte_ids_{};
  bool all_bytes_ = false;  // have a token
  std::map<std::string, int32_t, std::less<>>
      other_tokens_;  // written in characters outside the byte alphabet
  // Hash tables from bytes to ids: of all tokens; of those that merging their bytes gives; and, with
  // ignore_merges, of those that it does not give, which stand for a whole piece only.
  std::vector<WordSlot> all_tokens_, merged_words_, whole_pieces_;

  std::vector<PairSlot> pairs_;
  std::vector<uint64_t>
      pair_filter_;  // a bit per hash of a pair: most pairs are no merge, and this fits the cache
  std::vector<uint32_t> byte_pair_ranks_;  // [256 * 256], the ranks of the first round
  std::vector<int32_t> merged_ids_;        // by rank
  // Which three-byte characters some merge joins: bits by the hash of what meets at the border, and by the
  // two bytes at the border where a token shorter than a character can be involved.
  std::vector<uint64_t> joins_, short_joins_;
  std::unique_ptr<WordCache> cache_ = std::make_unique<WordCache>();
};

}  // namespace ladder
