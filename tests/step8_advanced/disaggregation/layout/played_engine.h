#pragma once
// An engine's keys and values as they lie on all its ranks, without the engine: every number is a function of where in the model
// and the sequence it belongs, so that one in the wrong place is seen.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "step8_advanced/disaggregation/layout/kv_layout.h"
#include "tests/support/error_of.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

inline KvLayout layout_of(int64_t heads, int tensor_ranks, std::vector<int64_t> stage_ends = {4}) {
  KvLayout layout;
  layout.num_layers = stage_ends.back();
  layout.num_kv_heads = heads;
  layout.k_dim = 6;
  layout.v_dim = 10;
  layout.tensor_parallel_size = tensor_ranks;
  layout.stage_ends = std::move(stage_ends);
  layout.block_size = 4;
  return layout;
}

// Whether a tensor-parallel engine with these heads exists.
inline bool divides(int64_t heads, int tensor_ranks) {
  return heads % tensor_ranks == 0 || tensor_ranks % heads == 0;
}

enum class CacheKind { dense, wide };  // wide: heads are views of a larger allocation

struct PlayedEngine {
  KvLayout layout;
  std::vector<RankKvCaches> ranks;
  std::vector<int32_t> block_table;  // of the one sequence; its blocks are not in order

  // All bytes are 0xff: NaN of every float.
  PlayedEngine(const KvLayout& of, int64_t num_tokens, Random& random, CacheKind kind = CacheKind::dense,
               Device device = {})
      : layout(of) {
    const int64_t num_blocks = (num_tokens + layout.block_size - 1) / layout.block_size + 3;
    block_table.resize(static_cast<size_t>(num_blocks));
    std::iota(block_table.begin(), block_table.end(), 0);
    if (random.integer(0, 3) > 0) std::shuffle(block_table.begin(), block_table.end(), random.engine());
    for (size_t stage = 0; stage < layout.stage_ends.size(); ++stage)
      for (int tensor_rank = 0; tensor_rank < layout.tensor_parallel_size; ++tensor_rank) {
        RankKvCaches rank;
        rank.rank = static_cast<int>(ranks.size());
        rank.place = {tensor_rank, static_cast<int>(stage), 0};
        rank.layers = {stage == 0 ? 0 : layout.stage_ends[stage - 1], layout.stage_ends[stage]};
        const int64_t heads = std::max<int64_t>(1, layout.num_kv_heads / layout.tensor_parallel_size);
        for (int64_t layer = 0; layer < rank.layers.size(); ++layer)
          rank.caches.push_back(empty_cache(num_blocks, heads, kind, device));
        ranks.push_back(std::move(rank));
      }
  }

  KvCacheView empty_cache(int64_t num_blocks, int64_t heads, CacheKind kind, Device device) const {
    const auto poisoned = [&](int64_t dim, DType dtype) {
      const int64_t around = kind == CacheKind::wide ? 1 : 0;
      const Tensor all =
          Tensor::empty({num_blocks, layout.block_size, heads + 2 * around, dim}, dtype, device);
      all.fill_bytes(0xff);
      return all.narrow(2, around, heads);
    };
    KvCacheView cache;
    cache.kept_as = layout.kept_as;
    if (cache.kept_as == KvCacheDType::automatic) {
      cache.k = poisoned(layout.k_dim, layout.dtype);
      cache.v = poisoned(layout.v_dim, layout.dtype);
      return cache;
    }
    cache.k = poisoned(kv_code_bytes(cache.kept_as, layout.k_dim), DType::u8);
    cache.v = poisoned(kv_code_bytes(cache.kept_as, layout.v_dim), DType::u8);
    cache.k_scales = poisoned(kKvScales, DType::f32);
    cache.v_scales = poisoned(kKvScales, DType::f32);
    return cache;
  }

  // The numbers of these tokens, on every rank that keeps them: small integers, which all dtypes have.
  void fill(int64_t first_token, int64_t num_tokens) {
    for (const RankKvCaches& rank : ranks)
      for (int64_t layer = rank.layers.begin; layer < rank.layers.end; ++layer) {
        const KvCacheView& cache = rank.caches[static_cast<size_t>(layer - rank.layers.begin)];
        int64_t kind = 0;
        for (const Tensor* tensor : {&cache.k, &cache.v, &cache.k_scales, &cache.v_scales}) {
          ++kind;
          if (tensor->defined())
            for (int64_t token = first_token; token < first_token + num_tokens; ++token)
              fill_token(*tensor, rank.place.tensor_rank, layer * 8 + kind, token);
        }
      }
  }

