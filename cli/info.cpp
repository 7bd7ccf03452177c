// ladder info: what a model is, and what of it fits this machine; without one, the machine and its kernels.
#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "cli/commands.h"
#include "cli/data_parallel_flags.h"
#include "cli/engine_flags.h"
#include "cli/kernels.h"
#include "cli/terminal.h"
#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step4_runner/memory.h"
#include "step4_runner/rank_grid.h"
#include "step7_parallel/data/replica_config.h"
#include "step7_parallel/hosts/host_world.h"
#include "step7_parallel/pipeline/split_layers.h"
#include "step7_parallel/workers/process_rank.h"
#include "step8_advanced/quantization/config/scheme_words.h"

namespace ladder {

namespace {

std::string_view rope_name(RopeKind kind) {
  switch (kind) {
    case RopeKind::linear:
      return "linear";
    case RopeKind::dynamic_ntk:
      return "dynamic NTK";
    case RopeKind::yarn:
      return "YaRN";
    case RopeKind::llama3:
      return "llama3";
    case RopeKind::longrope:
      return "LongRoPE";
    case RopeKind::none:
      return "none";
    case RopeKind::standard:
      break;
  }
  return "default";
}

// Also says what a model would take that this machine has no room for: then as if there were no end of
// memory.
constexpr MachineMemory kEndless = {int64_t{1} << 60, int64_t{1} << 60};

RunnerConfig config_to_show(const EngineOptions& options, const DecoderSpec& spec, MachineMemory memory) {
  try {
    return resolved_runner_config(options, spec, memory);
  } catch (const Error&) {  // a flag that makes no sense is refused again
    return resolved_runner_config(options, spec, kEndless);
  }
}
EngineOptions replica_to_show(const EngineOptions& options, const DecoderSpec& spec, int local, int num_local,
                              MachineMemory memory) {
  try {
    return options_of_replica(options, spec, local, num_local, memory);
  } catch (const Error&) {
    return options_of_replica(options, spec, local, num_local, kEndless);
  }
}

MachineMemory free_memory(Device device) {
  if (device.is_cpu()) return machine_memory();
  const CudaDeviceInfo gpu = cuda_device_info(device.index);
  return {gpu.total_bytes, gpu.free_bytes};
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

Pairs describe_device(const RunnerConfig& config) {
  if (config.device.is_cpu())
    return {{"  processor", fmt::format("{} ({})", cpu_name(), isa_name(cpu_isa()))},
            {"  threads", format_count(config.threads)}};
  const CudaDeviceInfo gpu = cuda_device_info(config.device.index);
  const int kernels = kernel_arch(gpu);
  const auto capability = [](int arch) { return fmt::format("{}.{}", arch / 10, arch % 10); };
  const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
  const auto on = [](bool value) { return std::string(value ? "on" : "off"); };
  return {{"  GPU", fmt::format("{} ({})", gpu.name, device_name(config.device))},
          {"  compute capability",
           capability(gpu.arch) + (kernels == gpu.arch ? "" : ", kernels of " + capability(kernels))},
          {"  multiprocessors",
           fmt::format("{}, up to {} of shared memory for a block, L2 cache of {}", gpu.num_multiprocessors,
                       format_bytes(gpu.shared_bytes), format_bytes(gpu.l2_bytes))},
          {"  CUDA", fmt::format("{}, the driver serves {}", version(gpu.runtime_version),
                                 version(gpu.driver_version))},
          {"  CUDA graphs", on(config.cuda_graphs)},
          {"  asynchronous scheduling", on(config.async_scheduling)},
          {"  dependent launch", config.dependent_launch && kernels < 90 ? "off: needs compute capability 9.0"
                                                                         : on(config.dependent_launch)}};
}

// One line per operator: the kernel that its calls begin with, its idea, and those that serve what it does
// not take.
std::string describe_kernels(const RunnerConfig& config) {
  std::vector<std::array<std::string, 3>> lines;
  size_t name_width = 0, kernel_width = 0;
  for (const OperatorInfo& op : operators(config.device)) {
    const auto forced = config.kernels.find(op.name);
    const bool is_forced = forced != config.kernels.end();
    const std::vector<KernelInfo> chosen = default_kernels(op, config.dtype);
    if (chosen.empty() && !is_forced) continue;  // no kernels on this device
    std::string others;
    for (size_t i = 1; i < chosen.size(); ++i)
      others += (i == 1 ? "; else " : ", ") + std::string(chosen[i].name);
    lines.push_back({std::string(op.name), is_forced ? forced->second : std::string(chosen[0].name),
                     is_forced ? "forced" : std::string(chosen[0].idea) + others});
    name_width = std::max(name_width, lines.back()[0].size());
    kernel_width = std::max(kernel_width, lines.back()[1].size());
  }
  std::string text;
  for (const auto& [name, kernel, why] : lines)
    text += fmt::format("  {:<{}}  {:<{}}  {}\n", name, name_width, kernel, kernel_width, why);
  return text;
}

// A GPU's kernels of the matrix products and of attention, at the numbers of rows that matter.
std::string describe_choices(const DecoderSpec& spec, const RunnerConfig& config) {
  std::vector<int64_t> rows;
  for (const int64_t count :
       {int64_t{1}, int64_t{8}, int64_t{32}, config.batch.max_num_seqs, config.batch.max_num_batched_tokens})
    if (count <= config.batch.max_num_batched_tokens && (rows.empty() || count > rows.back()))
      rows.push_back(count);
  std::vector<std::vector<std::string>> table{{"", "weight"}};
  for (const int64_t count : rows) table[0].push_back(fmt::format("{} row{}", count, count == 1 ? "" : "s"));
  const auto add = [&](std::string_view name, std::string size, const std::vector<ChosenKernel>& kernels) {
    table.push_back({fmt::format("  {}", name), std::move(size)});
    for (const auto& [kernel, why] : kernels)
      table.back().push_back(std::string(kernel) + (why == "measured" ? "*" : why == "forced" ? "!" : ""));
  };
  for (const ProductKernels& product : product_kernels(spec, config, rows))
    add(product.name, fmt::format("{} x {}", product.n, product.k), product.kernels);
  add("paged_attention", fmt::format("heads of {}", spec.head_dim), attention_kernels(spec, config, rows));
  return fmt::format(
             "\nKernels of products and attention: measured (*), forced (!), or else the last of the table "
             "that takes the call.\nRows are sequences that decode; above {}, for attention, those of one "
             "prompt\n",
             config.batch.max_num_seqs) +
         format_table(table);
}

// "queries 0 to 15, keys 0 to 3": the heads of a tensor-parallel rank, of which KV heads may be shared by neighbours.
std::string heads_of(const DecoderSpec& spec, const RunnerConfig& config, int tensor_rank) {
  const auto range = [&](int64_t heads) {
    const int64_t ranks = config.tensor_parallel_size;
    const int64_t begin = heads * tensor_rank / ranks, size = std::max<int64_t>(heads / ranks, 1);
    return size == 1 ? std::to_string(begin) : fmt::format("{} to {}", begin, begin + size - 1);
  };
  return fmt::format("{}; {}", range(spec.num_heads), range(spec.num_kv_heads));
}

// "0 to 63 of 128": the experts that a rank has whole, "any 64 of 128" where they change places, "a part of all 128" where
// each one's width is split.
std::string experts_of(const DecoderSpec& spec, const RunnerConfig& config, int tensor_rank) {
  const int64_t all = spec.experts.num_experts;
  if (!config.expert_parallel) return fmt::format("a part of all {}", all);
  const ExpertRange here = experts_of_rank(config, all, tensor_rank);
  if (config.balance_experts) return fmt::format("any {} of {}", here.size(), all);
  return here.size() == 1 ? fmt::format("{} of {}", here.begin, all)
                          : fmt::format("{} to {} of {}", here.begin, here.end - 1, all);
}

// Which rank has what, where there are several.
std::string describe_ranks(const DecoderSpec& spec, const RunnerConfig& config) {
  std::vector<std::vector<std::string>> table{{"  rank", "on", "stage", "layers", "beside them",
                                               "heads; KV heads", "weights", "KV cache", "at the peak"}};
  const bool shows_experts = spec.num_expert_layers() > 0 && config.tensor_parallel_size > 1;
  if (shows_experts) table[0].insert(table[0].begin() + 6, "experts");
  const int shares = config.prefill_context_parallel_size;
  if (shares > 1) table[0].insert(table[0].begin() + 3, "rows");
  for (int rank = 0; rank < num_ranks(config); ++rank) {
    const GridPlace place = place_of(config, rank);
    const LayerRange layers = layers_of(config, spec.num_layers, place.stage);
    const MemoryPlan plan = predict_rank_memory(spec, config, place);
    const bool is_first = place.stage == 0, is_last = place.stage + 1 == config.pipeline_parallel_size;
    table.push_back({fmt::format("  {}", rank), device_name(device_of_rank(config, rank)),
                     std::to_string(place.stage), fmt::format("{} to {}", layers.begin, layers.end - 1),
                     is_first && is_last ? "embedding, head"
                     : is_first          ? "embedding"
                     : is_last           ? "head"
                                         : "",
                     heads_of(spec, config, place.tensor_rank), format_bytes(plan.weights),
                     format_bytes(plan.kv),
                     format_bytes(plan.weights + plan.kv + plan.activations +
                                  (config.device.is_cpu() ? 0 : plan.other))});
    if (shows_experts)
      table.back().insert(table.back().begin() + 6, experts_of(spec, config, place.tensor_rank));
    if (shares > 1)
      table.back().insert(table.back().begin() + 3,
                          fmt::format("share {} of {}", place.context_rank, shares));
  }
  std::string text =
      shares == 1
          ? fmt::format(
                "\n{} ranks: {} tensor-parallel in each of {} stage{}; rank = stage * {} + tensor rank\n",
                num_ranks(config), config.tensor_parallel_size, config.pipeline_parallel_size,
                config.pipeline_parallel_size == 1 ? "" : "s", config.tensor_parallel_size)
          : fmt::format(
                "\n{} ranks: {} context-parallel times {} tensor-parallel in each of {} stage{}; rank = "
                "(stage * {} + context rank) * {} + tensor rank\n",
                num_ranks(config), shares, config.tensor_parallel_size, config.pipeline_parallel_size,
                config.pipeline_parallel_size == 1 ? "" : "s", shares, config.tensor_parallel_size);
  text += format_table(table);
  if (shares > 1)
    text += fmt::format(
        "The {} context ranks share out the new tokens of every step, and each keeps the keys of all tokens.\n",
        shares);
  if (config.decode_context_parallel_size > 1)
    text += fmt::format(
        "Of each KV block every rank keeps {} of {} tokens: {} ranks share out the keys of a head, {} at a time.\n",
        slots_of_rank(config), config.batch.block_size, config.decode_context_parallel_size,
        config.kv_interleave_size);
  if (config.pipeline_parallel_size == 1) return text;
  std::vector<int64_t> ends;
  for (int stage = 0; stage < config.pipeline_parallel_size; ++stage)
    ends.push_back(layers_of(config, spec.num_layers, stage).end);
  return text + fmt::format("The slowest stage has {:.2f} times the work of the mean one, head included.\n",
                            imbalance(spec, ends));
}

std::string free_of(const MachineMemory& memory) {
  return fmt::format("{} of {}", format_bytes(memory.available), format_bytes(memory.total));
}

// What can be said before there is a model.
void run_info_of_machine(const EngineOptions& options) {
  RunnerConfig config = options.runner;
  config.dtype = options.dtype.value_or(DType::bf16);
  if (config.threads == 0) config.threads = num_threads();
  Pairs here = describe_device(config);
  here.insert(here.begin(), {"  dtype", std::string(dtype_name(config.dtype))});
  here.push_back({"  memory free", free_of(free_memory(config.device))});
  write_out("This machine\n" + format_pairs(here) + "\nKernels, and the idea of each\n" +
            describe_kernels(config) +
            "\nWith --model DIR: the model, what fits, and the kernels it gets.\n");
}

// Those of this machine.
std::vector<RunnerConfig> configs_of_replicas(const EngineOptions& options, const DecoderSpec& spec,
                                              int num_local, MachineMemory memory) {
  std::vector<RunnerConfig> configs;
  for (int local = 0; local < num_local; ++local)
    configs.push_back(config_to_show(replica_to_show(options, spec, local, num_local, memory), spec, memory));
  return configs;
}

int64_t total_of(const DecoderSpec& spec, std::span<const RunnerConfig> replicas) {
  int64_t total = 0;
  for (const RunnerConfig& replica : replicas) total += predict_memory(spec, replica).total();
  return total;
}

// Each rank on its own GPU, or all of all replicas in the memory of this machine.
bool fits(const DecoderSpec& spec, std::span<const RunnerConfig> replicas, const MachineMemory& memory) {
  if (replicas[0].device.is_cpu()) return total_of(spec, replicas) <= memory.available;
  for (const RunnerConfig& replica : replicas)
    for (int rank = 0; rank < num_ranks(replica); ++rank)
      if (predict_rank_memory(spec, replica, place_of(replica, rank)).total() >
          free_memory(device_of_rank(replica, rank)).available)
        return false;
  return true;
}

// The whole grid: replicas of ranks. `here`: those of this machine.
std::string describe_replicas(const EngineOptions& options, const DecoderSpec& spec,
                              const ReplicaRange& range, std::span<const RunnerConfig> here) {
  std::vector<std::vector<std::string>> table{{"  replica", "ranks", "on", "threads", "KV blocks"}};
  const int ranks = num_ranks(options.runner);
  const bool share_experts = options.runner.expert_replicas > 1;
  if (share_experts) table[0].push_back("experts of its tensor ranks");
  for (int replica = 0; replica < range.num_local; ++replica) {
    const RunnerConfig& own = here[static_cast<size_t>(replica)];
    const std::string first = device_name(device_of_rank(own, 0)),
                      last = device_name(device_of_rank(own, ranks - 1));
    table.push_back(
        {fmt::format("  {}", replica), fmt::format("{} to {}", replica * ranks, (replica + 1) * ranks - 1),
         first == last ? first : first + " to " + last,
         own.device.is_cpu() ? std::to_string(own.threads) : "-", format_count(own.batch.num_kv_blocks)});
    if (!share_experts) continue;
    std::vector<std::string> experts;
    for (int rank = 0; rank < own.tensor_parallel_size; ++rank)
      experts.push_back(experts_of(spec, own, rank));
    table.back().push_back(fmt::format("{}", fmt::join(experts, "; ")));
  }
  for (int replica = range.num_local; replica < range.num_replicas; ++replica)
    table.push_back({fmt::format("  {}", replica),
                     fmt::format("{} to {}", replica * ranks, (replica + 1) * ranks - 1), "a --headless node",
                     "-", "-"});
  return fmt::format(
             "\n{} replicas (--data-parallel-size), each with weights, cache and scheduler of its own{}\n",
             range.num_replicas, shared_experts_text(options.runner)) +
         format_table(table);
}

std::string parameters_text(const DecoderSpec& spec) {
  const std::string all = format_count(spec.num_parameters());
  return spec.num_expert_layers() == 0
             ? all
             : fmt::format("{}, of which a token meets {}", all, format_count(spec.num_active_parameters()));
}

std::string mlp_text(const DecoderSpec& spec) {
  const ExpertsSpec& experts = spec.experts;
  if (spec.num_expert_layers() == 0) return format_count(spec.intermediate_size);
  std::string text = fmt::format("{} of {} experts of {}", experts.rule.top_k, experts.num_experts,
                                 format_count(experts.intermediate_size));
  if (experts.shared_intermediate_size > 0)
    text += fmt::format(", and a shared one of {}", format_count(experts.shared_intermediate_size));
  if (spec.num_expert_layers() < spec.num_layers)
    text += fmt::format("; {} layers without experts: {}", spec.num_layers - spec.num_expert_layers(),
                        format_count(spec.intermediate_size));
  return text;
}

void run_info(const EngineFlags& flags, const DataParallelFlags& replicas) {
  const ReplicaRange range = replicas.range();
  const int num_replicas = std::max(range.num_local, 1);  // shares of this machine
  EngineOptions options = flags.options(&replicas);
  // No other node is asked; what is wrong with this one's flags is said.
  if (flags.nodes().num_nodes() > 1) (void)flags.nodes().place(num_ranks(options.runner));
  expect_a_gpu_for_each_rank(options.runner, num_ranks(options.runner));
  expect_a_gpu_for_each_replica(options.runner, num_replicas);
  const ModelFolder folder = open_model_folder(options.model);
  const DecoderSpec& spec = folder.spec;
  const MachineMemory memory = free_memory(options.runner.device);
  const std::vector<RunnerConfig> replicas_here = configs_of_replicas(options, spec, num_replicas, memory);
  const std::string replicas_text =
      range.num_replicas > 1 ? describe_replicas(options, spec, range, replicas_here) : std::string();
  const RunnerConfig& config = replicas_here[0];
  const MemoryPlan plan = predict_memory(spec, config);
  const int64_t per_token = kv_bytes_per_token(spec, config);
  const int64_t slots = config.batch.num_kv_blocks * config.batch.block_size;
  const int64_t blocks_per_sequence =
      (config.batch.max_model_len + config.batch.block_size - 1) / config.batch.block_size;

  std::string text =
      "Model\n" + format_pairs({
                      {"  architecture", spec.architecture},
                      {"  parameters", parameters_text(spec)},
                      {"  layers", format_count(spec.num_layers)},
                      {"  hidden size", format_count(spec.hidden_size)},
                      {"  MLP size", mlp_text(spec)},
                      {"  heads", fmt::format("{} query, {} key/value, of {}", spec.num_heads,
                                              spec.num_kv_heads, spec.head_dim)},
                      {"  vocabulary", fmt::format("{}{}", format_count(spec.vocab_size),
                                                   spec.tie_word_embeddings ? ", head tied" : "")},
                      {"  linears", words_of_linears(spec.quantization_config)},
                      {"  rotary embedding", std::string(rope_name(spec.rope.kind))},
                      {"  positions", format_count(spec.max_position_embeddings)},
                      {"  tokenizer", folder.tokenizer ? "tokenizer.json" : "none: token ids only"},
                  });
  Pairs here = describe_device(config);
  here.insert(here.begin(), {"  dtype", std::string(dtype_name(config.dtype))});
  const Pairs sizes = {
      {"  KV cache per token", fmt::format("{} in {}", format_bytes(per_token),
                                           config.kv_cache_dtype == KvCacheDType::automatic
                                               ? dtype_name(config.dtype)
                                               : kv_cache_dtype_name(config.kv_cache_dtype))},
      {"  KV blocks",
       fmt::format("{} of {} tokens", format_count(config.batch.num_kv_blocks), config.batch.block_size)},
      {"  tokens in the KV cache", format_count(slots)},
      {"  longest sequence", format_count(config.batch.max_model_len)},
      {"  sequences of that length at once", format_count(config.batch.num_kv_blocks / blocks_per_sequence)},
      {"  sequences in one step, at most", format_count(config.batch.max_num_seqs)},
      {"  tokens in one step, at most", format_count(config.batch.max_num_batched_tokens)},
  };
  here.insert(here.end(), sizes.begin(), sizes.end());
  text += "\nAs it would run here\n" + format_pairs(here);
  // On a GPU the cache gets what a measured warm-up leaves, once the model is loaded.
  Pairs peak = {
      {"  weights and tables", format_bytes(plan.weights)}, {"  KV cache", format_bytes(plan.kv)},
      {"  activations", format_bytes(plan.activations)},    {"  everything else", format_bytes(plan.other)},
      {"  together", format_bytes(plan.total())},
  };
  if (num_replicas > 1)
    peak.push_back(
        {fmt::format("  {} such replicas", num_replicas), format_bytes(total_of(spec, replicas_here))});
  peak.push_back({"  free on this machine", free_of(memory)});
  peak.push_back({"  fits", fits(spec, replicas_here, memory) ? "yes" : "no"});
  text += (config.device.is_cpu() ? "\nMemory at the peak\n"
                                  : "\nMemory at the peak, as predicted before anything is loaded\n") +
          format_pairs(peak);
  text += replicas_text;
  if (num_ranks(config) > 1) text += describe_ranks(spec, config);
  text += "\nKernels, and the idea of each\n" + describe_kernels(config);
  if (!config.device.is_cpu()) text += describe_choices(spec, config);
  write_out(text);
}

}  // namespace

RunCommand add_info_command(CLI::App& app) {
  struct Flags {
    EngineFlags engine;
    DataParallelFlags replicas;
  };
  auto flags = std::make_shared<Flags>();
  flags->engine.add(app);
  flags->replicas.add(app);
  flags->replicas.add_local(app);
  const CLI::Option* model = app.get_option("--model")->required(false);
  return [flags, model] {
    model->count() > 0 ? run_info(flags->engine, flags->replicas)
                       : run_info_of_machine(flags->engine.options());
  };
}

}  // namespace ladder
