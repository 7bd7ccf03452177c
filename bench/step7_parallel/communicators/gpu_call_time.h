#pragma once
// The time of a call that several GPUs make together.
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "step1_layers/core/device_graph.h"
#include "step7_parallel/communicators/gpu/gpu_ranks.h"

namespace ladder {

// Seconds of one of call(0), ..., call(sets - 1), made `calls` times in turn in a graph: of eleven replays the median, by events
// of the rank that asks, divided by the calls.
inline double gpu_call_seconds(const GpuRank& rank, int calls, int sets,
                               const std::function<void(int)>& call) {
  for (int i = 0; i < sets; ++i) call(i);
  device_synchronize(rank.ctx.device, rank.ctx.stream);
  rank.host.barrier({});
  DeviceGraph graph;
  graph.capture(rank.ctx, [&] {
    for (int i = 0; i < calls; ++i) call(i % sets);
  });
  std::vector<double> times;
  DeviceEvent begin, end;
  for (int replay = 0; replay < 11; ++replay) {
    rank.host.barrier({});
    begin.record(rank.ctx);
    graph.replay(rank.ctx);
    end.record(rank.ctx);
    end.wait();
    times.push_back(end.seconds_since(begin) / calls);
  }
  rank.host.barrier({});
  std::nth_element(times.begin(), times.begin() + 5, times.end());
  return times[5];
}

// What all benchmarks of a file need, measured by the first of them, as making a group takes seconds: seconds by name, which
// one rank notes; or why there are none.
struct GpuSeconds {
  std::string error;
  std::map<std::string, double> seconds;
};
using MeasureOnGpus = void (*)(const GpuRank& rank, std::map<std::string, double>& seconds);

inline GpuSeconds measure_on_gpus(int size, MeasureOnGpus measure) {
  GpuSeconds measured{.error = gpu_ranks_obstacle(size)};
  if (!measured.error.empty()) return measured;
  for (const std::string& error : run_gpu_ranks(
           size, std::chrono::seconds(300), [&](const GpuRank& rank) { measure(rank, measured.seconds); }))
    if (measured.error.empty()) measured.error = error;
  return measured;
}

}  // namespace ladder
