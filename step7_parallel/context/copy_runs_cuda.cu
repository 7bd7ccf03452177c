#include "step1_layers/core/cuda_kernel.cuh"
#include "step7_parallel/context/copy_runs.h"

namespace ladder {
namespace {

constexpr int kThreads = 256;

// In units of Word.
struct Strides {
  int64_t part, row;
};
template <class Word>
struct Runs {
  const Word* from;
  Word* to;
  Strides from_strides, to_strides;
  int64_t rows, run, count;
};

// Neighbouring threads have neighbouring words of a run: both sides are read and written in whole lines where runs are that
// long.
template <class Word>
__global__ void __launch_bounds__(kThreads) move_runs(Runs<Word> p) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.count) return;
  const int64_t word = i % p.run, row = i / p.run % p.rows, part = i / p.run / p.rows;
  p.to[part * p.to_strides.part + row * p.to_strides.row + word] =
      p.from[part * p.from_strides.part + row * p.from_strides.row + word];
}

template <class Word>
bool fits(const CopyRunsArgs& args) {
  const int64_t element = dtype_size(args.from.tensor.dtype()), word = sizeof(Word);
  const auto is_whole = [&](int64_t elements) { return elements * element % word == 0; };
  const auto begins_whole = [&](const RunPlaces& places) {
    return is_whole(places.part_stride) && is_whole(places.row_stride) &&
           reinterpret_cast<uintptr_t>(places.tensor.raw()) % sizeof(Word) == 0;
  };
  return is_whole(args.run) && begins_whole(args.from) && begins_whole(args.to);
}

template <class Word>
void launch(const OpContext& ctx, const CopyRunsArgs& args) {
  const int64_t element = dtype_size(args.from.tensor.dtype());
  const auto words = [&](int64_t elements) { return elements * element / int64_t{sizeof(Word)}; };
  const auto strides = [&](const RunPlaces& places) {
    return Strides{words(places.part_stride), words(places.row_stride)};
  };
  const Runs<Word> p{.from = cuda_data<const Word>(args.from.tensor),
                     .to = cuda_data<Word>(args.to.tensor),
                     .from_strides = strides(args.from),
                     .to_strides = strides(args.to),
                     .rows = args.rows,
                     .run = words(args.run),
                     .count = args.parts * args.rows * words(args.run)};
  launch_kernel(ctx, move_runs<Word>, static_cast<unsigned>(ceil_div<int64_t>(p.count, kThreads)), kThreads,
                0, p);
}

}  // namespace

void copy_runs_cuda(const OpContext& ctx, const CopyRunsArgs& args) {
  if (fits<uint4>(args)) return launch<uint4>(ctx, args);
  if (fits<uint32_t>(args)) return launch<uint32_t>(ctx, args);
  if (fits<uint16_t>(args)) return launch<uint16_t>(ctx, args);
  launch<uint8_t>(ctx, args);
}

}  // namespace ladder
