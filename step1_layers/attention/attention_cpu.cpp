#include "step1_layers/attention/attention_cpu.h"

#include <cmath>

namespace ladder {

// >>> task 1.7.loop: attention of one query row over the keys it sees, and the rows of a sequence and of a batch
namespace {

// key(j) and value(j) point to position j's vectors; `weights` is scratch for num_keys numbers. Returns the
// log of the sum of e^score.
template <class T, class Key, class Value>
double attend_row(const T* q, int64_t k_dim, int64_t v_dim, int64_t num_keys, double scale, Key&& key,
                  Value&& value, double* weights, T* out) {
  double largest = -INFINITY;
  for (int64_t j = 0; j < num_keys; ++j) {
    const T* k = key(j);
    double dot = 0;
    for (int64_t i = 0; i < k_dim; ++i)
      dot += static_cast<double>(static_cast<float>(q[i])) * static_cast<float>(k[i]);
    weights[j] = dot * scale;
    largest = std::max(largest, weights[j]);
  }
  double sum = 0;
  for (int64_t j = 0; j < num_keys; ++j) {
    weights[j] = std::exp(weights[j] - largest);
    sum += weights[j];
  }
  for (int64_t i = 0; i < v_dim; ++i) {
    double mixed = 0;
    for (int64_t j = 0; j < num_keys; ++j) mixed += weights[j] * static_cast<float>(value(j)[i]);
    out[i] = T(static_cast<float>(mixed / sum));
  }
  return largest + std::log(sum);
}

}  // namespace

void causal_attention_loop(const OpContext& ctx, const CausalAttentionArgs& args) {
  const Tensor &q = args.q, &k = args.k, &v = args.v, &out = args.out;
  const int64_t num_queries = q.dim(0), num_keys = k.dim(0), group = q.dim(1) / k.dim(1);
  ArenaScope scope(*ctx.arena);
  double* weights = ctx.arena->take({num_keys}, DType::f64).data<double>();
  with_float_type(q.dtype(), "causal_attention", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t row = 0; row < num_queries; ++row)
      for (int64_t head = 0; head < q.dim(1); ++head) {
        auto key = [&](int64_t j) { return k.data<T>() + j * k.stride(0) + head / group * k.stride(1); };
        auto value = [&](int64_t j) { return v.data<T>() + j * v.stride(0) + head / group * v.stride(1); };
        attend_row<T>(q.data<T>() + row * q.stride(0) + head * q.stride(1), q.dim(2), v.dim(2),
                      num_keys - num_queries + row + 1, args.scale, key, value, weights,
                      out.data<T>() + row * out.stride(0) + head * out.stride(1));
      }
  });
}

void paged_attention_loop(const OpContext& ctx, const PagedAttentionArgs& args) {
  const Tensor &q = args.q, &k = args.cache.k, &v = args.cache.v, &out = args.out;
  const AttentionMetadata& metadata = args.metadata;
  const int64_t group = q.dim(1) / k.dim(2), block_size = args.cache.block_size();
  const int32_t* starts = metadata.query_start_loc.data<int32_t>();
  const int32_t* seq_lens = metadata.seq_lens.data<int32_t>();
  ArenaScope scope(*ctx.arena);
  double* weights = ctx.arena->take({metadata.max_seq_len}, DType::f64).data<double>();
  with_float_type(q.dtype(), "paged_attention", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t seq = 0; seq < metadata.num_seqs; ++seq) {
      const int32_t* table = metadata.block_tables.data<int32_t>() + seq * metadata.block_tables.stride(0);
      for (int64_t row = starts[seq]; row < starts[seq + 1]; ++row)
        for (int64_t head = 0; head < q.dim(1); ++head) {
          const int64_t num_keys = seq_lens[seq] - (args.causal ? starts[seq + 1] - 1 - row : 0);
          auto key = [&](int64_t j) {
            return k.data<T>() + table[j / block_size] * k.stride(0) + j % block_size * k.stride(1) +
                   head / group * k.stride(2);
          };
          auto value = [&](int64_t j) {
            return v.data<T>() + table[j / block_size] * v.stride(0) + j % block_size * v.stride(1) +
                   head / group * v.stride(2);
          };
          const double lse = attend_row<T>(q.data<T>() + row * q.stride(0) + head * q.stride(1), q.dim(2),
                                           v.dim(3), num_keys, args.scale, key, value, weights,
                                           out.data<T>() + row * out.stride(0) + head * out.stride(1));
          if (args.lse.defined())
            args.lse.data<float>()[row * args.lse.stride(0) + head * args.lse.stride(1)] =
                static_cast<float>(lse);
        }
    }
  });
}
// <<< task 1.7.loop

}  // namespace ladder
