// An all_reduce by every CPU communicator of the table, f32. The time of one call, on rank 0, of many in a row: what
// starting the ranks takes is left out. A repetition starts them anew: take the median of several
// (--benchmark_repetitions=5).
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "step7_parallel/communicators/kinds.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;

const OpContext kContext;
constexpr int64_t kBytes[] = {8 << 10, 32 << 10, 256 << 10, 1 << 20, 16 << 20};

int calls_of(int64_t bytes) {
  return static_cast<int>(std::clamp<int64_t>((64 << 20) / bytes, 20, 1000));
}

// Written by rank 0, which may be another process.
class SharedSeconds {
 public:
  SharedSeconds()
      : value_(static_cast<double*>(
            ::mmap(nullptr, sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedSeconds() { ::munmap(value_, sizeof(double)); }
  double& operator*() { return *value_; }

 private:
  double* value_;
};

void measure(Communicator& group, int64_t bytes, double& seconds) {
  const Tensor value = Tensor::zeros({bytes / 4}, DType::f32);
  for (int call = 0; call < 3; ++call) group.all_reduce(kContext, value);
  const auto begin = std::chrono::steady_clock::now();
  for (int call = 0; call < calls_of(bytes); ++call) group.all_reduce(kContext, value);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (group.rank() == 0) seconds = took.count() / calls_of(bytes);
}

// Empty: `seconds` is measured.
std::string run_here(const CommunicatorKind& kind, int size, int64_t bytes, double& seconds) {
  SharedSeconds shared;
  for (const std::string& error :
       kind.run(size, 60s, [&](int, Communicator& group) { measure(group, bytes, *shared); }))
    if (!error.empty()) return error;
  seconds = *shared;
  return {};
}

std::string run_by_mpirun([[maybe_unused]] int size, [[maybe_unused]] int64_t bytes,
                          [[maybe_unused]] double& seconds) {
#ifdef MPI_RANKS
  const std::string command = fmt::format(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -s KILL 90 "
      "mpirun --oversubscribe --bind-to none --timeout 60 -n {} {} time {} {} 2> /dev/null",
      size, MPI_RANKS, bytes, calls_of(bytes));
  FILE* const out = ::popen(command.c_str(), "r");
  const bool is_measured = out != nullptr && std::fscanf(out, "%lf", &seconds) == 1;
  const bool ended = out != nullptr && ::pclose(out) == 0;
  return is_measured && ended ? "" : "mpirun failed";
#else
  return "this build has no MPI";
#endif
}

void BM_AllReduce(benchmark::State& state, const CommunicatorKind& kind) {
  const auto size = static_cast<int>(state.range(0));
  const int64_t bytes = state.range(1);
  if (const std::string obstacle = kind.obstacle(size); !obstacle.empty())
    return state.SkipWithError(obstacle.c_str());
  for (auto _ : state) {
    double seconds = 0;
    const std::string error =
        kind.run ? run_here(kind, size, bytes, seconds) : run_by_mpirun(size, bytes, seconds);
    if (!error.empty()) return state.SkipWithError(error.c_str());
    state.SetIterationTime(seconds);
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

const bool kRegistered = [] {
  for (const CommunicatorKind& kind : communicator_kinds()) {
    if (kind.device != DeviceType::cpu) continue;
    auto* const all =
        benchmark::RegisterBenchmark(fmt::format("BM_AllReduce_{}", kind.name).c_str(),
                                     [&kind](benchmark::State& state) { BM_AllReduce(state, kind); });
    all->ArgNames({"ranks", "bytes"})->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);
    for (const int64_t size : {2, 4})
      for (const int64_t bytes : kBytes) all->Args({size, bytes});
  }
  return true;
}();

}  // namespace
}  // namespace ladder
