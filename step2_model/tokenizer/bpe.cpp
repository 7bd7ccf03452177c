#include "step2_model/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "step1_layers/core/error.h"
#include "step2_model/tokenizer/byte_alphabet.h"

namespace ladder {
namespace {

// Up to this many tokens a scan for the best pair is cheaper than keeping a heap.
constexpr int64_t kShortPiece = 64;

uint64_t hash_of(std::string_view bytes) {
  uint64_t hash = 0;
  while (bytes.size() > ShortWord::kMaxBytes) {
    const std::string_view part = bytes.substr(0, ShortWord::kMaxBytes);
    hash = (hash ^ ShortWord(part, part.data() + part.size()).hash()) * 0x9e3779b97f4a7c15ull;
    bytes.remove_prefix(ShortWord::kMaxBytes);
  }
  return hash ^ ShortWord(bytes, bytes.data() + bytes.size()).hash();
}

uint64_t hash_of_pair(int32_t left, int32_t right) {
  const uint64_t key =
      static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  const uint64_t h = key * 0x9e3779b97f4a7c15ull;
  return (h ^ h >> 32) * 0xd6e8feb86659fd93ull >> 20;
}

bool has_bit(const std::vector<uint64_t>& bits, uint64_t index) {
  index &= bits.size() * 64 - 1;
  return (bits[index / 64] >> index % 64 & 1) != 0;
}

void set_bit(std::vector<uint64_t>& bits, uint64_t index) {
  index &= bits.size() * 64 - 1;
  bits[index / 64] |= uint64_t{1} << index % 64;
}

// Which bit of pair_filter_ stands for a pair; pairs_ uses the lower bits of the same hash.
uint64_t filter_bit(uint64_t pair_hash) {
  return pair_hash >> 20;
}

// What `length` (1 to 3) bytes before and after the border between two characters are, as one number.
uint64_t border_hash(const char* border, int before, int after) {
  uint64_t key = static_cast<uint64_t>(before * 4 + after);
  for (int i = -before; i < after; ++i) key = key << 8 | static_cast<uint8_t>(border[i]);
  key *= 0x9e3779b97f4a7c15ull;
  return key >> 32;
}

uint64_t short_border(const char* border) {
  return static_cast<uint64_t>(static_cast<uint8_t>(border[-1])) << 8 | static_cast<uint8_t>(border[0]);
}

bool leads_three_bytes(char byte) {
  return (byte & 0xf0) == 0xe0;
}

// Slots of a hash table with linear probing that holds `count` entries and stays at most half full.
size_t slots_for(size_t count) {
  return std::bit_ceil(2 * count + 2);
}

}  // namespace

struct Bpe::Workspace {
  std::vector<int32_t> previous, next;
  std::vector<uint32_t> ranks;
  std::vector<uint64_t> heap;
};

std::optional<int32_t> Bpe::find_bytes(std::string_view bytes) const {
  const uint64_t hash = hash_of(bytes);
  for (size_t i = hash;; ++i) {
    const WordSlot& slot = all_tokens_[i & (all_tokens_.size() - 1)];
    if (slot.id < 0) return std::nullopt;
    if (slot.tag == static_cast<uint32_t>(hash >> 32) && tokens_.bytes(slot.id) == bytes) return slot.id;
  }
}

inline int32_t Bpe::find_in(const std::vector<WordSlot>& table, uint64_t hash, std::string_view word) const {
  for (size_t i = hash;; ++i) {
    const WordSlot& slot = table[i & (table.size() - 1)];
    if (slot.id < 0 || (slot.tag == static_cast<uint32_t>(hash >> 32) && tokens_.bytes(slot.id) == word))
      return slot.id;
  }
}

std::optional<int32_t> Bpe::find_written(std::string_view written) const {
  if (spelling_ == TokenSpelling::kText) return find_bytes(written);
  if (const auto bytes = bytes_of_written(written)) return find_bytes(*bytes);
  const auto other = other_tokens_.find(written);
  return other == other_tokens_.end() ? std::nullopt : std::optional(other->second);
}

inline uint32_t Bpe::rank(int32_t left, int32_t right) const {
  const uint64_t hash = hash_of_pair(left, right);
  if (!has_bit(pair_filter_, filter_bit(hash))) return kNoRank;
  for (size_t i = hash;; ++i) {
    const PairSlot& slot = pairs_[i & (pairs_.size() - 1)];
    if ((slot.left == left && slot.right == right) || slot.left < 0) return slot.rank;
  }
}

// >>> task 2.5.merge: merge the tokens of a piece, always the pair of the lowest rank, the leftmost of equal ones
int64_t Bpe::merge_short(int32_t* ids, uint32_t* ranks, int64_t count) const {
  while (count > 1) {
    int64_t best = 0;
    for (int64_t i = 1; i < count - 1; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == kNoRank) break;
    ids[best] = merged_ids_[ranks[best]];
    --count;
    for (int64_t i = best + 1; i < count; ++i) {
      ids[i] = ids[i + 1];
      ranks[i - 1] = ranks[i];
    }
    if (best + 1 < count) ranks[best] = rank(ids[best], ids[best + 1]);
    if (best > 0) ranks[best - 1] = rank(ids[best - 1], ids[best]);
  }
  return count;
}

// The same for many tokens: a linked list of them and a heap of candidate merges (rank << 32 | position),
// where an entry whose pair has changed since is left until it comes up, and is dropped then.
int64_t Bpe::merge_long(int32_t* ids, int64_t count, Workspace& workspace) const {
  auto& [previous, next, ranks, heap] = workspace;
  const auto size = static_cast<size_t>(count);
  previous.resize(size);
  next.resize(size);
  ranks.resize(size);
  heap.clear();
  for (size_t i = 0; i < size; ++i) {
    previous[i] = static_cast<int32_t>(i) - 1;
    next[i] = i + 1 < size ? static_cast<int32_t>(i) + 1 : -1;
    ranks[i] = i + 1 < size ? rank(ids[i], ids[i + 1]) : kNoRank;
    if (ranks[i] != kNoRank) heap.push_back(static_cast<uint64_t>(ranks[i]) << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update = [&](size_t at) {
    ranks[at] = next[at] < 0 ? kNoRank : rank(ids[at], ids[next[at]]);
    if (ranks[at] == kNoRank) return;
    heap.push_back(static_cast<uint64_t>(ranks[at]) << 32 | at);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const auto best_rank = static_cast<uint32_t>(heap.front() >> 32);
    const auto best = static_cast<size_t>(heap.front() & UINT32_MAX);
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    if (ranks[best] != best_rank) continue;
    const auto absorbed = static_cast<size_t>(next[best]);
    ids[best] = merged_ids_[best_rank];
    ranks[absorbed] = kNoRank;
    next[best] = next[absorbed];
    if (next[best] >= 0) previous[static_cast<size_t>(next[best])] = static_cast<int32_t>(best);
    update(best);
    if (previous[best] >= 0) update(static_cast<size_t>(previous[best]));
  }
  int64_t kept = 0;
  for (int64_t i = 0; i >= 0; i = next[static_cast<size_t>(i)]) ids[kept++] = ids[i];
  return kept;
}
// <<< task 2.5.merge

// Writes the ids of one piece (at most as many as it has bytes) and returns their number.
int64_t Bpe::merge(std::string_view piece, int32_t* ids, Workspace& workspace) const {
  const auto size = static_cast<int64_t>(piece.size());
  const auto byte = [piece](int64_t i) { return static_cast<uint8_t>(piece[static_cast<size_t>(i)]); };
  int64_t count = 0;
  if (spelling_ == TokenSpelling::kText) {
    count = character_tokens(piece, ids);
  } else {
    for (int64_t i = 0; i < size; ++i)
      if (byte_ids_[byte(i)] >= 0) ids[count++] = byte_ids_[byte(i)];
  }
  if (count == 0) return 0;
  if (count > kShortPiece) return merge_long(ids, count, workspace);
  uint32_t ranks[kShortPiece];
  if (all_bytes_) {
    for (int64_t i = 0; i + 1 < count; ++i) ranks[i] = byte_pair_ranks_[byte(i) * 256u + byte(i + 1)];
  } else {
    for (int64_t i = 0; i + 1 < count; ++i) ranks[i] = rank(ids[i], ids[i + 1]);
  }
  return merge_short(ids, ranks, count);
}

// Chinese or Thai has no spaces, so a piece can be a whole sentence that no cache has seen. But where no
// merge has a left token that ends like the text before a border and a right token that begins like the text
// after it, nothing can ever be merged across, and the two sides are merged each by itself: short parts,
// which do repeat.
bool Bpe::may_join(const char* border) const {
  if (has_bit(joins_, border_hash(border, 3, 3))) return true;
  if (!has_bit(short_joins_, short_border(border))) return false;
  for (int before = 1; before <= 3; ++before)
    for (int after = 1; after <= 3; ++after)
      if (has_bit(joins_, border_hash(border, before, after))) return true;
  return false;
}

int64_t Bpe::encode_parts(std::string_view piece, const char* text_end, int32_t* ids,
                          Workspace& workspace) const {
  int64_t count = 0;
  size_t begin = 0;
  const auto finish = [&](size_t end) {
    const std::string_view part = piece.substr(begin, end - begin);
    begin = end;
    if (part.size() > ShortWord::kMaxBytes || part.size() == piece.size()) {
      count += merge(part, ids + count, workspace);
    } else {
      const ShortWord key(part, text_end);
      count += encode_word(key, key.hash(), part, text_end, ids + count, workspace);
    }
  };
  // Where bytes are left out, what meets is not what stands in the text.
  for (size_t at = 3; all_bytes_ && at + 3 <= piece.size(); ++at)
    if (leads_three_bytes(piece[at]) && leads_three_bytes(piece[at - 3]) && !may_join(piece.data() + at))
      finish(at);
  if (spelling_ == TokenSpelling::kText)
    for (size_t cut = next_cut(piece, 0); cut < piece.size(); cut = next_cut(piece, cut)) finish(cut);
  finish(piece.size());
  return count;
}

int64_t Bpe::encode_word(const ShortWord& key, uint64_t hash, std::string_view word, const char* text_end,
                         int32_t* ids, Workspace& workspace) const {
  if (const int cached = cache_->find(key, hash, ids)) return cached;
  *ids = find_in(merged_words_, hash, word);
  const int64_t count = *ids >= 0 ? 1 : encode_parts(word, text_end, ids, workspace);
  if (count > 0 && count <= WordCache::kMaxIds) cache_->insert(key, hash, ids, static_cast<int>(count));
  return count;
}

int64_t Bpe::encode_piece(std::string_view piece, const char* text_end, int32_t* ids,
                          Workspace& workspace) const {
  if (piece.size() <= ShortWord::kMaxBytes) {
    const ShortWord key(piece, text_end);
    const uint64_t hash = key.hash();
    if (!whole_pieces_.empty() && (*ids = find_in(whole_pieces_, hash, piece)) >= 0) return 1;
    return encode_word(key, hash, piece, text_end, ids, workspace);
  }
  const uint64_t hash = hash_of(piece);
  if (!whole_pieces_.empty() && (*ids = find_in(whole_pieces_, hash, piece)) >= 0) return 1;
  if ((*ids = find_in(merged_words_, hash, piece)) >= 0) return 1;
  return encode_parts(piece, text_end, ids, workspace);
}

void Bpe::encode(std::string_view text, std::span<const int64_t> ends, std::vector<int32_t>& ids) const {
  Workspace workspace;
  size_t used = ids.size();
  int64_t begin = 0;
  for (const int64_t end : ends) {
    const std::string_view piece = text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    begin = end;
    // A piece has at most as many tokens as bytes; the cache writes its kMaxIds places whatever their number.
    if (ids.size() < used + piece.size() + WordCache::kMaxIds)
      ids.resize(ids.size() + ids.size() / 2 + piece.size() + 64);
    used += static_cast<size_t>(encode_piece(piece, text.data() + text.size(), ids.data() + used, workspace));
  }
  ids.resize(used);
}

Bpe Bpe::parse(const Json& model, std::string_view what, TokenSpelling spelling) {
  const auto field = [what](std::string_view name) { return fmt::format("{}.{}", what, name); };
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* value = json_find(model, name, what);
    LADDER_CHECK(value == nullptr || json_string(*value, field(name)).empty(),
                 "{}.{}: not supported, found {}", what, name, json_brief(*value));
  }
  const auto flag = [&](const char* name) {
    const Json* value = json_find(model, name, what);
    return value != nullptr && json_bool(*value, field(name));
  };
  const Json* dropout = json_find(model, "dropout", what);
  LADDER_CHECK(dropout == nullptr || json_number(*dropout, field("dropout")) == 0,
               "{}.dropout: not supported, found {}", what, json_brief(*dropout));

  Bpe bpe;
  bpe.spelling_ = spelling;
  bpe.parse_vocabulary(json_at(model, "vocab", what), field("vocab"));
  const Json* unknown = json_find(model, "unk_token", what);
  if (spelling == TokenSpelling::kText) {
    bpe.fuse_unknown_ = flag("fuse_unk");
    for (int byte = 0; byte < 256; ++byte)
      bpe.fallback_ids_[static_cast<size_t>(byte)] =
          flag("byte_fallback") ? bpe.find_bytes(fmt::format("<0x{:02X}>", byte)).value_or(-1) : -1;
    if (unknown != nullptr) {
      const auto id = bpe.find_bytes(json_string(*unknown, field("unk_token")));
      LADDER_CHECK(id.has_value(), "{}.unk_token: {} is no token of the vocabulary", what,
                   json_brief(*unknown));
      bpe.unknown_id_ = *id;
    }
  } else {
    LADDER_CHECK(!flag("byte_fallback"), "{}.byte_fallback: true is not supported with ByteLevel", what);
    // With a token for every byte nothing is ever unknown, and the field means nothing.
    bpe.all_bytes_ = std::find(bpe.byte_ids_.begin(), bpe.byte_ids_.end(), -1) == bpe.byte_ids_.end();
    LADDER_CHECK(unknown == nullptr || bpe.all_bytes_,
                 "{}.unk_token: not supported where a byte has no token, found {}", what,
                 json_brief(*unknown));
  }
  bpe.parse_merges(json_at(model, "merges", what), field("merges"));
  bpe.build_tables(flag("ignore_merges"));
  return bpe;
}

void Bpe::parse_vocabulary(const Json& vocabulary, std::string_view what) {
  LADDER_CHECK(vocabulary.is_object(), "{}: expected an object of tokens and ids, found {}", what,
               json_brief(vocabulary));
  all_tokens_.resize(slots_for(vocabulary.size()));
  for (const auto& [written, value] : vocabulary.items()) {
    const int64_t id =
        json_int(value, fmt::format("{}[{}]", what, json_brief(written)), 0, TokenTable::kMaxTokens - 1);
    LADDER_CHECK(!tokens_.has(id), "{}: two tokens have the id {}, one of them is {}", what, id,
                 json_brief(written));
    if (const auto bytes =
            spelling_ == TokenSpelling::kText ? std::optional(written) : bytes_of_written(written)) {
      tokens_.set(static_cast<int32_t>(id), *bytes);
      const uint64_t hash = hash_of(*bytes);
      size_t slot = hash & (all_tokens_.size() - 1);
      while (all_tokens_[slot].id >= 0) slot = (slot + 1) & (all_tokens_.size() - 1);
      all_tokens_[slot] = {static_cast<uint32_t>(hash >> 32), static_cast<int32_t>(id)};
    } else {
      tokens_.set(static_cast<int32_t>(id), written);
      other_tokens_.emplace(written, static_cast<int32_t>(id));
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char character = static_cast<char>(byte);
    byte_ids_[static_cast<size_t>(byte)] = find_bytes(std::string_view(&character, 1)).value_or(-1);
  }
}

void Bpe::parse_merges(const Json& merges, std::string_view what) {
  LADDER_CHECK(merges.is_array() && merges.size() < kNoRank, "{}: expected an array of merges, found {}",
               what, json_brief(merges));
  pairs_.resize(slots_for(merges.size()));
  pair_filter_.resize(std::bit_ceil(8 * merges.size() + 64) / 64);
  joins_.resize((1 << 20) / 64);
  short_joins_.resize((1 << 16) / 64);
  const auto find = [&](std::string_view written, size_t index) {
    const auto id = find_written(written);
    LADDER_CHECK(id.has_value(), "{}[{}]: {} is no token of the vocabulary", what, index,
                 json_brief(std::string(written)));
    return *id;
  };
  std::vector<std::pair<int32_t, int32_t>> joined;
  for (size_t index = 0; index < merges.size(); ++index) {
    // Written as ["a", "b"], or in older files as "a b", after an optional line that begins with #version.
    const Json& merge = merges[index];
    std::string_view left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    } else {
      LADDER_CHECK(merge.is_string(), "{}[{}]: expected two tokens, found {}", what, index,
                   json_brief(merge));
      const std::string_view text = merge.get_ref<const std::string&>();
      if (text.starts_with("#version")) {
        merged_ids_.push_back(-1);
        continue;
      }
      const size_t space = text.find(' ');
      LADDER_CHECK(space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos,
                   "{}[{}]: expected two tokens with a space between them, found {}", what, index,
                   json_brief(merge));
      left = text.substr(0, space);
      right = text.substr(space + 1);
    }
    const int32_t left_id = find(left, index), right_id = find(right, index);
    merged_ids_.push_back(find(std::string(left) + std::string(right), index));
    joined.emplace_back(left_id, right_id);
    if (spelling_ == TokenSpelling::kByteAlphabet) add_join(left_id, right_id);
    set_bit(pair_filter_, filter_bit(hash_of_pair(left_id, right_id)));
    size_t slot = hash_of_pair(left_id, right_id) & (pairs_.size() - 1);
    while (pairs_[slot].left >= 0 && (pairs_[slot].left != left_id || pairs_[slot].right != right_id))
      slot = (slot + 1) & (pairs_.size() - 1);
    pairs_[slot] = {left_id, right_id, static_cast<uint32_t>(index)};
  }
  if (spelling_ == TokenSpelling::kText) find_cuts(joined);
}

void Bpe::build_tables(bool ignore_merges) {
  byte_pair_ranks_.resize(256 * 256);
  for (size_t left = 0; left < 256; ++left)
    for (size_t right = 0; right < 256; ++right)
      byte_pair_ranks_[left * 256 + right] = rank(byte_ids_[left], byte_ids_[right]);

  // A word that is a token need not be merged if that is what merging would give.
  std::vector<WordSlot> merged, others;
  Workspace workspace;
  std::vector<int32_t> ids;
  for (const WordSlot& token : all_tokens_) {
    if (token.id < 0) continue;
    const std::string_view bytes = tokens_.bytes(token.id);
    ids.resize(std::max(ids.size(), bytes.size() + 1));
    const bool reached = merge(bytes, ids.data(), workspace) == 1 && ids[0] == token.id;
    (reached ? merged : others).push_back(token);
  }
  const auto build = [this](std::vector<WordSlot>& table, const std::vector<WordSlot>& words) {
    table.resize(slots_for(words.size()));
    for (const WordSlot& word : words) {
      size_t slot = hash_of(tokens_.bytes(word.id)) & (table.size() - 1);
      while (table[slot].id >= 0) slot = (slot + 1) & (table.size() - 1);
      table[slot] = word;
    }
  };
  build(merged_words_, merged);
  if (ignore_merges && !others.empty()) build(whole_pieces_, others);
}

// Notes what meets where the two tokens are joined, if that can be the border of two three-byte characters.
void Bpe::add_join(int32_t left_id, int32_t right_id) {
  const std::string_view left = tokens_.bytes(left_id), right = tokens_.bytes(right_id);
  if (left.empty() || right.empty() || (left.back() & 0xc0) != 0x80 || !leads_three_bytes(right.front()))
    return;
  const size_t before = std::min<size_t>(left.size(), 3), after = std::min<size_t>(right.size(), 3);
  const std::string around =
      std::string(left.substr(left.size() - before)) + std::string(right.substr(0, after));
  const char* border = around.data() + before;
  set_bit(joins_, border_hash(border, static_cast<int>(before), static_cast<int>(after)));
  if (before < 3 || after < 3) set_bit(short_joins_, short_border(border));
}

}  // namespace ladder
