#pragma once
// Task 8.7.layout: where an engine keeps keys and values, and which part of them a reader of another layout takes from where.
//
//   4 ranks -> 2, 8 heads                          2 ranks -> 4, 8 heads
//
//   rank 0: 0 1 --+                                rank 0: 0 1 2 3 --+--> rank 0: 0 1
//   rank 1: 2 3 --+--> rank 0: 0 1 2 3                               +--> rank 1: 2 3
//   rank 2: 4 5 --+                                rank 1: 4 5 6 7 --+--> rank 2: 4 5
//   rank 3: 6 7 --+--> rank 1: 4 5 6 7                               +--> rank 3: 6 7
//
// What travels is packed, in an order that no engine's caches need to have. So tensor ranks, block sizes, strides and float
// dtypes may differ, and both sides only know their own: whoever packs reads blocks of his size, whoever unpacks writes his.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "step1_layers/attention/kv_cache.h"
#include "step2_model/decoder/decoder_spec.h"
#include "step4_runner/kv_cache_registry.h"
#include "step4_runner/runner_config.h"

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

// Of an engine that is built like this. Error, naming the flag: ranks that share out a sequence's tokens (context parallelism),
// whose blocks hold something else.
KvLayout kv_layout_of(const DecoderSpec& spec, const RunnerConfig& config);

// Error: numbers that no engine has. Of a layout that came from outside, before anything is computed with it; what has passed
// cannot overflow anything below.
void expect_kv_layout(const KvLayout& layout);

// For a log and an Error: "28 layers of 8 heads of 128, bf16, TP 2, 3 stages, blocks of 16".
std::string layout_text(const KvLayout& layout);

// Heads of the model that a tensor rank keeps: its own, or where there are more ranks than heads the one that it shares with
// its neighbours. Error: neither number divides the other.
struct HeadRange {
  int64_t first = 0, count = 0;
};
HeadRange heads_of_rank(int64_t num_kv_heads, int tensor_parallel_size, int tensor_rank);

// What one rank of the reader takes from one rank of the other engine: of these layers, these heads.
struct KvRead {
  int from_rank = 0, to_rank = 0;  // tensor rank + stage * tensor_parallel_size, in either engine
  int64_t first_layer = 0, num_layers = 0;
  int64_t first_head = 0, num_heads = 0;
  bool operator==(const KvRead&) const = default;
};
// All reads that fill the ranks of `to` from those of `from`: of each rank of `to` each layer and head once, in the order of
// to_rank, first_layer, first_head, and as few as that takes. Where several ranks of `from` keep a head, those who read it (a
// stage's ranks, and then the next stage's) take turns among them. Error: a layout that is none (expect_kv_layout), or two that
// do not fit each other (expect_alike).
std::vector<KvRead> kv_reads(const KvLayout& from, const KvLayout& to);

// Error, naming what differs: keys and values of one are of no use to the other. Ranks, stages, block sizes and float dtypes may
// differ; codes must be the same codes.
void expect_alike(const KvLayout& from, const KvLayout& to);

// The unit that travels: of one layer, some heads (numbered through the model) of some consecutive tokens of a sequence. Its
// bytes are packed: K, then V, each [head][token][dim]. Codes travel as codes [head][token][kv_code_bytes(dim)], and after both
// come the scales of K, then of V, each f32 [head][token][2].
struct KvPart {
  int64_t layer = 0;
  int64_t first_head = 0, num_heads = 0;
  int64_t first_token = 0, num_tokens = 0;
};

// Bytes of a part that an engine of this layout packs.
int64_t packed_size(const KvLayout& layout, const KvPart& part);

// From and to the caches of one rank on the host, whose engine's layout it is; of `num_layers` layers from the part's on, whose
// parts lie one behind the other. `block_table` is the sequence's there. `packed` is what packed_size() says of all of them. What
// stores into the caches must have ended. (Caches on a GPU: kv_copier.h.)
// Error: the rank does not keep these layers and heads, the table is too short for these tokens, or the size is another.
void pack_kv(const KvLayout& layout, const RankKvCaches& caches, std::span<const int32_t> block_table,
             const KvPart& part, std::span<std::byte> packed, int64_t num_layers = 1);
// `packed_dtype`: the sender's layout.dtype, in which the packed floats are (of codes it says nothing). They become floats of
// this engine, rounded to the nearest, half to even.
void unpack_kv(const KvLayout& layout, const RankKvCaches& caches, std::span<const int32_t> block_table,
               const KvPart& part, std::span<const std::byte> packed, DType packed_dtype,
               int64_t num_layers = 1);

}  // namespace ladder
