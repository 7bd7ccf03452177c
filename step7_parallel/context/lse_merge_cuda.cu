#include <algorithm>

#include "step7_parallel/context/lse_merge.cuh"
#include "step7_parallel/context/lse_merge.h"

namespace ladder {
namespace {

constexpr int kWarps = 4;

// one_kernel
// parts [parts, rows, heads, dim], out [rows, heads, dim], any dim; a warp for each row and head.
// All lanes read the parts' lse, which are few, and so none waits for another's: the values are read once, four to a lane
// and access where that is aligned, 128 values to a warp. It waits for memory and nothing else.
template <class Part, class Out>
struct MergePointers {
  const Part* parts;
  const float* part_lse;
  Out* out;
  float* lse;                                // nullptr: not wanted
  const float *onto, *onto_lse;              // nullptr: there is none; contiguous, may be out and lse
  int64_t num_parts, num_items, heads, dim;  // an item: a row's head
  int64_t part_stride, row_stride, lse_part_stride, lse_row_stride, out_row_stride, out_lse_row_stride;
};

template <int size, class Part, class Out>
__global__ void __launch_bounds__(kWarps* kWarp) merge_items(MergePointers<Part, Out> p) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (item >= p.num_items) return;
  const int64_t row = item / p.heads, head = item % p.heads, lane = threadIdx.x % kWarp;
  const float* lse_of_parts = p.part_lse + row * p.lse_row_stride + head;
  float* lse = p.lse == nullptr ? nullptr : p.lse + row * p.out_lse_row_stride + head;
  const auto lse_of = [&](int64_t part) { return counted_lse(lse_of_parts[part * p.lse_part_stride]); };
  const float before = p.onto != nullptr ? counted_lse(p.onto_lse[item]) : -INFINITY;
  __syncwarp();  // all lanes have read it

  LseSum sum;
  sum.see(before);
  for (int64_t part = 0; part < p.num_parts; ++part) sum.see(lse_of(part));
  sum.add(before);
  for (int64_t part = 0; part < p.num_parts; ++part) sum.add(lse_of(part));
  const float total = sum.total(), weight_before = lse_weight(before, total);
  if (lse != nullptr && lane == 0) *lse = total;

  const Part* values = p.parts + row * p.row_stride + head * p.dim;
  Out* out = p.out + row * p.out_row_stride + head * p.dim;
  for (int64_t at = lane * size; at < p.dim; at += kWarp * size) {
    float merged[size] = {};
    Run<Out, size>& result = *reinterpret_cast<Run<Out, size>*>(out + at);
    if (p.onto != nullptr)
      add_weighted(merged, weight_before,
                   *reinterpret_cast<const Run<float, size>*>(p.onto + item * p.dim + at));
    for (int64_t part = 0; part < p.num_parts; ++part)
      add_weighted(merged, lse_weight(lse_of(part), total),
                   *reinterpret_cast<const Run<Part, size>*>(values + part * p.part_stride + at));
    Run<Out, size> rounded;
#pragma unroll
    for (int i = 0; i < size; ++i) rounded.value[i] = from_float<Out>(merged[i]);
    result = rounded;
  }
}

}  // namespace

void lse_merge_cuda(const OpContext& ctx, const LseMergeArgs& args) {
  const Tensor &parts = args.parts, &out = args.out;
  const int64_t items = out.dim(0) * out.dim(1);
  if (items == 0) return;
  with_cuda_type(parts.dtype(), [&](auto part_tag) {
    with_cuda_type(out.dtype(), [&](auto out_tag) {
      using Part = decltype(part_tag);
      using Out = decltype(out_tag);
      const MergePointers<Part, Out> p{.parts = cuda_data<const Part>(parts),
                                       .part_lse = cuda_data<const float>(args.part_lse),
                                       .out = cuda_data<Out>(out),
                                       .lse = args.lse.defined() ? cuda_data<float>(args.lse) : nullptr,
                                       .onto = cuda_data<const float>(args.onto),
                                       .onto_lse = cuda_data<const float>(args.onto_lse),
                                       .num_parts = parts.dim(0),
                                       .num_items = items,
                                       .heads = out.dim(1),
                                       .dim = out.dim(2),
                                       .part_stride = parts.stride(0),
                                       .row_stride = parts.stride(1),
                                       .lse_part_stride = args.part_lse.stride(0),
                                       .lse_row_stride = args.part_lse.stride(1),
                                       .out_row_stride = out.stride(0),
                                       .out_lse_row_stride = args.lse.defined() ? args.lse.stride(0) : 0};
      const auto in_fours = [](const void* data, std::initializer_list<int64_t> strides, int64_t bytes) {
        return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(4 * bytes) == 0 &&
               std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride % 4 == 0; });
      };
      const bool fours = in_fours(p.parts, {p.dim, p.part_stride, p.row_stride}, sizeof(Part)) &&
                         in_fours(p.out, {p.dim, p.out_row_stride}, sizeof(Out)) &&
                         in_fours(p.onto, {p.dim}, sizeof(float));
      launch_kernel(ctx, fours ? merge_items<4, Part, Out> : merge_items<1, Part, Out>,
                    static_cast<unsigned>(ceil_div<int64_t>(items, kWarps)), kWarps * kWarp, 0, p);
    });
  });
}

}  // namespace ladder
