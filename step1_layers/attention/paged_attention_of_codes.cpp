#include "step1_layers/attention/paged_attention_of_codes.h"

#ifdef LADDER_HAS_CUDA
#include "step1_layers/attention/paged_attention_of_codes_cuda.h"
#endif

namespace ladder {

#ifdef LADDER_HAS_CUDA
namespace {

constexpr Variant<PagedAttentionArgs> kVariants[] = {
    {.name = "naive",
     .device = DeviceType::cuda,
     .idea = "a block per query row and head, a key per warp; every code a number by itself",
     .supports = paged_attention_of_codes_takes_naive,
     .run = paged_attention_of_codes_cuda_naive},
    {.name = "tensor_core",
     .device = DeviceType::cuda,
     .idea = "128 query rows share tiles of 64 keys, whose codes become numbers once, in shared memory",
     .min_arch = 80,
     .supports = paged_attention_of_codes_takes_tensor_core,
     .run = paged_attention_of_codes_cuda_tensor_core},
    {.name = "split",
     .device = DeviceType::cuda,
     .idea =
         "decode: codes become operands of mma in registers, their scales go to scores and weights; prompts as below",
     .min_arch = 80,
     .batch_invariant = false,  // cuts keys, of prompts too, by what else is in the batch
     .supports = paged_attention_of_codes_takes_split,
     .run = paged_attention_of_codes_cuda_split},
};

}  // namespace
#endif

std::span<const Variant<PagedAttentionArgs>> paged_attention_of_codes_variants() {
#ifdef LADDER_HAS_CUDA
  return kVariants;
#else
  return {};
#endif
}

}  // namespace ladder
