#include "cli/make_client.h"

#include <atomic>
#include <cstdio>
#include <limits>

#include "cli/engine_process.h"
#include "cli/launched_command.h"
#include "cli/run_requests.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step4_runner/rank_start.h"
#include "step7_parallel/data/data_parallel_client.h"
#include "step7_parallel/data/replica_config.h"

namespace ladder {

namespace {

StartedEngine start_in_thread(EngineOptions options, const ModelFolder& folder, LoadProgress progress,
                              EngineClientOptions client_options) {
  options.progress = std::move(progress);
  std::unique_ptr<Engine> engine = load_engine(options, folder);
  SchedulerConfig config = engine->scheduler().config();
  return {std::make_unique<ThreadEngineClient>(std::move(engine), std::move(client_options)),
          std::move(config)};
}

StartedEngine start_in_process(const EngineFlags& flags, const EngineOptions& options,
                               const ModelFolder& folder, LoadProgress progress,
                               EngineClientOptions client_options) {
  EngineProcessOptions process = engine_process_options(flags.arguments_of_replica(options), folder);
  process.client = std::move(client_options);
  process.progress = std::move(progress);
  auto client = start_engine_process(std::move(process));
  SchedulerConfig config = client->config();
  return {std::move(client), std::move(config)};
}

std::unique_ptr<DataParallelClient> start_replicas(const ClientFlags& flags, const EngineOptions& options,
                                                   const ModelFolder& folder, ReplicaRange range,
                                                   const EngineClientOptions& client_options) {
  LADDER_CHECK(
      launched_world() == nullptr,
      "--data-parallel-size {}: expected without mpirun and --nnodes, whose ranks are those of one replica",
      range.num_replicas);
  LADDER_CHECK(
      flags.trace.arguments().empty(),
      "--trace: expected without --data-parallel-size and --data-parallel-backend; the server's page shows the first "
      "replica");
  expect_a_gpu_for_each_replica(options.runner, range.num_local);
  std::vector<EngineOptions> of_replicas;
  for (int local = 0; local < range.num_local; ++local)
    of_replicas.push_back(
        options_of_replica(options, folder.spec, local, range.num_local, memory_of(options.runner.device)));
  auto bar = std::make_shared<ProgressBar>(
      range.num_local == 1 ? std::string("loading") : fmt::format("loading {} replicas", range.num_local), 0,
      "bytes");
  auto progress = std::make_shared<SummedProgress>(range.num_local, [bar](int64_t done, int64_t total) {
    bar->set_total(total);
    bar->set(done);
  });
  auto loading =
      std::make_shared<std::atomic<bool>>(true);  // and not started again later, which nobody waits for
  DataParallelOptions door;
  door.num_replicas = range.num_local;
  door.first_replica = range.first;
  door.balancer = flags.replicas.balancer();
  door.tokenizer = folder.tokenizer;
  door.max_num_queued_reqs = client_options.max_num_queued_reqs;
  door.max_num_queued_tokens = client_options.max_num_queued_tokens;
  door.stuck_after = flags.stuck_after;
  door.log = [](const std::string& line) { std::fprintf(stderr, "ladder: %s\n", line.c_str()); };
  door.start = [=, &engine = flags.engine, in_processes = flags.replicas.in_processes(options.runner.device),
                of_replicas = std::move(of_replicas), first = range.first](int number) {
    const int local = number - first;
    const EngineOptions& own = of_replicas[static_cast<size_t>(local)];
    LoadProgress of_this = [=](int64_t done, int64_t total) {
      if (*loading) progress->set(local, done, total);
    };
    EngineClientOptions of_engine;  // the door bounds the queue; tokens are counted where somebody does
    if (client_options.max_num_queued_tokens > 0)
      of_engine.max_num_queued_tokens = std::numeric_limits<int64_t>::max();
    of_engine.on_turn = client_options.on_turn;
    return in_processes ? start_in_process(engine, own, folder, std::move(of_this), std::move(of_engine))
                        : start_in_thread(own, folder, std::move(of_this), std::move(of_engine));
  };
  auto client = std::make_unique<DataParallelClient>(std::move(door));
  *loading = false;
  bar->clear();
  return client;
}

}  // namespace

MadeClient make_client(const ClientFlags& flags, const EngineOptions& options, const ModelFolder& folder,
                       EngineClientOptions client_options) {
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
