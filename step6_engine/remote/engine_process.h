#pragma once
// Task 6.9: the two ends of an engine's process. A program starts itself once more with other arguments:
//
//   start_engine_process(): ChildProcess ----> PROGRAM ARGUMENTS --fd 3 ----> run_engine_process(): load, serve_engine
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "step6_engine/engine.h"
#include "step6_engine/remote/socket_engine_client.h"

namespace ladder {

using LoadProgress = std::function<void(int64_t done, int64_t total)>;  // bytes of weights

struct EngineProcessOptions {
  std::vector<std::string> arguments;          // make the program call run_engine_process()
  std::string program = "/proc/self/exe";      // this one
  std::shared_ptr<const Tokenizer> tokenizer;  // of the same model; null: it has none
  EngineClientOptions client;
  LoadProgress progress;
};

// Returns when the engine is ready. Error: what the process says is wrong (a bad flag, a model that does not fit), or
// how it ended.
std::unique_ptr<SocketEngineClient> start_engine_process(EngineProcessOptions options);

// In the child: makes the engine and serves it until the parent closes the connection. What `make` throws is told to
// the parent, which reports it. Error: the descriptor is not a connection to a parent of the same version, or the
// connection breaks.
void run_engine_process(int descriptor, const std::function<std::unique_ptr<Engine>(LoadProgress)>& make);

}  // namespace ladder
