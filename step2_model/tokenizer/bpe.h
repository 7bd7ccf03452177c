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
//
// A tokenizer of the SentencePiece kind (Kudo and Richardson 2018) starts with one token per character, and has
// tokens <0x00> to <0xFF> for the bytes of characters without a token (bpe_characters.cpp).
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "step2_model/json.h"
#include "step2_model/tokenizer/token_table.h"
#include "step2_model/tokenizer/word_cache.h"

namespace ladder {

// What a token's written form in the file is: bytes in an alphabet of characters (byte_alphabet.h), or text.
enum class TokenSpelling { kByteAlphabet, kText };

class Bpe {
 public:
  // From the `model` object of tokenizer.json; `what` is how errors call it.
  static Bpe parse(const Json& model, std::string_view what,
                   TokenSpelling spelling = TokenSpelling::kByteAlphabet);

  // Appends the ids of the pieces of `text` that end at `ends` (ascending). A byte without a token is left
  // out, as Hugging Face does; a character without one becomes its bytes' tokens, else the unknown token (one for
  // a run of such characters where fuse_unk says so), else is left out. May be called from several threads.
  void encode(std::string_view text, std::span<const int64_t> ends, std::vector<int32_t>& ids) const;

  // The id of the token written so in the file ("Ġthe").
  std::optional<int32_t> find_written(std::string_view written) const;

  // What a token stands for: bytes, or text as it is written in the file.
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

  // Of the spelling kText. The token of a character, or -1.
  int32_t token_of_character(std::string_view character) const;
  // Whether byte_fallback has a token for each of its bytes.
  bool has_byte_tokens(std::string_view character) const;
  // Writes the tokens with which a piece starts (at most as many as it has bytes) and returns their number: a
  // character's own token, else those of its bytes if there is one for each, else the unknown one. An unknown
  // token is written when the next character has its own token, when the next unknown one is not fused with it,
  // or at the end: the tokens of bytes overtake it, as in Hugging Face tokenizers.
  int64_t character_tokens(std::string_view piece, int32_t* ids) const;
  void find_cuts(const std::vector<std::pair<int32_t, int32_t>>& merges);
  // The first place after `begin` across which no merge can go; piece.size() where there is none.
  size_t next_cut(std::string_view piece, size_t begin) const;

  // Merge the tokens ids[0, count) of one piece in place until no pair has a rank, and return how many are left.
  // rank(left, right) is kNoRank for a pair that is no merge, and merged_ids_[rank] the token that a merge
  // gives. ranks[i], given and used up, is the rank of the pair (i, i + 1). A short piece is scanned for each
  // merge; a long one takes time n log n: the workspace has memory for a list and a heap.
  int64_t merge_short(int32_t* ids, uint32_t* ranks, int64_t count) const;
  int64_t merge_long(int32_t* ids, int64_t count, Workspace& workspace) const;

  TokenSpelling spelling_ = TokenSpelling::kByteAlphabet;
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

  std::array<int32_t, 256> fallback_ids_{};  // of <0x00> to <0xFF>; -1: there is none
  int32_t unknown_id_ = -1;
  bool fuse_unknown_ = false;
  bool cuts_ = false;                      // whether a piece may be cut where character_joins_ says so
  std::vector<uint64_t> character_joins_;  // which characters some merge joins: a bit per hash of two
  std::unique_ptr<WordCache> cache_ = std::make_unique<WordCache>();
};

}  // namespace ladder
