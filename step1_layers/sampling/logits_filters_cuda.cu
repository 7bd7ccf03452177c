// Temperature, min-p, top-k and top-p, without sorting.
#include "step1_layers/sampling/noise_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 1024;
constexpr int kBins = 2048;

// elementwise
// Any shape. A thread divides four logits of a row, a block's width apart, so that a warp's accesses are
// adjacent.
constexpr int kDivideThreads = 256, kDivided = 4;
__global__ void temperature_kernel(float* logits, int64_t stride, int64_t vocab, int64_t pieces,
                                   const float* temperature) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t row = blockIdx.x / pieces;
  const float divisor = temperature[row];
  if (divisor < kMinTemperature || divisor == 1.0f) return;
  float* x = logits + row * stride;
  const int64_t first = blockIdx.x % pieces * (kDivideThreads * kDivided) + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kDivided; ++j) {
    const int64_t i = first + j * kDivideThreads;
    if (i < vocab) x[i] = __fdiv_rn(x[i], divisor);
  }
}

// block
// Any shape. A block owns a row and reads it twice: for the largest logit, and to cut what lies too far
// below.
__global__ void __launch_bounds__(kThreads)
    min_p_kernel(float* logits, int64_t stride, int64_t vocab, const float* min_p) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const float share = min_p[blockIdx.x];
  if (share <= 0.0f) return;
  float* x = logits + int64_t{blockIdx.x} * stride;
  float largest = -INFINITY;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) largest = fmaxf(largest, x[i]);
  const float threshold = block_max(largest) + logf(share);
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads)
    if (x[i] < threshold) x[i] = -INFINITY;
}

// Weights of tokens, counted into bins. Integers: the result does not depend on the order of the additions,
// so the same row gives the same bits in every run. A 64-bit sum is two words, the carry added by the thread
// that caused it, because shared memory adds 32 bits at a time.
struct Histogram {
  uint32_t low[kBins], high[kBins];

  __device__ void clear() {
    for (int i = threadIdx.x; i < kBins; i += kThreads) low[i] = high[i] = 0;
    __syncthreads();
  }
  __device__ void add(int bin, uint64_t weight) {
    const auto part = static_cast<uint32_t>(weight);
    const uint32_t before = atomicAdd(&low[bin], part);
    const uint32_t carry = static_cast<uint32_t>(weight >> 32) + (before + part < before ? 1 : 0);
    if (carry != 0) atomicAdd(&high[bin], carry);
  }
  __device__ uint64_t at(int bin) const { return uint64_t{high[bin]} << 32 | low[bin]; }
};

struct Crossing {
  int bin;
  uint64_t above;  // the weight of the bins above it
};

// Going down from the last bin: where the weight reaches `wanted` (at least 1); bin -1 where it never does.
// Each thread sums two bins, a scan over the block gives what lies above them.
__device__ Crossing find_crossing(const Histogram& histogram, uint64_t wanted) {
  __shared__ uint64_t warp_sums[kThreads / kWarp];
  __shared__ Crossing found;
  const int top = kBins - 1 - 2 * static_cast<int>(threadIdx.x);  // thread 0 has the two highest bins
  const uint64_t first = histogram.at(top), both = first + histogram.at(top - 1);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  uint64_t sum = both;  // inclusive over the warp
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const uint64_t other = __shfl_up_sync(kAllLanes, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == kWarp - 1) warp_sums[warp] = sum;
  if (threadIdx.x == 0) found = {-1, 0};
  __syncthreads();
  uint64_t above = sum - both;
  for (int i = 0; i < warp; ++i) above += warp_sums[i];
  if (above < wanted && above + both >= wanted)
    found = above + first >= wanted ? Crossing{top, above} : Crossing{top - 1, above + first};
  __syncthreads();
  return found;
}

// The key at which the weight of the tokens, taken in descending order, reaches `wanted`; `above` is the
// weight of the tokens with larger keys. A radix search: eleven, eleven and ten bits of the key, each level
// counts only the tokens that share the digits found so far. weight(x) of 0 leaves a token out.
struct Threshold {
  uint32_t key;
  uint64_t above;
  bool exists = true;  // false: all tokens together weigh less than `wanted`
};
template <class Weight>
__device__ Threshold radix_search(const float* x, int64_t vocab, uint64_t wanted, Histogram& histogram,
                                  Weight&& weight) {
  uint32_t prefix = 0, mask = 0;
  uint64_t above = 0;
#pragma unroll 1
  for (int level = 0; level < 3; ++level) {
    const int shift = level == 0 ? 21 : level == 1 ? 10 : 0;
    const uint32_t digits = level == 2 ? 1023 : 2047;
    histogram.clear();
    for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
      const uint32_t key = key_of(x[i]);
      if ((key & mask) != prefix) continue;
      const uint64_t w = weight(x[i]);
      if (w != 0) histogram.add(static_cast<int>(key >> shift & digits), w);
    }
    __syncthreads();
    const Crossing crossing = find_crossing(histogram, wanted - above);
    if (crossing.bin < 0) return {0, 0, false};
    above += crossing.above;
    prefix |= static_cast<uint32_t>(crossing.bin) << shift;
    mask |= digits << shift;
  }
  return {prefix, above};
}

