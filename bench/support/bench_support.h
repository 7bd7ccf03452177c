#pragma once
// What every benchmark shares: the machine's own ceilings, operands that do not sit in the cache, and one
// registration for all rungs of an operator's ladder.
//
// A benchmark reports bytes/s and FLOP/s and, from the same run, the fraction of what this machine reaches
// with the same threads: of_read_bandwidth against read_bandwidth(), of_matmul_rate against matmul_rate().
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"

namespace ladder::bench {

// Bytes per second that num_threads() threads read from memory: the best of several sums over 1 GiB. Measured
// once per process and number of threads.
double read_bandwidth();
// FLOP/s of the library's matrix product (oneDNN; without it our fastest rung) of a 512-token prefill: [512,
// 1024] times [3072, 1024]^T. Measured once per process, dtype and number of threads.
double matmul_rate(DType dtype);
// How many bytes of operands a benchmark should rotate over, so that each call finds its own in memory and
// not in a cache: twice the last-level cache, at least 64 MiB.
int64_t rotation_bytes();

// Uniform in [-1, 1), quickly made.
Tensor random_tensor(const Shape& shape, DType dtype, uint64_t seed = 1);

// The counters of calls that took `seconds` together and did so much work in all. 0 leaves a counter out.
void set_counters(benchmark::State& state, double seconds, double bytes, double flops, DType dtype,
                  double operations = 0);

// The operands of the problem that is being timed, for register_ladder.
struct OperandSlot {
  std::shared_ptr<int> key;
  std::shared_ptr<void> operands;
};
OperandSlot& operand_slot();

// One size of an operator. `Args` is its argument struct.
template <class Args>
struct BenchProblem {
  std::string name;            // "decode/bf16/rows:1"
  DType dtype = DType::f32;    // whose matrix rate is the ceiling
  double bytes = 0;            // that one call must read and write at least
  double flops = 0;            // of matrix products, whose ceiling is matmul_rate; 0: none
  double operations = 0;       // other arithmetic, roughly: where the problem stands under the roofline
  std::function<Args()> make;  // one fresh set of operands
  // On a GPU: the operand that a call destroys, if it does; it is made anew before every call, outside the
  // time.
  Tensor (*overwritten)(const Args&) = nullptr;
};

// One benchmark "<op>/<problem>/<variant>" per row of the table that can run on this machine and per problem.
template <class Args>
void register_ladder(const std::string& op, std::span<const Variant<Args>> table,
                     const std::vector<BenchProblem<Args>>& problems) {
  for (const BenchProblem<Args>& problem : problems) {
    // The rungs of one problem share its operands. The library calls a benchmark several times while it looks
    // for a number of iterations, so they stay until a rung of another problem needs the memory.
    const auto key = std::make_shared<int>();
    for (const Variant<Args>& rung : table) {
      if (!runs_here(rung, OpContext{})) continue;
      benchmark::RegisterBenchmark(
          (op + "/" + problem.name + "/" + std::string(rung.name)).c_str(),
          [&rung, problem, key](benchmark::State& state) {
            OperandSlot& slot = operand_slot();
            if (slot.key != key) {
              slot = {};
              auto sets = std::make_shared<std::vector<Args>>();
              const auto rotated = static_cast<double>(rotation_bytes());
              // What is far larger than the cache leaves nothing of itself there, and memory may not hold two.
              const double least = problem.bytes > 16 * rotated ? 1 : 2;
              const double count = 1 + rotated / std::max(problem.bytes, 1.0);
              for (int i = 0; i < static_cast<int>(std::clamp(count, least, 512.0)); ++i)
                sets->push_back(problem.make());
              slot = {key, sets};
            }
            const auto& sets = *std::static_pointer_cast<std::vector<Args>>(slot.operands);
            state.SetLabel(std::string(rung.idea));
            if (rung.supports != nullptr && !rung.supports(sets[0])) {
              state.SkipWithError("this rung does not take this problem");
              return;
            }
            Arena arena;
            OpContext ctx;
            ctx.arena = &arena;
            size_t next = 0;
            const auto start = std::chrono::steady_clock::now();
            for (auto _ : state) {
              rung.run(ctx, sets[next]);
              benchmark::ClobberMemory();
              if (++next == sets.size()) next = 0;
            }
            const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
            const auto calls = static_cast<double>(state.iterations());
            set_counters(state, elapsed.count(), problem.bytes * calls, problem.flops * calls, problem.dtype,
                         problem.operations * calls);
          })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace ladder::bench
