#include "cli/make_client.h"

#include <cstdio>
#include <limits>

#include "cli/engine_process.h"
#include "cli/local_replicas.h"
#include "cli/run_requests.h"
#include "cli/say_quantization.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/data/data_parallel_client.h"
#include "step7_parallel/data/replica_head.h"

namespace ladder {

namespace {

std::unique_ptr<DataParallelClient> start_replicas(const ClientFlags& flags, const EngineOptions& options,
                                                   const ModelFolder& folder, ReplicaRange range,
                                                   const EngineClientOptions& client_options) {
  LADDER_CHECK(
      flags.trace.arguments().empty(),
      "--trace: expected without --data-parallel-size and --data-parallel-backend; the server's page shows the first "
      "replica");
  const auto log = [](const std::string& line) { std::fprintf(stderr, "ladder: %s\n", line.c_str()); };
  const auto local = std::make_shared<LocalReplicas>(flags.engine, flags.replicas, options, folder);
  std::shared_ptr<ReplicaHead> head;  // of replicas on other machines
  DataParallelOptions door;
  door.on_stop = [local] { local->close(); };
  if (range.num_remote > 0) {
    head =
        std::make_shared<ReplicaHead>(ReplicaHeadOptions{.place = flags.replicas.head(flags.engine.nodes()),
                                                         .run = replica_run(range, options),
                                                         .num_local = range.num_local,
                                                         .log = log});
    log(fmt::format("waiting at {} for {}, until {:g} s have passed (--node-arrival-timeout)",
                    head->address().str(), replicas_text(range.num_local, range.num_remote),
                    std::chrono::duration<double>(flags.engine.nodes().arrival()).count()));
    door.on_stop = [local, head] {
      local->close();
      head->stop();
    };
  }
  door.num_replicas = range.num_local + range.num_remote;
  door.first_replica = range.first;
  door.balancer = flags.replicas.balancer();
  door.tokenizer = folder.tokenizer;
  door.max_num_queued_reqs = client_options.max_num_queued_reqs;
  door.max_num_queued_tokens = client_options.max_num_queued_tokens;
  door.stuck_after = flags.stuck_after;
  door.log = log;
  EngineClientOptions of_engine;  // the door bounds the queue; tokens are counted where somebody does
  if (client_options.max_num_queued_tokens > 0)
    of_engine.max_num_queued_tokens = std::numeric_limits<int64_t>::max();
  of_engine.on_turn = client_options.on_turn;
  door.start = [=, tokenizer = folder.tokenizer, num_here = range.first + range.num_local](int number) {
    return number < num_here ? local->start(number, of_engine) : head->start(number, tokenizer, of_engine);
  };
  auto client = std::make_unique<DataParallelClient>(std::move(door));
  local->loaded();
  return client;
}

}  // namespace

MadeClient make_client(const ClientFlags& flags, const EngineOptions& options, const ModelFolder& folder,
                       EngineClientOptions client_options) {
  say_quantization(folder.spec, options.runner.kv_cache_dtype, options.runner.device);
  const ReplicaRange range = flags.replicas.range();
  if (flags.replicas.has_door()) {
    auto client = start_replicas(flags, options, folder, range, client_options);
    SchedulerConfig config = client->config();
    return {std::move(client), std::move(config)};
  }
  if (flags.engine_process) {
    auto client =
        start_engine_process_with_progress(flags.engine, flags.trace, folder, std::move(client_options));
    SchedulerConfig config = client->config();
    return {std::move(client), std::move(config)};
  }
  const std::shared_ptr<TraceWriter> trace = flags.trace.open();
  std::unique_ptr<Engine> engine = load_engine_with_progress(options, folder);
  record_if_wanted(*engine, trace);
  SchedulerConfig config = engine->scheduler().config();
  return {std::make_unique<ThreadEngineClient>(std::move(engine), std::move(client_options)),
          std::move(config)};
}

}  // namespace ladder
