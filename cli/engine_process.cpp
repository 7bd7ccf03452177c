// ladder engine-process: the engine alone, for the program at the other end of a socket. No user starts it.
#include "cli/engine_process.h"

#include <utility>

#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/launched_command.h"
#include "cli/terminal.h"
#include "cli/tiny_model.h"
#include "step1_layers/core/error.h"

namespace ladder {

EngineProcessOptions engine_process_options(std::vector<std::string> arguments, const ModelFolder& folder) {
  EngineProcessOptions process;
  process.arguments = std::move(arguments);
  process.arguments.insert(process.arguments.begin(), "engine-process");
  process.tokenizer = folder.tokenizer;
  return process;
}

std::unique_ptr<SocketEngineClient> start_engine_process_with_progress(const EngineFlags& flags,
                                                                       const TraceFlags& trace,
                                                                       const ModelFolder& folder,
                                                                       EngineClientOptions options) {
  LADDER_CHECK(
      launched_world() == nullptr,
      "--engine-process: expected without mpirun and --nnodes, of whose ranks the first one has the engine");
  ProgressBar bar("loading", 0, "bytes");
  EngineProcessOptions process = engine_process_options(flags.arguments(), folder);
  for (std::string& word : trace.arguments()) process.arguments.push_back(std::move(word));
  process.client = std::move(options);
  process.progress = [&bar](int64_t done, int64_t total) {
    bar.set_total(total);
    bar.set(done);
  };
  return start_engine_process(std::move(process));
}

RunCommand add_engine_process_command(CLI::App& app) {
  struct Flags {
    EngineFlags engine;
    TraceFlags trace;
    int descriptor = -1;
  };
  auto flags = std::make_shared<Flags>();
  flags->engine.add(app, {}, tiny_model_folder());
  flags->trace.add(app);
  app.add_option("--fd", flags->descriptor, "the connection")->check(whole_in_range(3, 1 << 20))->required();
  return [flags] {
    run_engine_process(flags->descriptor, [&](LoadProgress progress) {
      EngineOptions options = flags->engine.options();
      options.progress = std::move(progress);
      const std::shared_ptr<TraceWriter> trace = flags->trace.open();
      // The defaults of sampling are filled in by who asks.
      std::unique_ptr<Engine> engine = load_engine(options, open_model_folder(options.model, "vllm"));
      record_if_wanted(*engine, trace);
      return engine;
    });
  };
}

}  // namespace ladder
