#pragma once
// A small world for the attention tests: sequences whose keys and values exist twice, side by side for the
// reference in double precision, and scattered over the shuffled blocks of a cache whose other slots are NaN.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/attention/store_kv.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder::testing {

struct SequenceData {
  Tensor q, k, v;  // [length, heads, dim]

  int64_t length() const { return q.dim(0); }
};

struct HeadShape {
  int64_t heads = 4, kv_heads = 2, k_dim = 16, v_dim = 16;
};

inline SequenceData random_sequence(Random& random, int64_t length, const HeadShape& shape, DType dtype) {
  return {random.normal({length, shape.heads, shape.k_dim}, dtype),
          random.normal({length, shape.kv_heads, shape.k_dim}, dtype),
          random.normal({length, shape.kv_heads, shape.v_dim}, dtype)};
}

// Query rows [begin, end) of a sequence in one call, keys [0, end) in the cache. The first `shared_blocks`
// blocks may be those of an earlier part, whose sequence must begin with the same tokens.
struct Part {
  const SequenceData* data;
  int64_t begin, end;
  int shared_with = -1;
  int64_t shared_blocks = 0;
};

struct Attended {
  Tensor out;  // [rows + padding, heads, v_dim]
  Tensor lse;  // [rows + padding, heads]
};

inline Tensor i32_tensor(const std::vector<int32_t>& values, const Shape& shape) {
  return Tensor::from<int32_t>(values, shape);
}

// The queries, cache and metadata of one call over all parts.
struct AttentionInput {
  Tensor q;  // [rows + padding, heads, k_dim]
  KvCacheView cache;
  AttentionMetadata metadata;
  int64_t v_dim;
};

// `padding` extra query rows of NaN follow the last. Keys and values come into the cache where ctx
// says.
inline AttentionInput lay_out(const OpContext& ctx, Random& random, const std::vector<Part>& parts,
                              int64_t block_size, int64_t padding = 0,
                              KvCacheDType kept_as = KvCacheDType::automatic) {
  const SequenceData& first = *parts[0].data;
  const DType dtype = first.q.dtype();
  const int64_t heads = first.q.dim(1), kv_heads = first.k.dim(1), k_dim = first.k.dim(2),
                v_dim = first.v.dim(2);
  int64_t rows = 0, max_blocks = 1, blocks_needed = 0, longest = 0, longest_query = 0;
  for (const Part& part : parts) {
    const int64_t blocks = (part.end + block_size - 1) / block_size;
    rows += part.end - part.begin;
    max_blocks = std::max(max_blocks, blocks);
    blocks_needed += blocks - part.shared_blocks;
    longest = std::max(longest, part.end);
    longest_query = std::max(longest_query, part.end - part.begin);
  }
  std::vector<int32_t> free_blocks(static_cast<size_t>(blocks_needed + 3));
  std::iota(free_blocks.begin(), free_blocks.end(), 0);
  std::shuffle(free_blocks.begin(), free_blocks.end(), random.engine());

  // K and V are views of one allocation in half of the runs.
  KvCacheView cache;
  const auto num_blocks = static_cast<int64_t>(free_blocks.size());
  if (kept_as != KvCacheDType::automatic) {
    const auto codes = [&](int64_t dim) {
      Tensor tensor =
          Tensor::empty({num_blocks, block_size, kv_heads, kv_code_bytes(kept_as, dim)}, DType::u8);
      std::memset(tensor.raw(), 0x7f, static_cast<size_t>(tensor.nbytes()));  // E4M3's NaN
      return tensor;
    };
    const Shape scales = {num_blocks, block_size, kv_heads, kKvScales};
    cache = {codes(k_dim), codes(v_dim), kept_as, poisoned(scales, DType::f32), poisoned(scales, DType::f32)};
  } else if (random.integer(0, 1)) {
    Tensor both = poisoned({num_blocks, block_size, kv_heads, k_dim + v_dim}, dtype);
    cache.k = both.narrow(3, 0, k_dim);
    cache.v = both.narrow(3, k_dim, v_dim);
  } else {
    cache.k = poisoned({num_blocks, block_size, kv_heads, k_dim}, dtype);
    cache.v = poisoned({num_blocks, block_size, kv_heads, v_dim}, dtype);
  }

  std::vector<int32_t> starts{0}, seq_lens, tables(parts.size() * static_cast<size_t>(max_blocks), -7);
  Tensor q = poisoned({rows + padding, heads, k_dim}, dtype);
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    int32_t* table = tables.data() + i * static_cast<size_t>(max_blocks);
    for (int64_t block = 0; block * block_size < part.end; ++block) {
      if (block < part.shared_blocks) {
        table[block] = tables[static_cast<size_t>(part.shared_with * max_blocks + block)];
        continue;
      }
      table[block] = free_blocks.back();
      free_blocks.pop_back();
    }
    Tensor slots = Tensor::empty({part.end}, DType::i64);
    for (int64_t p = 0; p < part.end; ++p)
      slots.at<int64_t>({p}) =
          p < part.shared_blocks * block_size ? -1 : table[p / block_size] * block_size + p % block_size;
    call(store_kv, ctx, part.data->k.rows(part.end), part.data->v.rows(part.end), slots, cache);
    const int64_t length = part.end - part.begin;
    q.narrow(0, starts.back(), length).copy_from(part.data->q.narrow(0, part.begin, length));
    starts.push_back(starts.back() + static_cast<int32_t>(length));
    seq_lens.push_back(static_cast<int32_t>(part.end));
  }
  const auto num_seqs = static_cast<int64_t>(parts.size());
  return {q,
          cache,
          {.query_start_loc = i32_tensor(starts, {num_seqs + 1}),
           .seq_lens = i32_tensor(seq_lens, {num_seqs}),
           .block_tables = i32_tensor(tables, {num_seqs, max_blocks}),
           .slot_mapping = {},
           .num_seqs = num_seqs,
           .num_tokens = rows,
           .max_query_len = longest_query,
           .max_seq_len = longest},
          v_dim};
}

