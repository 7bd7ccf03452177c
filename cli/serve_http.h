#pragma once
// The HTTP side of `ladder serve`: in the process of the engine's client, or in each of several API servers.
#include <chrono>
#include <csignal>
#include <memory>
#include <string_view>
#include <thread>

#include "cli/data_parallel_flags.h"
#include "cli/engine_flags.h"
#include "cli/serve_flags.h"
#include "cli/trace_flags.h"
#include "step5_scheduler/scheduler.h"
#include "step6_engine/server/server.h"

namespace ladder {

struct ServeFlags {
  void add(CLI::App& app);

  EngineFlags engine;
  DataParallelFlags replicas;
  ServerFlags server;
  TraceFlags trace;
};

// SIGTERM and SIGINT, taken by wait() alone: blocked in all threads, so this comes before any thread is started.
class StopSignals {
 public:
  StopSignals();
  int wait() const;
  // 0: none has come within that time.
  int wait_for(std::chrono::milliseconds time) const;
  // From now on the next one ends the process at once.
  void end_at_the_next() const;

 private:
  sigset_t set_;
};

// A connection is a descriptor: as many as the system lets this process have.
void raise_descriptor_limit();

void log_line(std::string_view line);  // on standard error

// A stop signal ends this process at once, until this is destroyed: others are waited for, for long, and nothing is under way
// yet.
std::jthread end_at_a_signal(const StopSignals& signals);

// A stop signal has come: says so, and the next one ends the process at once. `drain_timeout`: seconds.
void begin_to_stop(double drain_timeout, const StopSignals& signals);

// Error naming the flag: of everything that can be checked before a model is loaded.
ServerOptions server_options(const ServerFlags& flags);

// With all routes. `config` is the engine's.
std::unique_ptr<Server> make_server(const ServeFlags& flags, ServerOptions options, const ModelFolder& folder,
                                    const SchedulerConfig& config, EngineClient& client);

}  // namespace ladder
