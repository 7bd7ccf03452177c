#pragma once
// From flags to engines behind an EngineClient: one in this process or in its own, or several replicas.
#include <functional>
#include <memory>
#include <string>

#include "cli/data_parallel_flags.h"
#include "cli/engine_flags.h"
#include "cli/trace_flags.h"
#include "step5_scheduler/scheduler.h"
#include "step6_engine/engine_client.h"
#include "step6_engine/thread_engine_client.h"

namespace ladder {

struct ClientFlags {
  const EngineFlags& engine;
  const DataParallelFlags& replicas;
  const TraceFlags& trace;
  bool engine_process = false;  // of a single engine
  // As in DataParallelOptions.
  std::chrono::milliseconds stuck_after{60'000};
};

struct MadeClient {
  std::unique_ptr<EngineClient> client;
  SchedulerConfig config;  // of an engine
};

// With a bar on standard error while it loads. What happens to replicas later is said there too, a line each.
MadeClient make_client(const ClientFlags& flags, const EngineOptions& options, const ModelFolder& folder,
                       EngineClientOptions client_options = {});

}  // namespace ladder