// What a call over all parts gives, out and lse full of NaN before it.
inline Attended poisoned_output(const AttentionInput& input) {
  const int64_t rows = input.q.dim(0), heads = input.q.dim(1);
  return {poisoned({rows, heads, input.v_dim}, input.q.dtype()), poisoned({rows, heads}, DType::f32)};
}

inline Attended attend(const OpContext& ctx, Random& random, const std::vector<Part>& parts,
                       int64_t block_size, double scale, int64_t padding = 0,
                       KvCacheDType kept_as = KvCacheDType::automatic) {
  const AttentionInput input = lay_out(ctx, random, parts, block_size, padding, kept_as);
  Attended result = poisoned_output(input);
  call(paged_attention, ctx, input.q, input.cache, input.metadata, scale, result.out, result.lse);
  return result;
}

// Without the rungs that serve decoding alone, for calls in which a sequence has several rows.
inline std::vector<Variant<PagedAttentionArgs>> mixed_attention_variants() {
  return rungs_where(paged_attention_variants(),
                     [](const auto& rung) { return rung.name != "grouped" && rung.name != "cluster"; });
}

struct Reference {
  std::vector<double> out, lse;
};

// Query rows [begin, end) in double precision. Each sees the keys up to its own position, or without a mask
// the first `unmasked_keys`.
inline Reference attention_reference(const SequenceData& data, int64_t begin, int64_t end, double scale,
                                     int64_t unmasked_keys = 0) {
  const int64_t heads = data.q.dim(1), kv_heads = data.k.dim(1), k_dim = data.k.dim(2), v_dim = data.v.dim(2);
  const auto q = to_double(data.q), k = to_double(data.k), v = to_double(data.v);
  Reference result;
  std::vector<double> weights;
  for (int64_t row = begin; row < end; ++row)
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t kv_head = head / (heads / kv_heads), keys = unmasked_keys > 0 ? unmasked_keys : row + 1;
      weights.assign(static_cast<size_t>(keys), 0);
      for (int64_t j = 0; j < keys; ++j)
        for (int64_t i = 0; i < k_dim; ++i)
          weights[j] += scale * q[(row * heads + head) * k_dim + i] * k[(j * kv_heads + kv_head) * k_dim + i];
      const double largest = *std::max_element(weights.begin(), weights.end());
      double sum = 0;
      for (double& weight : weights) sum += weight = std::exp(weight - largest);
      result.lse.push_back(largest + std::log(sum));
      for (int64_t i = 0; i < v_dim; ++i) {
        double mixed = 0;
        for (int64_t j = 0; j < keys; ++j)
          mixed += weights[j] / sum * v[(j * kv_heads + kv_head) * v_dim + i];
        result.out.push_back(mixed);
      }
    }
  return result;
}

}  // namespace ladder::testing