// radix
// Any shape. A block owns a row, finds the k-th largest logit in three passes and masks in a fourth. A sort
// of 151,936 keys would move each of them many times.
__global__ void __launch_bounds__(kThreads)
    top_k_kernel(float* logits, int64_t stride, int64_t vocab, const int32_t* top_k) {
  __shared__ Histogram histogram;
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t k = top_k[blockIdx.x];
  if (k <= 0 || k >= vocab) return;
  float* x = logits + int64_t{blockIdx.x} * stride;
  // Tokens that are cut already are not counted: all of them would meet in one bin.
  const Threshold threshold = radix_search(x, vocab, static_cast<uint64_t>(k), histogram,
                                           [](float logit) { return uint64_t{logit > -INFINITY}; });
  if (!threshold.exists) return;  // fewer than k are left
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads)
    if (key_of(x[i]) < threshold.key) x[i] = -INFINITY;
}

// radix
// Any shape. As top-k, but tokens weigh e^(logit - largest), as integers of 2^-40. Tokens that equal the last
// one kept stay in the order of their ids, which takes one more pass where not all of them stay.
__global__ void __launch_bounds__(kThreads)
    top_p_kernel(float* logits, int64_t stride, int64_t vocab, const float* top_p) {
  __shared__ Histogram histogram;
  allow_next_kernel();
  wait_for_previous_kernel();
  const double share = top_p[blockIdx.x];
  if (share >= 1.0) return;
  float* x = logits + int64_t{blockIdx.x} * stride;
  float largest = -INFINITY;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) largest = max_or_nan(largest, x[i]);
  largest = block_max_or_nan(largest);
  // Nothing is left to cut, or all of the mass is with the infinite, or there is no mass.
  if (!isfinite(largest)) return;
  auto weight = [largest](float logit) {
    return static_cast<uint64_t>(__fmul_rn(expf(logit - largest), 0x1p40f));
  };
  uint64_t total = 0;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) total += weight(x[i]);
  total = block_reduce(total, uint64_t{0}, [](uint64_t a, uint64_t b) { return a + b; });
  const double mass = ceil(share * static_cast<double>(total));
  const uint64_t wanted = mass < 1.0 ? 1 : static_cast<uint64_t>(mass);

  const Threshold threshold = radix_search(x, vocab, wanted < total ? wanted : total, histogram, weight);
  int64_t equal = 0;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) {
    const uint32_t key = key_of(x[i]);
    if (key == threshold.key) ++equal;
    if (key < threshold.key) x[i] = -INFINITY;
  }
  equal = block_reduce(equal, int64_t{0}, [](int64_t a, int64_t b) { return a + b; });
  const uint64_t each = weight(float_of(threshold.key));
  const uint64_t rest = (wanted < total ? wanted : total) - threshold.above;
  const auto kept = static_cast<int64_t>((rest + each - 1) / each);
  if (kept >= equal) return;

  int64_t before = 0;  // equal tokens with smaller ids
  for (int64_t first = 0; first < vocab; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const bool is_equal = i < vocab && key_of(x[i]) == threshold.key;
    const unsigned ballot = __ballot_sync(kAllLanes, is_equal);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (lane == 0) histogram.low[warp] = static_cast<uint32_t>(__popc(ballot));
    __syncthreads();
    int64_t rank = before + __popc(ballot & ((1u << lane) - 1));
    for (int w = 0; w < kThreads / kWarp; ++w) {
      if (w < warp) rank += histogram.low[w];
      before += histogram.low[w];
    }
    if (is_equal && rank >= kept) x[i] = -INFINITY;
    __syncthreads();
  }
}

template <class Value, class Kernel>
void launch(const OpContext& ctx, const LogitsFilterArgs& args, Kernel kernel) {
  if (args.logits.dim(0) == 0) return;
  launch_kernel(ctx, kernel, static_cast<unsigned>(args.logits.dim(0)), kThreads, 0,
                cuda_data<float>(args.logits), args.logits.stride(0), args.logits.dim(1),
                cuda_data<Value>(args.value));
}

}  // namespace

void apply_temperature_cuda(const OpContext& ctx, const LogitsFilterArgs& args) {
  const int64_t rows = args.logits.dim(0), vocab = args.logits.dim(1);
  if (rows == 0) return;
  const int64_t pieces = ceil_div<int64_t>(vocab, kDivideThreads * kDivided);
  launch_kernel(ctx, temperature_kernel, static_cast<unsigned>(rows * pieces), kDivideThreads, 0,
                cuda_data<float>(args.logits), args.logits.stride(0), vocab, pieces,
                cuda_data<float>(args.value));
}

void mask_min_p_cuda(const OpContext& ctx, const LogitsFilterArgs& args) {
  launch<const float>(ctx, args, min_p_kernel);
}
void mask_top_k_cuda_radix(const OpContext& ctx, const LogitsFilterArgs& args) {
  launch<const int32_t>(ctx, args, top_k_kernel);
}
void mask_top_p_cuda_radix(const OpContext& ctx, const LogitsFilterArgs& args) {
  launch<const float>(ctx, args, top_p_kernel);
}

}  // namespace ladder
