#pragma once
// Where an engine keeps keys and values, and which part of them a reader of another layout takes from where.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "step1_layers/attention/kv_cache.h"
#include "step4_runner/kv_cache_registry.h"

namespace ladder {

// Of an engine, all ranks: what two of them compare before the first byte.
struct KvLayout {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;  // of the model, however many ranks keep a copy
  int64_t k_dim = 0, v_dim = 0;
  DType dtype = DType::f32;
  KvCacheDType kept_as = KvCacheDType::automatic;
  int tensor_parallel_size = 1;
  std::vector<int64_t> stage_ends;  // layers at which pipeline stages end; the last is num_layers
  int64_t block_size = 0;

  bool operator==(const KvLayout&) const = default;
};

// The unit that travels: of one layer, some heads (numbered through the model) of some consecutive tokens of a sequence. Its
// bytes are packed, K first, then V, each [head][token][dim]; codes travel as codes, with their scales after them.
struct KvPart {
  int64_t layer = 0;
  int64_t first_head = 0, num_heads = 0;
  int64_t first_token = 0, num_tokens = 0;
};

// Heads of the model that a tensor rank keeps: its own, or where there are more ranks than heads the one that it shares.
struct HeadRange {
  int64_t first = 0, count = 0;
};
HeadRange heads_of_rank(int64_t num_kv_heads, int tensor_parallel_size, int tensor_rank);

// What one rank of the reader takes from one rank of the other engine: so many layers, these heads.
struct KvRead {
  int from_rank = 0, to_rank = 0;  // tensor rank + stage * tensor_parallel_size, in either engine
  int64_t first_layer = 0, num_layers = 0;
  int64_t first_head = 0, num_heads = 0;
};
// All reads that fill the ranks of `to` from those of `from`, in the order of to_rank, each byte once. Ranks of `from` that
// keep the same head are read evenly. Error, naming what differs: models that are not alike.
std::vector<KvRead> kv_reads(const KvLayout& from, const KvLayout& to);

// Bytes of a part in the layout's dtype.
int64_t packed_size(const KvLayout& layout, const KvPart& part);

// From and to the caches of one rank, which must keep the part's layer and heads. `block_table` is the sequence's. Runs of
// tokens end with a block.
void pack_kv(const KvLayout& layout, const RankKvCaches& caches, std::span<const int32_t> block_table,
             const KvPart& part, std::span<std::byte> packed);
void unpack_kv(const KvLayout& layout, const RankKvCaches& caches, std::span<const int32_t> block_table,
               const KvPart& part, std::span<const std::byte> packed);

// For a log and an Error: "Qwen3-0.6B's 28 layers of 8 heads of 128, bf16, TP 2, blocks of 16".
std::string layout_text(const KvLayout& layout);

}  // namespace ladder
