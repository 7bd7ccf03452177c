// The clear rungs of experts in codes on a GPU: naive, and for many tokens written_out.
#include "step1_layers/moe/experts_cuda.cuh"
#include "step8_advanced/quantization/kernels/experts_x_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_experts_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/kernels/row_codes.cuh"
#include "step8_advanced/quantization/kernels/weight_rows.h"

namespace ladder {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// naive
// Any shape, dtype and codes. As the naive rung of the dense experts (step1_layers/moe/experts_cuda.cu): a warp per value, one kernel
// for the activated values of all pairs, one for the outputs. Every pair reads its expert's codes anew.
template <WeightCodes type, class Weight, class T>
__device__ float warp_dot(const Weight& weight, int64_t row, const T* x, int k) {
  float sum = 0;
  for (int first = static_cast<int>(threadIdx.x) % kWarp * kCodesAtOnce; first < k;
       first += kWarp * kCodesAtOnce) {
    RowOfCodes codes;
    weight.load(row, first, codes);
#pragma unroll
    for (int c = 0; c < kCodesAtOnce; ++c)
      if (first + c < k)
        sum += to_float(x[first + c]) * (number_of<type>(codes.code[c], codes.zero[c]) * codes.scale[c]);
  }
  return warp_sum(sum);
}

// activated [pairs, width]; pair p takes row p / pairs_of_row of x [.., k].
template <class T, WeightCodes type, class Weight>
__global__ void __launch_bounds__(kThreads)
    activate_codes_naive(Experts<T> e, Weight gate_up, const T* x, int64_t x_stride, int pairs_of_row, int k,
                         T* activated) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t value = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (value >= int64_t{e.pairs()} * e.width) return;
  const int pair = static_cast<int>(value / e.width), column = static_cast<int>(value % e.width);
  const int expert = e.expert_of(pair);
  if (expert < 0) return;
  const T* row = x + pair / pairs_of_row * x_stride;
  const int64_t gate_row = int64_t{expert} * 2 * e.width + column;
  const float gate = warp_dot<type>(gate_up, gate_row, row, k);
  const float up = warp_dot<type>(gate_up, gate_row + e.width, row, k);
  if (threadIdx.x % kWarp == 0) activated[value] = from_float<T>(silu_and_mul<T>(gate, up));
}

template <class T, WeightCodes type, class Weight>
__global__ void __launch_bounds__(kThreads)
    project_codes_naive(Experts<T> e, Weight down, const T* activated, int k) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t value = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (value >= int64_t{e.tokens} * e.hidden) return;
  const int token = static_cast<int>(value / e.hidden), column = static_cast<int>(value % e.hidden);
  float sum = 0;
  for (int pair = token * e.top_k; pair < (token + 1) * e.top_k; ++pair)
    if (const int expert = e.expert_of(pair); expert >= 0)
      sum += e.weights[pair] *
             warp_dot<type>(down, int64_t{expert} * e.hidden + column, activated + int64_t{pair} * k, k);
  if (threadIdx.x % kWarp == 0) e.out[token * e.out_stride + column] = from_float<T>(sum);
}

// What all experts take as x's dtype.
int64_t written_out_bytes(const QuantizedExpertsArgs& args) {
  const QuantizedWeight &gate_up = *args.gate_up.weight, &down = *args.down.weight;
  return (gate_up.n * gate_up.k + down.n * down.k) * dtype_size(args.x.dtype());
}
constexpr int64_t kMaxWrittenOut = int64_t{4} << 30;

}  // namespace

void quantized_experts_naive(const OpContext& ctx, const QuantizedExpertsArgs& args) {
  Arena& arena = *ctx.arena;
  ArenaScope scope(arena);
  const QuantizedWeight &gate_up = *args.gate_up.weight, &down = *args.down.weight;
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const Experts<T> e{.expert_ids = cuda_data<int32_t>(args.expert_ids),
                       .weights = cuda_data<float>(args.weights),
                       .out = cuda_data<T>(args.out),
                       .out_stride = args.out.stride(0),
                       .tokens = static_cast<int>(args.x.dim(0)),
                       .top_k = static_cast<int>(args.expert_ids.dim(1)),
                       .experts = static_cast<int>(args.experts),
                       .hidden = static_cast<int>(args.x.dim(1)),
                       .width = static_cast<int>(args.width())};
    const auto blocks = [](int64_t values) {
      return static_cast<unsigned>(ceil_div<int64_t>(values, kWarps));
    };
    const RowsOfPairs x = prepared_rows(ctx, args.gate_up, args.expert_ids, {args.x, e.top_k}, arena);
    const Tensor activated = arena.take({e.pairs(), e.width}, args.x.dtype());
    with_readable_codes(gate_up, [&](auto type, auto weight) {
      launch_kernel(ctx, activate_codes_naive<T, decltype(type)::value, decltype(weight)>,
                    blocks(int64_t{e.pairs()} * e.width), kThreads, 0, e, weight, cuda_data<T>(x.rows),
                    x.rows.stride(0), x.pairs_of_row, static_cast<int>(gate_up.k), cuda_data<T>(activated));
    });
    const RowsOfPairs rows = prepared_rows(ctx, args.down, args.expert_ids, {activated, 1}, arena);
    with_readable_codes(down, [&](auto type, auto weight) {
      launch_kernel(ctx, project_codes_naive<T, decltype(type)::value, decltype(weight)>,
                    blocks(int64_t{e.tokens} * e.hidden), kThreads, 0, e, weight, cuda_data<T>(rows.rows),
                    static_cast<int>(down.k));
    });
  });
}

bool quantized_experts_take_naive(const QuantizedExpertsArgs& args) {
  return expert_rows_are_rounded_on_a_gpu(args);
}

// written_out
// x's dtype of 16 bits, and activated values that are not rounded: between its two products the dense kernel asks nobody. Reading codes
// and writing 16 bits for all experts costs more than the product of few tokens, and memory for a layer's dense experts.
void quantized_experts_written_out(const OpContext& ctx, const QuantizedExpertsArgs& args) {
  Arena& arena = *ctx.arena;
  ArenaScope scope(arena);
  const QuantizedWeight &gate_up = *args.gate_up.weight, &down = *args.down.weight;
  const int64_t experts = args.experts, hidden = args.x.dim(1), width = args.width();
  const Tensor gate_up_rows = arena.take({experts, 2 * width, hidden}, args.x.dtype());
  const Tensor down_rows = arena.take({experts, hidden, width}, args.x.dtype());
  write_out_weight(ctx, gate_up, 0, gate_up_rows.view({gate_up.n, gate_up.k}));
  write_out_weight(ctx, down, 0, down_rows.view({down.n, down.k}));
  const RowsOfPairs x = prepared_rows(ctx, args.gate_up, args.expert_ids, {args.x, 1}, arena);
  moe_experts(ctx, {x.rows, args.expert_ids, args.weights, gate_up_rows, down_rows, args.out});
}

bool quantized_experts_take_written_out(const QuantizedExpertsArgs& args) {
  const auto& rounded = args.gate_up.activations;
  return dtype_size(args.x.dtype()) == 2 && expert_rows_are_rounded_on_a_gpu(args) &&
         (!rounded || !have_stored_scale(*rounded)) && !args.down.activations &&
         !args.down.weight->columns.defined() && !have_own_orders(*args.gate_up.weight) &&
         args.gate_up.weight->k == args.x.dim(1) && args.expert_ids.numel() >= args.experts &&
         written_out_bytes(args) <= kMaxWrittenOut;
}

}  // namespace ladder
