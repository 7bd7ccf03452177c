#include "step1_layers/sampling/argmax.h"

#include <cmath>

#include "step1_layers/core/simd_rungs.h"
#include "step1_layers/sampling/invalid_token.h"
#include "step1_layers/sampling/sampling_rows.h"
#include "step1_layers/sampling/sampling_simd.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/sampling/sampling_cuda.h"
#endif

namespace ladder {

namespace {

// >>> task 1.8.softmax: the index of the largest logit
void argmax_loop(const OpContext&, const ArgmaxArgs& args) {
  for (int64_t row = 0; row < args.logits.dim(0); ++row) {
    const float* x = detail::row_of(args.logits, row);
    float best = -INFINITY;
    int32_t best_id = kInvalidToken;
    for (int64_t id = 0; id < args.logits.dim(1); ++id) {
      if (std::isnan(x[id])) {
        best_id = kInvalidToken;
        break;
      }
      if (x[id] <= best) continue;
      best = x[id];
      best_id = static_cast<int32_t>(id);
    }
    args.ids.data<int32_t>()[row] = best_id;
  }
}
// <<< task 1.8.softmax

template <class Kernels>
void argmax_fast(const OpContext&, const ArgmaxArgs& args) {
  detail::for_each_row(args.logits, [&](int64_t row) {
    args.ids.data<int32_t>()[row] =
        static_cast<int32_t>(Kernels::argmax(detail::row_of(args.logits, row), args.logits.dim(1)));
  });
}

constexpr Variant<ArgmaxArgs> kVariants[] = {
    {.name = "loop", .idea = "one comparison after the other", .run = argmax_loop},
    LADDER_SIMD_RUNGS(argmax_fast, SamplingKernels,
                      "the largest value of every 1024 first, then its index in the winning chunk"),
#ifdef LADDER_HAS_CUDA
    {.name = "block",
     .device = DeviceType::cuda,
     .idea = "a row per block, sixteen bytes per access",
     .run = argmax_cuda_block},
    {.name = "split",
     .device = DeviceType::cuda,
     .idea = "several blocks per row, so that few rows use the whole chip",
     .run = argmax_cuda_split},
    {.name = "cluster",
     .device = DeviceType::cuda,
     .idea = "the blocks of a row are a cluster and merge in its shared memory: one kernel",
     .min_arch = 90,
     .run = argmax_cuda_cluster},
#endif
};

}  // namespace

std::span<const Variant<ArgmaxArgs>> argmax_variants() {
  return kVariants;
}

void argmax(const OpContext& ctx, const Tensor& logits, const Tensor& ids) {
  detail::check_logits(logits, "argmax");
  detail::check_per_row(ids, logits, DType::i32, "argmax");
  run_variant<ArgmaxArgs>("argmax", argmax_variants(), ctx, {logits, ids});
}

}  // namespace ladder
