// Byte pair encoding of the SentencePiece kind: a piece starts as one token per character instead of one per byte.
// A character without a token becomes the tokens of its bytes (byte_fallback), else the unknown token.
#include "step1_layers/core/task_not_implemented.h"
#include "step2_model/tokenizer/bpe.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder {
namespace {

constexpr size_t kJoinBits = 1 << 18;  // 32 KiB: fits the first-level cache

size_t join_bit(uint32_t left, uint32_t right) {
  return ((left * 0x9e3779b97f4a7c15ull + right) * 0xd6e8feb86659fd93ull >> 32) & (kJoinBits - 1);
}

uint32_t last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while ((text[begin] & 0xc0) == 0x80) --begin;
  return utf8_decode(text.data() + begin).code_point;
}

}  // namespace

int32_t Bpe::token_of_character(std::string_view character) const {
  if (character.size() == 1) return byte_ids_[static_cast<uint8_t>(character[0])];
  return find_bytes(character).value_or(-1);
}

// >>> task 2.5.fallback: the tokens of characters: their own, those of their bytes, or the unknown one
bool Bpe::has_byte_tokens(std::string_view character) const {
  for (const char byte : character)
    if (fallback_ids_[static_cast<uint8_t>(byte)] < 0) return false;
  return true;
}

int64_t Bpe::character_tokens(std::string_view piece, int32_t* ids) const {
  int64_t count = 0;
  bool unknown = false;  // one that is not yet written
  for (size_t at = 0; at < piece.size();) {
    const auto length = static_cast<size_t>(utf8_decode(piece.data() + at).length);
    const std::string_view character = piece.substr(at, length);
    at += length;
    if (const int32_t id = token_of_character(character); id >= 0) {
      if (unknown) ids[count++] = unknown_id_;
      unknown = false;
      ids[count++] = id;
    } else if (has_byte_tokens(character)) {
      for (const char byte : character) ids[count++] = fallback_ids_[static_cast<uint8_t>(byte)];
    } else if (unknown_id_ >= 0) {
      if (unknown && !fuse_unknown_) ids[count++] = unknown_id_;
      unknown = true;
    }
  }
  if (unknown) ids[count++] = unknown_id_;
  return count;
}
// <<< task 2.5.fallback

// A text of this kind is often one piece. But where no merge has a left token that ends in the character before a
// border and a right token that begins with the one after it, nothing can ever be merged across: mostly before
// "▁". The parts between such borders are words, which repeat. That holds for the characters' own tokens; where
// merges take those of bytes or the unknown one, or where runs of unknown characters are one token, a piece is
// never cut.
void Bpe::find_cuts(const std::vector<std::pair<int32_t, int32_t>>& merges) {
  std::vector<bool> other(static_cast<size_t>(tokens_.size()));
  cuts_ = true;
  for (const int32_t id : fallback_ids_) {
    cuts_ = cuts_ && id >= 0;
    if (id >= 0) other[static_cast<size_t>(id)] = true;
  }
  character_joins_.resize(kJoinBits / 64);
  for (const auto& [left, right] : merges) {
    cuts_ = cuts_ && !other[static_cast<size_t>(left)] && !other[static_cast<size_t>(right)];
    const std::string_view before = tokens_.bytes(left), after = tokens_.bytes(right);
    if (before.empty() || after.empty()) continue;  // no character becomes such a token
    const size_t bit = join_bit(last_character(before), utf8_decode(after.data()).code_point);
    character_joins_[bit / 64] |= uint64_t{1} << bit % 64;
  }
}

size_t Bpe::next_cut(std::string_view piece, size_t begin) const {
  if (!cuts_) return piece.size();
  Utf8Char left = utf8_decode(piece.data() + begin);
  for (size_t at = begin + static_cast<size_t>(left.length); at < piece.size();) {
    const Utf8Char right = utf8_decode(piece.data() + at);
    const size_t bit = join_bit(left.code_point, right.code_point);
    if ((character_joins_[bit / 64] >> bit % 64 & 1) == 0) return at;
    at += static_cast<size_t>(right.length);
    left = right;
  }
  return piece.size();
}

}  // namespace ladder
