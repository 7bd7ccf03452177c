#include "cli/serve_disaggregated.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "cli/launched_command.h"
#include "cli/say_quantization.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step6_engine/server/http/listening_socket.h"
#include "step7_parallel/data/replica_config.h"
#include "step8_advanced/disaggregation/layout/kv_layout.h"
#include "step8_advanced/disaggregation/router/server/local_servers.h"
#include "step8_advanced/disaggregation/router/server/route_server.h"

namespace ladder {

namespace {

// What the router takes care of, and its servers have not.
constexpr const char* kFlagsOfTheRouter[] = {"--host",
                                             "--port",
                                             "--ssl-certfile",
                                             "--ssl-keyfile",
                                             "--root-path",
                                             "--allowed-origins",
                                             "--allowed-methods",
                                             "--allowed-headers",
                                             "--allow-credentials",
                                             "--access-log",
                                             "--disaggregate",
                                             "--min-remote-tokens",
                                             "--prefill-tensor-parallel-size",
                                             "--decode-tensor-parallel-size",
                                             "--prefill-first"};

// A server of the one kind or the other, and where its ranks begin: prefill servers come first.
struct Instance {
  bool prefill = true;
  int index = 0;       // among those of its kind
  int first_rank = 0;  // of all servers' together
  EngineOptions options;
};

std::vector<Instance> instances_of(const ServeFlags& flags, InstanceCounts counts) {
  const EngineOptions options = flags.engine.options_of_instances(counts.prefill);
  std::vector<Instance> instances;
  int ranks = 0;
  for (int i = 0; i < counts.prefill + counts.decode; ++i) {
    Instance instance{i < counts.prefill, i < counts.prefill ? i : i - counts.prefill, ranks, options};
    RunnerConfig& runner = instance.options.runner;
    runner.tensor_parallel_size = (instance.prefill ? flags.server.prefill_ranks : flags.server.decode_ranks)
                                      .value_or(runner.tensor_parallel_size);
    ranks += num_ranks(runner);
    instances.push_back(std::move(instance));
  }
  return instances;
}

// GPUs of their own for all servers; or one, where there is no other: whether it is that.
bool share_one_gpu(const std::vector<Instance>& instances) {
  const Instance& last = instances.back();
  const Device device = last.options.runner.device;
  if (device.type != DeviceType::cuda) return false;
  const int gpus = cuda_device_count(), wanted = last.first_rank + num_ranks(last.options.runner);
  if (device.index + wanted <= gpus) return false;
  LADDER_CHECK(
      gpus == 1 && wanted == std::ssize(instances),
      "--disaggregate: {} servers with {} ranks together need a GPU for each rank, {} from {} on, and there "
      "{} {}: expected fewer, or one GPU that servers of one rank share",
      instances.size(), wanted, wanted, device_name(device), gpus == 1 ? "is" : "are", gpus);
  return true;
}

// What the GPU that all share has room for is shared out before any of them has begun: each would find another part of it free.
EngineOptions options_of_server(const std::vector<Instance>& instances, size_t number,
                                const DecoderSpec& spec) {
  const Instance& instance = instances[number];
  const auto count = static_cast<int>(instances.size());
  EngineOptions own = instance.options;
  if (own.runner.device.is_cpu())
    return options_of_replica(own, spec, static_cast<int>(number), count, machine_memory());
  if (!share_one_gpu(instances)) {
    own.runner.device.index += instance.first_rank;
  } else if (own.runner.kv_memory == 0 && own.runner.batch.num_kv_blocks == 0) {
    const MachineMemory memory = memory_of(own.runner.device);
    own.runner.batch.num_kv_blocks =
        resolved_runner_config(own, spec, {memory.total / count, memory.available / count})
            .batch.num_kv_blocks;
  }
  return own;
}

// Where prefill server `index` is read, if nothing is said of it: between GPUs of this machine without the host, unless what is
// sent is to be shortened, which the host does.
void add_listen(std::vector<std::string>& words, const EngineOptions& own, int index) {
  const auto says = [&](std::string_view flag) {
    return std::ranges::any_of(words, [&](const std::string& word) { return word.starts_with(flag); });
  };
  if (own.runner.device.type == DeviceType::cuda && !says("--kv-listen=") && !says("--kv-compression=zstd"))
    words.push_back(fmt::format("--kv-listen=cuda://serve-{}-{}", ::getpid(), index));
}

std::vector<std::string> server_arguments(const ServeFlags& flags, const EngineOptions& own, bool prefill,
                                          int index) {
  std::vector<std::string> words = {"disaggregated-server"};
  const KvTransferRole role = prefill ? KvTransferRole::producer : KvTransferRole::consumer;
  for (std::string& word : flags.engine.arguments_of_instance(own, role)) words.push_back(std::move(word));
  if (prefill) add_listen(words, own, index);
  for (std::string& word : flags.server.arguments())
    if (std::ranges::find(kFlagsOfTheRouter, word.substr(0, word.find('='))) == std::end(kFlagsOfTheRouter))
      words.push_back(std::move(word));
  return words;
}

// Error, naming the flag: what each server would say by itself when it has begun.
void expect_layouts(const std::vector<Instance>& instances, const DecoderSpec& spec) {
  constexpr int64_t kEnough = int64_t{1} << 50;  // of memory: what there is, a server looks at itself
  for (const Instance& instance : instances)
    kv_layout_of(spec, resolved_runner_config(instance.options, spec, {kEnough, kEnough}));
}

// Answers all of them GET /health? Those that do not load.
bool all_answer(const RouteServerOptions& options) {
  try {
    wait_for_servers(options, std::chrono::milliseconds(0));
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

InstanceCounts parse_instances(const std::string& text) {
  InstanceCounts counts;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](int& value, char upper, char lower) {
    const auto [rest, error] = std::from_chars(at, end, value);
    if (error != std::errc() || rest == end || (*rest != upper && *rest != lower)) return false;
    at = rest + 1;
    return value >= 1 && value <= 64;
  };
  LADDER_CHECK(number(counts.prefill, 'P', 'p') && number(counts.decode, 'D', 'd') && at == end,
               "--disaggregate {}: expected numbers of prefill and decode servers, 1 to 64 each, like 1P1D",
               text);
  return counts;
}

void run_disaggregated(const ServeFlags& flags) {
  const StopSignals signals;
  raise_descriptor_limit();
  const InstanceCounts counts = parse_instances(flags.server.disaggregate);
  LADDER_CHECK(flags.server.api_server_count == 1, "--disaggregate: expected without --api-server-count");
  LADDER_CHECK(!flags.replicas.has_door(),
               "--disaggregate: expected without --data-parallel-size and -backend");
  LADDER_CHECK(!flags.replicas.headless(), "--disaggregate: expected without --headless");
  LADDER_CHECK(flags.trace.arguments().empty(), "--disaggregate: expected without --trace");
  LADDER_CHECK(launched_world() == nullptr, "--disaggregate: expected without mpirun and --nnodes");
  const std::vector<Instance> instances = instances_of(flags, counts);
  const EngineOptions& options = instances.front().options;  // what is said of the model is the same for all
  const ServerOptions http_side = server_options(flags.server);
  const ModelFolder folder = open_model_folder(options.model, flags.server.generation_config);
  say_quantization(folder.spec, options.runner.kv_cache_dtype, options.runner.device);
  share_one_gpu(instances);  // first: nobody waits to hear that there are too few
  expect_layouts(instances, folder.spec);
  // Taken first: nobody waits for models to be loaded, to hear that the port is taken.
  FileDescriptor front = open_listening_socket(http_side.http);

  RouteServerOptions route;
  route.http = http_side.http;
  route.http.listening_socket = front.number();
  if (flags.server.min_remote_tokens) route.policy.min_remote_tokens = *flags.server.min_remote_tokens;
  if (!options.enable_prefix_caching) route.policy.cache_tokens = 1;  // nothing that a next prompt could use
  route.limits.prefill_first = flags.server.prefill_first;
  std::vector<LocalServer> servers;
  for (size_t i = 0; i < instances.size(); ++i) {
    const bool prefill = instances[i].prefill;
    const int index = instances[i].index;
    FileDescriptor socket = open_listening_socket({.port = 0});
    (prefill ? route.prefill_urls : route.decode_urls)
        .push_back(fmt::format("http://127.0.0.1:{}", port_of(socket.number())));
    servers.push_back(
        {.name = fmt::format("{} server {}", prefill ? "prefill" : "decode", index),
         .arguments = server_arguments(flags, options_of_server(instances, i, folder.spec), prefill, index),
         .listening_socket = std::move(socket)});
  }
  LocalServers local(std::move(servers),
                     [](std::string_view line) { log_line(fmt::format("ladder: {}", line)); });
  while (!all_answer(route)) {
    local.expect_all_alive();
    if (signals.wait_for(std::chrono::milliseconds(50)) != 0) return;
  }
  local.serving();

  RouteServer router(std::move(route));
  front.close();  // the router has its own copy
  write_out(format_pairs({{"prefill servers", std::to_string(counts.prefill)},
                          {"decode servers", std::to_string(counts.decode)}}));
  if (!flags.server.is_loopback() && http_side.http.api_keys.empty())
    log_line(fmt::format(
        "ladder: warning: --host {} may be reached from other machines, and there is no --api-key",
        http_side.http.host));
  write_out(fmt::format("listening on {} (ctrl-C ends)\n", router.address()));
  signals.wait();
  begin_to_stop(flags.server.drain_timeout, signals);
  router.stop(flags.server.drain_time());
  local.stop(std::chrono::milliseconds(0));
}

}  // namespace ladder
