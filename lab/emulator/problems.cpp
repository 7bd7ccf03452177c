#include "lab/emulator/problems.h"

#include <string>
#include <vector>

#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/linear/matmul.h"
#include "step1_layers/norm/rms_norm.h"

namespace ladder_emulator {

namespace {

using namespace ladder;

// A tensor of small values, on the device.
Tensor values(const OpContext& ctx, const Shape& shape, DType dtype) {
  const Tensor host = Tensor::empty(shape, DType::f32);
  for (int64_t i = 0; i < host.numel(); ++i) host.data<float>()[i] = static_cast<float>(i % 13) / 8 - 0.5f;
  const Tensor typed = host.to(dtype), there = Tensor::empty(shape, dtype, ctx.device);
  device_copy(there.raw(), ctx.device, typed.raw(), {}, typed.nbytes());
  return there;
}
template <class T>
Tensor integers(const OpContext& ctx, const std::vector<T>& list, const Shape& shape) {
  const Tensor host = Tensor::from<T>(list, shape), there = Tensor::empty(shape, host.dtype(), ctx.device);
  device_copy(there.raw(), ctx.device, host.raw(), {}, host.nbytes());
  return there;
}

template <DType dtype>
void silu(const OpContext& ctx) {
  silu_and_mul(ctx, values(ctx, {6, 2 * 1000}, dtype), values(ctx, {6, 1000}, dtype));
}
void gelu_once(const OpContext& ctx) {
  gelu(ctx, values(ctx, {6, 1000}, DType::bf16), values(ctx, {6, 1000}, DType::bf16), GeluKind::tanh);
}
void gelu_gated(const OpContext& ctx) {
  gelu_and_mul(ctx, values(ctx, {6, 2 * 1000}, DType::bf16), values(ctx, {6, 1000}, DType::bf16),
               GeluKind::tanh);
}
template <int64_t rows, int64_t width>
void norm(const OpContext& ctx) {
  rms_norm(ctx, values(ctx, {rows, width}, DType::bf16), values(ctx, {width}, DType::bf16), 1e-6,
           values(ctx, {rows, width}, DType::bf16));
}
template <int64_t rows, int64_t width>
void fused_norm(const OpContext& ctx) {
  fused_add_rms_norm(ctx, values(ctx, {rows, width}, DType::bf16), values(ctx, {rows, width}, DType::bf16),
                     values(ctx, {width}, DType::bf16), 1e-6, values(ctx, {rows, width}, DType::bf16));
}
template <int64_t m, int64_t n, int64_t k>
void product(const OpContext& ctx) {
  matmul(ctx, values(ctx, {m, k}, DType::bf16), values(ctx, {n, k}, DType::bf16), Tensor(),
         values(ctx, {m, n}, DType::bf16));
}
void store(const OpContext& ctx) {
  const std::vector<int64_t> slots = {3, 17, 4, -1, 0, 31, 30, 8, 9, 10, 11, 12};
  store_kv(ctx, values(ctx, {12, 2, 64}, DType::bf16), values(ctx, {12, 2, 64}, DType::bf16),
           integers(ctx, slots, {12}),
           {values(ctx, {2, 16, 2, 64}, DType::bf16), values(ctx, {2, 16, 2, 64}, DType::bf16)});
}
// A prompt of 20 tokens and a token that sees 40 keys.
void attention(const OpContext& ctx) {
  const AttentionMetadata metadata{.query_start_loc = integers<int32_t>(ctx, {0, 20, 21}, {3}),
                                   .seq_lens = integers<int32_t>(ctx, {20, 40}, {2}),
                                   .block_tables = integers<int32_t>(ctx, {4, 1, 0, 3, 0, 2}, {2, 3}),
                                   .slot_mapping = {},
                                   .num_seqs = 2,
                                   .num_tokens = 21,
                                   .max_query_len = 20,
                                   .max_seq_len = 40};
  const KvCacheView cache{values(ctx, {5, 16, 2, 64}, DType::bf16), values(ctx, {5, 16, 2, 64}, DType::bf16)};
  paged_attention(ctx, values(ctx, {21, 4, 64}, DType::bf16), cache, metadata, 0.125,
                  values(ctx, {21, 4, 64}, DType::bf16), Tensor());
}

constexpr Problem kProblems[] = {
    {"silu_and_mul/naive", silu<DType::bf16>},
    {"silu_and_mul/vectorized", silu<DType::bf16>},
    {"gelu/naive", gelu_once},
    {"gelu/vectorized", gelu_once},
    {"gelu_and_mul/naive", gelu_gated},
    {"gelu_and_mul/vectorized", gelu_gated},
    {"rms_norm/naive", norm<70, 200>},
    {"rms_norm/block", norm<6, 1000>},
    {"rms_norm/registers", norm<6, 1000>},
    {"fused_add_rms_norm/naive", fused_norm<70, 200>},
    {"fused_add_rms_norm/block", fused_norm<6, 1000>},
    {"fused_add_rms_norm/registers", fused_norm<6, 1000>},
    {"matmul/naive", product<20, 50, 70>},
    {"matmul/tiled", product<100, 70, 80>},
    {"store_kv/naive", store},
    {"store_kv/vectorized", store},
    {"paged_attention/naive", attention},
};

}  // namespace

std::span<const Problem> problems() {
  return kProblems;
}

}  // namespace ladder_emulator
