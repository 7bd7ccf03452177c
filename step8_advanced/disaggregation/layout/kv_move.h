#pragma once
// Rows of numbers from the blocks of caches into packed bytes (kv_layout.h), and back: the ladder under pack_kv(), unpack_kv()
// and KvCopier. Internal to this folder.
//
//   for plane (a layer's keys, values, scales of either)
//     for token of the part, for head of the part
//       packed[plane][head][token] = cache[block_table[token / block_size]][token % block_size][head]
#include <cstdint>
#include <span>
#include <vector>

#include "step1_layers/core/variants.h"
#include "step8_advanced/disaggregation/layout/kv_layout.h"
#include "step8_advanced/disaggregation/transport/kv_body.h"

namespace ladder {

// One tensor of a layer's cache, from the part's first head on. Pitches and sizes in bytes.
struct KvPlane {
  char* cache = nullptr;
  int64_t block_pitch = 0, token_pitch = 0, head_pitch = 0;
  int64_t row_bytes = 0;  // of a head of a token
  int64_t packed_offset = 0, packed_row_bytes = 0;
};

// CUDA: a move is made only where the words that are found when it begins are those expected. Both in the GPU's memory.
struct KvMoveCondition {
  const uint32_t *found = nullptr, *expected = nullptr;
  int count = 0;  // 0: always
};

struct KvMoveArgs {
  bool packs = true;  // from the caches; else into them
  std::vector<KvPlane> planes;
  std::span<const int32_t> block_table;
  int64_t block_size = 0;
  int64_t first_token = 0, num_tokens = 0, num_heads = 0;
  std::byte* packed = nullptr;
  // Where these are not the same, floats are converted on their way into the caches, rounded to the nearest, half to even.
  DType packed_dtype = DType::f32, cache_dtype = DType::f32;
  // CUDA: what write_kv_tables() writes, in the GPU's memory.
  const std::byte* tables = nullptr;
  KvMoveCondition only_if = {};

  bool converts() const { return packed_dtype != cache_dtype; }
};

// Of the part's layer and those after it, `num_layers` together, whose parts lie in `packed` one behind the other. Error as
// pack_kv() and unpack_kv(); of `op`. packed_dtype: the sender's.
KvMoveArgs kv_move_args(const KvLayout& layout, const RankKvCaches& caches,
                        std::span<const int32_t> block_table, const KvPart& part, int64_t num_layers,
                        const KvBody& packed, DType packed_dtype, std::string_view op);

// The planes, and behind them the blocks that the part's tokens are in: what a kernel looks up.
size_t kv_tables_size(const KvMoveArgs& args);
void write_kv_tables(const KvMoveArgs& args, std::byte* to);

// Slowest first. On the GPU caches and packed bytes are on the context's device.
std::span<const Variant<KvMoveArgs>> kv_move_variants();
void kv_move(const OpContext& ctx, const KvMoveArgs& args);

}  // namespace ladder
