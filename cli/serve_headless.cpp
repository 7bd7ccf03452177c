#include "cli/serve_headless.h"

#include <limits>
#include <optional>

#include "cli/local_replicas.h"
#include "cli/say_quantization.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/data/replica_node.h"

namespace ladder {

namespace {

// The head may bound the queue by tokens, for which every engine counts its own.
constexpr int64_t kCounted = std::numeric_limits<int64_t>::max();

}  // namespace

void run_headless(const ServeFlags& flags) {
  const StopSignals signals;
  raise_descriptor_limit();
  const EngineOptions options = flags.engine.options();
  const ReplicaRange range = flags.replicas.range();
  LADDER_CHECK(flags.server.api_server_count == 1,
               "--headless: a node has no HTTP, expected no --api-server-count");
  LADDER_CHECK(flags.trace.arguments().empty(), "--headless: expected no --trace, as of several replicas");
  LADDER_CHECK(!flags.engine.connects_with_others(),
               "--kv-role: replicas behind another machine's server are connected with nobody, expected no "
               "--headless; start several servers");
  ReplicaNodeOptions node;
  node.head = flags.replicas.head(flags.engine.nodes());
  node.run = replica_run(range, options);
  node.first = range.first;
  node.num_local = range.num_local;
  node.stuck_after = flags.server.stuck_after();
  node.log = [](const std::string& line) { log_line("ladder: " + line); };
  const ModelFolder folder = open_model_folder(options.model, flags.server.generation_config);
  say_quantization(folder.spec, options.runner.kv_cache_dtype, options.runner.device);
  LocalReplicas local(flags.engine, flags.replicas, options, folder);
  node.start = [&local](int number, TurnListeners& turns) {
    return local.start(number,
                       {.max_num_queued_tokens = kCounted, .on_turn = [&turns] { turns.announce(); }});
  };
  node.on_serving = [&] {
    local.loaded();
    write_out(fmt::format("{} of {} {} behind {} (ctrl-C ends)\n",
                          replicas_text(range.first, range.num_local), range.num_replicas,
                          range.num_local == 1 ? "is" : "are", node.head.address.str()));
  };
  ReplicaNode running(node);
  std::optional<ReplicaNode::End> end;
  while (!(end = running.wait_for_end(std::chrono::milliseconds(0)))) {
    if (signals.wait_for(std::chrono::milliseconds(100)) == 0) continue;
    begin_to_stop(flags.server.drain_timeout, signals);
    return running.stop(flags.server.drain_time());
  }
  LADDER_CHECK(end->code == 0, "{}", end->why);
  log_line("ladder: " + end->why);
}

}  // namespace ladder
