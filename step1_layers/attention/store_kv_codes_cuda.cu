#include "step1_layers/attention/store_kv_codes_cuda.cuh"
#include "step1_layers/attention/store_kv_codes_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 128;

}  // namespace

// >>> task 8.6.cuda: a head's numbers to codes and their slot on a GPU
namespace {

// Any shape. A warp takes a head of one token, of its keys or of its values: once for the lowest and the highest number, which
// every lane needs before its first code, and once for the codes; the second time the head comes from L1. A lane has two
// neighbours, which share a byte where codes have four bits.
template <class T>
__global__ void __launch_bounds__(kThreads) store_kv_codes_kernel(StoreCodes<T> s) {
  allow_next_kernel();
  const int64_t item = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t token = item / (2 * s.heads), head = item / 2 % s.heads;
  const int64_t slot = token < s.tokens ? s.slots[token] : -1;
  wait_for_previous_kernel();
  if (slot < 0) return;
  const CodesSide<T>& side = item % 2 == 0 ? s.k : s.v;
  const T* from = side.source(token, head);
  const auto dim = static_cast<int>(side.dim);
  float low = INFINITY, high = -INFINITY;
  for (int i = lane; i < dim; i += kWarp) {
    const float x = kept_number(to_float(from[i]));
    low = fminf(low, x);
    high = fmaxf(high, x);
  }
  const KvScale scale = kv_scale(s.kept_as, -warp_max(-low), warp_max(high));
  uint8_t* codes = side.codes_of(slot, s.block_size, head);
  for (int i = 2 * lane; i < dim; i += 2 * kWarp) {
    const bool has_second = i + 1 < dim;
    const uint32_t first = kv_code(s.kept_as, kept_number(to_float(from[i])), scale);
    const uint32_t second = has_second ? kv_code(s.kept_as, kept_number(to_float(from[i + 1])), scale) : 0;
    if (s.kept_as == KvCacheDType::int4) {
      codes[i / 2] = static_cast<uint8_t>(first | second << 4);
    } else {
      codes[i] = static_cast<uint8_t>(first);
      if (has_second) codes[i + 1] = static_cast<uint8_t>(second);
    }
  }
  if (lane == 0) *side.scales_of(slot, s.heads, head) = {scale.scale, scale.lowest};
}

}  // namespace

void store_kv_codes_cuda(const OpContext& ctx, const StoreKvArgs& args) {
  if (args.slot_mapping.dim(0) == 0 || args.k.dim(1) == 0) return;
  check_slots(args.cache);
  with_cuda_type(args.k.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const StoreCodes<T> s = store_codes<T>(args);
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(s.tokens * s.heads * 2, kThreads / kWarp));
    launch_kernel(ctx, store_kv_codes_kernel<T>, blocks, kThreads, 0, s);
  });
}

// <<< task 8.6.cuda

}  // namespace ladder
