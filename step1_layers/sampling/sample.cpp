#include "step1_layers/sampling/sample.h"

#include <cmath>

#include "step1_layers/core/simd_rungs.h"
#include "step1_layers/sampling/invalid_token.h"
#include "step1_layers/sampling/philox.h"
#include "step1_layers/sampling/sampling_rows.h"
#include "step1_layers/sampling/sampling_simd.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/sampling/sampling_cuda.h"
#endif

namespace ladder {

namespace {

// >>> task 1.8.draw: one token per row, by the Gumbel-max trick
void sample_loop(const OpContext&, const SampleArgs& args) {
  for (int64_t row = 0; row < args.logits.dim(0); ++row) {
    const float* x = detail::row_of(args.logits, row);
    const bool greedy = args.temperature.data<float>()[row] < kMinTemperature;
    const auto seed = static_cast<uint64_t>(args.seeds.data<int64_t>()[row]);
    const auto output_index = static_cast<uint64_t>(args.output_index.data<int64_t>()[row]);
    float best = -INFINITY;
    int32_t best_id = kInvalidToken;
    for (int64_t id = 0; id < args.logits.dim(1); ++id) {
      if (std::isnan(x[id])) {
        best_id = kInvalidToken;
        break;
      }
      if (x[id] == -INFINITY) continue;  // a token that was cut needs no noise
      float score = x[id];
      if (!greedy) {
        const float u = sampling_uniform(seed, output_index, static_cast<uint32_t>(id));
        score -= std::log(-std::log1p(-u));
      }
      if (score > best) {
        best = score;
        best_id = static_cast<int32_t>(id);
      }
    }
    args.ids.data<int32_t>()[row] = best_id;
  }
}
// <<< task 1.8.draw

template <class Kernels>
void sample_fast(const OpContext&, const SampleArgs& args) {
  const int64_t vocab = args.logits.dim(1);
  detail::for_each_row(args.logits, [&](int64_t row) {
    const float* x = detail::row_of(args.logits, row);
    const auto seed = static_cast<uint64_t>(args.seeds.data<int64_t>()[row]);
    const auto output_index = static_cast<uint64_t>(args.output_index.data<int64_t>()[row]);
    args.ids.data<int32_t>()[row] =
        static_cast<int32_t>(args.temperature.data<float>()[row] < kMinTemperature
                                 ? Kernels::argmax(x, vocab)
                                 : Kernels::gumbel_argmax(x, vocab, seed, output_index));
  });
}

constexpr Variant<SampleArgs> kVariants[] = {
    {.name = "loop", .idea = "one Philox block per token, logarithms of the C library", .run = sample_loop},
    LADDER_SIMD_RUNGS(
        sample_fast, SamplingKernels,
        "sixteen Philox blocks side by side; logarithms only where a token's noise could make it win"),
#ifdef LADDER_HAS_CUDA
    {.name = "block",
     .device = DeviceType::cuda,
     .idea = "a row per block; noise only for tokens that it could lift to the top",
     .run = sample_cuda_block},
    {.name = "split",
     .device = DeviceType::cuda,
     .idea = "several blocks per row, so that few rows use the whole chip",
     .run = sample_cuda_split},
#endif
};

}  // namespace

std::span<const Variant<SampleArgs>> sample_variants() {
  return kVariants;
}

void sample(const OpContext& ctx, const SampleArgs& args) {
  constexpr std::string_view op = "sample";
  detail::check_logits(args.logits, op);
  detail::check_per_row(args.temperature, args.logits, DType::f32, op);
  detail::check_per_row(args.seeds, args.logits, DType::i64, op);
  detail::check_per_row(args.output_index, args.logits, DType::i64, op);
  detail::check_per_row(args.ids, args.logits, DType::i32, op);
  run_variant<SampleArgs>(op, sample_variants(), ctx, args);
}

}  // namespace ladder
