#pragma once
#include <memory>

#include "cli/engine_flags.h"
#include "cli/trace_flags.h"
#include "step6_engine/remote/engine_process.h"

namespace ladder {

// Of an engine in a process of its own; `arguments` are EngineFlags'.
EngineProcessOptions engine_process_options(std::vector<std::string> arguments, const ModelFolder& folder);

// The engine of these flags in a process of its own, which writes the trace, with a bar on standard error while it loads. Error: as
// start_engine_process().
std::unique_ptr<SocketEngineClient> start_engine_process_with_progress(const EngineFlags& flags,
                                                                       const TraceFlags& trace,
                                                                       const ModelFolder& folder,
                                                                       EngineClientOptions options);

}  // namespace ladder
