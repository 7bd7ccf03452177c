// ladder worker-process: one rank of an engine, for the engine at the other end of a socket. No user starts it.
#include "step7_parallel/workers/worker_process.h"

#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/flag_values.h"
#include "cli/tiny_model.h"

namespace ladder {

RunCommand add_worker_process_command(CLI::App& app) {
  struct Flags {
    EngineFlags engine;
    int descriptor = -1;
  };
  auto flags = std::make_shared<Flags>();
  flags->engine.add(app, {}, tiny_model_folder());
  app.add_option("--fd", flags->descriptor, "the connection")->check(whole_in_range(3, 1 << 20))->required();
  return [flags] { run_worker_process(flags->descriptor, [&] { return flags->engine.parts(); }); };
}

}  // namespace ladder