  void fill_token(const Tensor& tensor, int tensor_rank, int64_t where, int64_t token) const {
    const int64_t tp = layout.tensor_parallel_size, heads = layout.num_kv_heads;
    for (int64_t local = 0; local < tensor.dim(2); ++local) {
      const int64_t head = tp > heads ? tensor_rank * heads / tp : tensor_rank * (heads / tp) + local;
      const int32_t block = block_table[static_cast<size_t>(token / layout.block_size)];
      for (int64_t i = 0; i < tensor.dim(3); ++i) {
        const int64_t at = block * tensor.stride(0) + token % layout.block_size * tensor.stride(1) +
                           local * tensor.stride(2) + i;
        const uint64_t mixed =
            static_cast<uint64_t>(((where * 4099 + head) * 4099 + token) * 4099 + i) * 0x9e3779b97f4a7c15u;
        const auto code = static_cast<uint8_t>(mixed >> 56);
        const auto number = static_cast<float>(code) - 128;
        if (tensor.dtype() == DType::u8)
          tensor.data<uint8_t>()[at] = code;
        else if (tensor.dtype() == DType::f32)
          tensor.data<float>()[at] = number;
        else if (tensor.dtype() == DType::bf16)
          tensor.data<bf16>()[at] = bf16(number);
        else
          tensor.data<f16>()[at] = f16(number);
      }
    }
  }

  // Takes the tokens from the other engine in parts of random length, over all reads.
  void take(const PlayedEngine& from, int64_t first_token, int64_t num_tokens, Random& random) {
    for (const KvRead& read : kv_reads(from.layout, layout))
      for (int64_t layer = read.first_layer; layer < read.first_layer + read.num_layers; ++layer)
        for (int64_t done = 0; done < num_tokens;) {
          const int64_t count = random.integer(1, num_tokens - done);
          take_part(from, read, {layer, read.first_head, read.num_heads, first_token + done, count});
          done += count;
        }
  }
  void take_part(const PlayedEngine& from, const KvRead& read, const KvPart& part) {
    std::vector<std::byte> packed(static_cast<size_t>(packed_size(from.layout, part)));
    pack_kv(from.layout, from.ranks.at(static_cast<size_t>(read.from_rank)), from.block_table, part, packed);
    unpack_kv(layout, ranks.at(static_cast<size_t>(read.to_rank)), block_table, part, packed,
              from.layout.dtype);
  }
};

// Rank, layer and tensor that are first different; empty: all bytes are the same, those around the heads too.
inline std::string first_difference(const PlayedEngine& a, const PlayedEngine& b) {
  for (size_t rank = 0; rank < a.ranks.size(); ++rank)
    for (size_t layer = 0; layer < a.ranks[rank].caches.size(); ++layer) {
      const KvCacheView &one = a.ranks[rank].caches[layer], &other = b.ranks[rank].caches[layer];
      const std::pair<const Tensor*, const Tensor*> tensors[] = {{&one.k, &other.k},
                                                                 {&one.v, &other.v},
                                                                 {&one.k_scales, &other.k_scales},
                                                                 {&one.v_scales, &other.v_scales}};
      for (const auto& [mine, theirs] : tensors) {
        if (!mine->defined()) continue;
        // To the end of the last token: the heads beside these are between them.
        const int64_t bytes =
            (mine->dim(0) * mine->stride(0) - (mine->stride(1) - mine->dim(2) * mine->stride(2))) *
            dtype_size(mine->dtype());
        if (std::memcmp(mine->raw(), theirs->raw(), static_cast<size_t>(bytes)) != 0)
          return fmt::format("rank {}, its layer {}, {}", rank, layer,
                             mine == &one.k   ? "keys"
                             : mine == &one.v ? "values"
                                              : "scales");
      }
    }
  return "";
}

}  // namespace ladder::testing
