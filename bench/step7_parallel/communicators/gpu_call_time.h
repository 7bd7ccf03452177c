#pragma once
// The time of a call that several GPUs make together.
#include <algorithm>
#include <functional>
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

}  // namespace ladder
