#pragma once
// Benchmarks of the CUDA rungs: the same tables and problems as bench_support.h, timed on the GPU.
//
// The calls of a benchmark, over operands that rotate past the L2 cache, are captured into one CUDA graph of
// a millisecond or more; the time of a call is that of the median replay, by events, divided by the number of
// calls. So launch overhead on the CPU, which the engine hides in the same way, is not what is measured.
// bytes_per_second is reported with its fraction of what a device-to-device copy of as many bytes (read and
// written together) moves in the same run, and beside it of what a copy of 4 GiB moves; flops with its
// fraction of what the library's 8192-cubed bf16 product reaches.
#include "bench/support/bench_support.h"
#include "tests/support/arguments.h"

namespace ladder::bench {

// A context on GPU 0 for the life of the process; nullptr where there is none.
const OpContext* cuda_bench_context();

// How many sets of operands of so many bytes to rotate over, so that none is still in the L2 cache.
int rotating_sets(double bytes);

// Bytes read and written per second by a copy that reads and writes so many bytes together, the faster of the
// driver's copy and of a plain kernel, launched one after the other over rotating buffers; and by one of 4
// GiB, which no start and no end slows down. The rate of the library's bf16 product. Medians, each measured
// once.
double cuda_copy_bandwidth(double bytes);
double cuda_copy_bandwidth();
double cuda_matmul_rate();

// Warms up, captures call(0), ..., call(calls - 1), over again where they are short, and replays them: 15
// times, fewer where calls are slow, but never fewer than 3. The median is the time of the benchmark's one
// iteration. Calls of more than 100 ms are left out. `prepare(i)`, if there is one, is captured before
// call(i); what it takes alone is subtracted.
void time_cuda_graph(benchmark::State& state, int calls, const std::function<void(int)>& call,
                     const std::function<void(int)>& prepare = {});
// Counters of one call of so much work, from the time measured last.
void set_cuda_counters(benchmark::State& state, double bytes, double flops, double operations = 0);

// A copy of the operands on the GPU.
template <class Args>
Args to_gpu(Args args, Device device) {
  for (Tensor* tensor : ladder::testing::tensors_of(args)) {
    if (!tensor->defined()) continue;
    *tensor = (tensor->is_contiguous() ? *tensor : tensor->clone()).to(device);
  }
  return args;
}

// One benchmark "<op>/<problem>/cuda:<variant>" per CUDA row of the table and problem.
template <class Args>
void register_cuda_ladder(const std::string& op, std::span<const Variant<Args>> table,
                          const std::vector<BenchProblem<Args>>& problems) {
  for (const BenchProblem<Args>& problem : problems) {
    const auto key = std::make_shared<int>();
    for (const Variant<Args>& rung : table) {
      if (rung.device != DeviceType::cuda) continue;
      benchmark::RegisterBenchmark(
          (op + "/" + problem.name + "/cuda:" + std::string(rung.name)).c_str(),
          [&rung, problem, key](benchmark::State& state) {
            const OpContext* ctx = cuda_bench_context();
            if (ctx == nullptr) {
              state.SkipWithError("no GPU");
              return;
            }
            OperandSlot& slot = operand_slot();
            if (slot.key != key) {
              slot = {};
              const Args one = problem.make();
              auto sets = std::make_shared<std::vector<Args>>();
              for (int i = 0; i < rotating_sets(problem.bytes); ++i)
                sets->push_back(to_gpu(one, ctx->device));
              slot = {key, sets};
            }
            const auto& sets = *std::static_pointer_cast<std::vector<Args>>(slot.operands);
            state.SetLabel(std::string(rung.idea));
            if (!can_run(rung, *ctx, sets[0])) {
              state.SkipWithError("this rung does not take this problem");
              return;
            }
            const auto set = [&](int i) -> const Args& { return sets[static_cast<size_t>(i) % sets.size()]; };
            std::function<void(int)> prepare;
            if (problem.overwritten)
              // The next call's, so that this call's work pushes it out of the cache.
              prepare = [&, fresh = problem.overwritten(to_gpu(problem.make(), ctx->device))](int i) {
                problem.overwritten(set(i + 1)).copy_from(fresh, ctx->stream);
              };
            time_cuda_graph(
                state, static_cast<int>(sets.size()), [&](int i) { rung.run(*ctx, set(i)); }, prepare);
            if (!state.error_occurred())
              set_cuda_counters(state, problem.bytes, problem.flops, problem.operations);
          })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace ladder::bench
