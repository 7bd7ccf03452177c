// The table of rope.h's operator, and the threads of its fast rungs.
#include "step1_layers/rotary/rope.h"

#include <algorithm>

#include "step1_layers/core/parallel.h"
#include "step1_layers/core/simd_rungs.h"
#include "step1_layers/rotary/rope_cpu.h"
#include "step1_layers/rotary/rope_simd.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/rotary/rope_cuda.h"
#endif

namespace ladder {

namespace {

template <template <class> class Kernels>
void rotary_embedding_fast(const OpContext&, const RotaryEmbeddingArgs& args) {
  const Tensor &q = args.q, &k = args.k, &table = args.table;
  const int64_t half = table.dim(1) / 2;
  const int64_t per_token = (q.dim(1) + k.dim(1)) * 2 * half;
  const int32_t* positions = args.positions.data<int32_t>();
  with_float_type(q.dtype(), "rotary_embedding", [&](auto tag) {
    using T = decltype(tag);
    parallel_for(q.dim(0), 16384 / std::max<int64_t>(per_token, 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const float* angles = table.data<float>() + positions[token] * table.stride(0);
        Kernels<T>::rotate(q.data<T>() + token * q.stride(0), q.stride(1), q.dim(1), angles, half);
        Kernels<T>::rotate(k.data<T>() + token * k.stride(0), k.stride(1), k.dim(1), angles, half);
      }
    });
  });
}

constexpr Variant<RotaryEmbeddingArgs> kVariants[] = {
    {.name = "loop", .idea = "pair by pair", .run = rotary_embedding_loop},
    LADDER_SIMD_RUNGS(
        rotary_embedding_fast, RotaryKernels,
        "eight pairs at a time, the angles loaded once for all heads, tokens split among threads"),
#ifdef LADDER_HAS_CUDA
    {.name = "naive", .device = DeviceType::cuda, .idea = "a pair per thread", .run = rotary_embedding_cuda},
    {.name = "vectorized",
     .device = DeviceType::cuda,
     .idea = "eight pairs of bf16 per thread, sixteen bytes per access",
     .supports = rotary_embedding_is_packed,
     .run = rotary_embedding_cuda_packed},
#endif
};

}  // namespace

std::span<const Variant<RotaryEmbeddingArgs>> rotary_embedding_variants() {
  return kVariants;
}

void check_rotary_embedding(const RotaryEmbeddingArgs& args, std::string_view op) {
  const Tensor &positions = args.positions, &q = args.q, &k = args.k, &table = args.table;
  expect_shape(positions, {-1}, op);
  expect_dtype(positions, DType::i32, op);
  expect_shape(q, {positions.dim(0), -1, -1}, op);
  expect_shape(k, {positions.dim(0), -1, q.dim(2)}, op);
  expect_dtype(k, q.dtype(), op);
  expect_shape(table, {-1, -1}, op);
  expect_dtype(table, DType::f32, op);
  LADDER_CHECK(table.dim(1) % 2 == 0 && table.dim(1) <= q.dim(2),
               "{}: table: expected an even width of at most {}, got {}", op, q.dim(2), table.str());
  LADDER_CHECK(q.stride(2) == 1 && k.stride(2) == 1 && table.stride(1) == 1,
               "{}: the elements of a head must be adjacent", op);
  if (!positions.device().is_cpu()) return;
  const int32_t* values = positions.data<int32_t>();
  for (int64_t i = 0; i < positions.dim(0); ++i)
    LADDER_CHECK(values[i] >= 0 && values[i] < table.dim(0), "{}: position {} is outside the table of {}", op,
                 values[i], table.dim(0));
}

void rotary_embedding(const OpContext& ctx, const Tensor& positions, const Tensor& q, const Tensor& k,
                      const Tensor& table) {
  const RotaryEmbeddingArgs args{positions, q, k, table};
  check_rotary_embedding(args, "rotary_embedding");
  run_variant<RotaryEmbeddingArgs>("rotary_embedding", rotary_embedding_variants(), ctx, args);
}

}  // namespace ladder
