#pragma once
// Task 7.6: the life of a worker process: its rank of the grid, from the engine's setup message to the end of the ring of
// steps.
#include <functional>

#include "step4_runner/executor_options.h"

namespace ladder {

// In a process that a WorkerProcesses has started: `descriptor` is its socket. `make_options` gives the model and the
// parts of it; config and progress of what it returns are not looked at. Whatever goes wrong is told to the engine, which
// ends this process and its peers. Error: the descriptor is not a connection to a parent of the same version.
void run_worker_process(int descriptor, const std::function<ExecutorOptions()>& make_options);

}  // namespace ladder
