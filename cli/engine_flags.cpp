#include "cli/engine_flags.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <numeric>

#include "cli/data_parallel_flags.h"
#include "cli/device_flag.h"
#include "cli/flag_values.h"
#include "cli/kernels.h"
#include "cli/launched_command.h"
#include "cli/model_flag_values.h"
#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/core/error.h"
#include "step4_runner/rank_grid.h"
#include "step7_parallel/communicators/kinds.h"
#include "step7_parallel/context/decode_context_attention.h"
#include "step7_parallel/context/prefill_context_model.h"
#include "step7_parallel/data/lockstep_executor.h"
#include "step7_parallel/expert/balanced_model.h"
#include "step7_parallel/expert/expert_parallel.h"
#include "step7_parallel/expert/split_experts.h"
#include "step7_parallel/pipeline/split_layers.h"
#include "step7_parallel/workers/worker_executor.h"
#include "step8_advanced/disaggregation/connector/layer_by_layer.h"
#include "step8_advanced/disaggregation/partition/phase_executors.h"
#include "step8_advanced/disaggregation/partition/sm_lanes_maker.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"

namespace ladder {

namespace {

// A flag without a value that sets `value`, which is on by default, to false.
CLI::Option* switch_off(CLI::App& app, const char* name, bool& value, const char* help) {
  return app.add_flag_callback(
      name, [&value] { value = false; }, help);
}

// Where the arguments have it already too.
void replace_flag(std::vector<std::string>& words, const std::string& flag, const std::string& value) {
  std::erase_if(words, [&](const std::string& word) { return word.starts_with(flag + "="); });
  words.push_back(flag + "=" + value);
}

// Of a value that --load-format takes.
LoadFormat parse_load_format(const std::string& name) {
  return name == "dummy" ? LoadFormat::dummy : LoadFormat::automatic;
}

// "17,15": a number for each stage. Sums of them are no trouble.
std::vector<int64_t> parse_stage_layers(const std::string& text) {
  constexpr int64_t kMost = 1 << 16;
  std::vector<int64_t> layers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t count = 0;
    const auto [rest, error] = std::from_chars(text.data() + begin, text.data() + end, count);
    LADDER_CHECK(error == std::errc() && rest == text.data() + end && count >= 1 && count <= kMost,
                 "--pipeline-layers {}: expected numbers like 17,15, each 1 to {}", text, kMost);
    layers.push_back(count);
    begin = end + 1;
  }
  return layers;
}

// Of this engine, and of the replicas that share out experts with it.
bool several_gpus(const RunnerConfig& runner) {
  return !runner.device.is_cpu() && num_ranks(runner) * runner.expert_replicas > 1;
}

}  // namespace

void EngineFlags::add(CLI::App& app, RunnerConfig defaults, std::string model_default) {
  options_.runner = defaults;
  model = std::move(model_default);
  const size_t num_before = app.get_options().size();
  CLI::Option* option =
      app.add_option("--model", model, "folder with config.json, safetensors and tokenizer.json")
          ->type_name("DIR");
  if (model.empty()) {
    option->required();
  } else {
    option->capture_default_str();
  }
  const char* group = "How the model is run";
  app.add_option("--dtype", dtype_, "arithmetic and cache: auto (as config.json says), f32, bf16 or f16")
      ->check(CLI::IsMember({"auto", "f32", "bf16", "f16"}))
      ->type_name("TYPE")
      ->capture_default_str()
      ->group(group);
  app.add_option("--kv-cache-dtype", kv_cache_dtype_,
                 "what keys and values are kept in: auto (as they are computed), or codes of fp8, int8 "
                 "or int4 with a scale per token and head")
      ->check(CLI::IsMember({"auto", "fp8", "int8", "int4"}))
      ->type_name("TYPE")
      ->capture_default_str()
      ->group(group);
  app.add_option("--device", device_, "cpu, cuda, cuda:N, or auto: a GPU where there is one")
      ->check(device_name_check())
      ->type_name("DEVICE")
      ->capture_default_str()
      ->group(group);
  app.add_option("--load-format", load_format_, "auto, or dummy: random weights from config.json alone")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->type_name("FORMAT")
      ->capture_default_str()
      ->group(group);
  const BatchConfig on_cpu = default_batch_limits(DeviceType::cpu);
  const BatchConfig on_gpu = default_batch_limits(DeviceType::cuda);
  const auto unless = [](int64_t preset, int64_t cpu, int64_t gpu) {
    return preset > 0 ? std::to_string(preset) : fmt::format("{}, on a GPU {}", cpu, gpu);
  };
  app.add_option("--max-num-seqs", options_.runner.batch.max_num_seqs,
                 fmt::format("sequences in one step [{}]",
                             unless(defaults.batch.max_num_seqs, on_cpu.max_num_seqs, on_gpu.max_num_seqs)))
      ->check(whole_in_range(kMaxNumSeqsRange))
      ->type_name("N")
      ->group(group);
  app.add_option(
         "--max-num-batched-tokens", options_.runner.batch.max_num_batched_tokens,
         fmt::format(
             "tokens computed in one step [{}; the longest sequence where prompts are computed whole]",
             unless(defaults.batch.max_num_batched_tokens, on_cpu.max_num_batched_tokens,
                    on_gpu.max_num_batched_tokens)))
      ->check(whole_in_range(kMaxNumBatchedTokensRange))
      ->type_name("N")
      ->group(group);
  app.add_option("--max-model-len", options_.runner.batch.max_model_len,
                 "longest sequence, prompt and output [the model's, or what the KV cache holds]")
      ->check(whole_in_range(kMaxModelLenRange))
      ->type_name("N")
      ->group(group);
  block_size_ = app.add_option("--block-size", options_.runner.batch.block_size,
                               "tokens in one KV block; as many more by default as ranks share it out "
                               "(--decode-context-parallel-size)")
                    ->check(whole_in_range(kBlockSizeRange))
                    ->type_name("N")
                    ->capture_default_str()
                    ->group(group);
  app.add_option("--num-kv-blocks", options_.runner.batch.num_kv_blocks,
                 "KV blocks [as many as --kv-memory holds]")
      ->check(whole_in_range(kNumKvBlocksRange))
      ->type_name("N")
      ->group(group);
  app.add_option("--kv-memory", kv_memory_,
                 "memory for the KV cache, e.g. 512MiB or 2GiB [a share of the device's]")
      ->type_name("SIZE")
      ->group(group);
  switch_off(app, "--no-prefix-caching", options_.enable_prefix_caching, "recompute prompts that begin alike")
      ->group(group);
  switch_off(app, "--no-chunked-prefill", options_.enable_chunked_prefill,
             "compute every prompt whole, in one step")
      ->group(group);
  app.add_flag("--static-batching", options_.static_batching,
               "run a batch until all of it is done (a baseline)")
      ->group(group);
  app.add_flag("--phase-lanes", phase_lanes_,
               "prompts and answers are computed by steps of their own, which run at the same time over one "
               "model and one KV cache")
      ->group(group);
  app.add_option(
         "--sm-partition", sm_partition_,
         "with --phase-lanes, on a GPU: how many of its multiprocessors compute answers while others compute "
         "prompts; auto moves the border as the load changes, off lets both use all of them in turns")
      ->check(CLI::Validator(
          [](std::string& text) -> std::string {
            if (text == "auto" || text == "off" || whole_in_range(1, 4096)(text).empty()) return "";
            return "expected auto, off or a whole number from 1 to 4096, got " + text;
          },
          ""))
      ->type_name("SMS")
      ->group(group);
  app.add_option(
         "--max-itl", max_itl_,
         "with --sm-partition auto: milliseconds between two tokens of an answer that the border keeps, if it can; "
         "0: not much longer than they would be with half of the GPU")
      ->check(in_range(0, 1e6))
      ->type_name("MS")
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--max-ttft", max_ttft_,
         "likewise: milliseconds that the prompts which are waiting may take; where they would take longer, they are "
         "computed in chunks beside the answers, on all multiprocessors, until none waits; 0: they wait")
      ->check(in_range(0, 1e9))
      ->type_name("MS")
      ->capture_default_str()
      ->group(group);
  app.add_option("--scheduling-policy", policy_, "fcfs (first come, first served) or priority")
      ->check(CLI::IsMember({"fcfs", "priority"}))
      ->type_name("POLICY")
      ->capture_default_str()
      ->group(group);
  const auto limit = [&](const char* name, int64_t& value, int64_t min, const char* help) {
    app.add_option(name, value, help)
        ->check(whole_in_range(min, kMaxNumBatchedTokensRange.max))
        ->type_name("N")
        ->capture_default_str()
        ->group(group);
  };
  limit("--max-num-partial-prefills", options_.max_num_partial_prefills, 1,
        "prompts longer than a step that get a chunk of it side by side");
  limit("--max-long-partial-prefills", options_.max_long_partial_prefills, 1,
        "of these, how many may be long, so that short ones pass them");
  limit(
      "--long-prefill-token-threshold", options_.long_prefill_token_threshold, 0,
      "a prompt that lacks more tokens is long; 0: none is, or 4 % of --max-model-len if several share a step");
  app.add_option("--watermark", options_.watermark,
                 "share of the KV blocks that stay free when a sequence starts beside others")
      ->check(in_range(0, 0.99))
      ->type_name("SHARE")
      ->capture_default_str()
      ->group(group);
  limit("--max-logprobs", options_.max_logprobs, -1,
        "log probabilities of a token that a request may ask for; -1: no limit, also the whole vocabulary");
  app.add_option("--threads", options_.runner.threads, "threads, of all ranks together [one per core]")
      ->check(whole_in_range(kThreadsRange))
      ->type_name("N")
      ->group(group);
  app.add_option("--kernel", kernels_, "force the kernel of an operator, e.g. matmul=loop; may repeat")
      ->type_name("OP=NAME")
      ->allow_extra_args(false)
      ->group(group);
  add_ranks(app);
  const char* gpu = "How a GPU is used (the CPU has none of this and ignores it)";
  app.add_option("--gpu-memory-utilization", options_.runner.gpu_memory_utilization,
                 "share of the GPU's memory for weights, activations and KV cache together")
      ->check(above_zero(1))
      ->type_name("U")
      ->capture_default_str()
      ->group(gpu);
  switch_off(app, "--enforce-eager", options_.runner.cuda_graphs,
             "launch every kernel by itself: no CUDA graphs")
      ->group(gpu);
  switch_off(app, "--no-async-scheduling", options_.runner.async_scheduling,
             "plan a step only when the one before is done")
      ->group(gpu);
  switch_off(app, "--no-dependent-launch", options_.runner.dependent_launch,
             "set a kernel up only when the one before it has ended")
      ->group(gpu);
  for (CLI::Option* added : app.get_options()) added_.push_back(added);
  added_.erase(added_.begin(), added_.begin() + static_cast<std::ptrdiff_t>(num_before));
}

void EngineFlags::add_ranks(CLI::App& app) {
  const char* group = "Several ranks (on GPUs each has one of its own)";
  app.add_option("--tensor-parallel-size", options_.runner.tensor_parallel_size,
                 "ranks that split every layer")
      ->check(whole_in_range(kTensorParallelSizeRange))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--pipeline-parallel-size", options_.runner.pipeline_parallel_size,
                 "stages, each with a part of the layers; times --tensor-parallel-size and "
                 "--prefill-context-parallel-size is the number of ranks")
      ->check(whole_in_range(kPipelineParallelSizeRange))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--prefill-context-parallel-size", options_.runner.prefill_context_parallel_size,
                 "ranks with the same weights that share out the new tokens of every step; each keeps "
                 "all keys")
      ->check(whole_in_range(kPrefillContextParallelSizeRange))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--decode-context-parallel-size", options_.runner.decode_context_parallel_size,
         "tensor-parallel ranks with the same KV head that share out its keys, where there are more ranks "
         "than KV heads; each keeps so small a part of every KV block")
      ->check(whole_in_range(kTensorParallelSizeRange))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--cp-kv-cache-interleave-size", options_.runner.kv_interleave_size,
                 "tokens that they take in turns")
      ->check(whole_in_range(kBlockSizeRange))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--pipeline-layers", pipeline_layers_,
                 "layers of each stage, e.g. 17,15 [so that the slowest stage is as fast as can be]")
      ->type_name("N,N,...")
      ->group(group);
  app.add_flag(
         "--enable-expert-parallel", options_.runner.expert_parallel,
         "a layer's experts are shared out whole over the ranks of a stage, those of all replicas together "
         "where these are threads of one program, instead of each one's width")
      ->group(group);
  app.add_flag("--enable-eplb", options_.runner.balance_experts,
               "with --enable-expert-parallel: experts change ranks while the engine runs, by how "
               "many tokens ask for each, and a line says how even the ranks were before and are after")
      ->group(group);
  app.add_option("--num-redundant-experts", options_.runner.num_redundant_experts,
                 "with --enable-eplb: copies in each layer of the experts that are asked for most")
      ->check(whole_in_range(0, 1 << 20))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--eplb-step-interval", eplb_step_interval_,
                 "with --enable-eplb: steps from one change to the next, whose tokens are counted for it")
      ->check(whole_in_range(1, 1 << 30))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_flag("--naive-pipeline", options_.runner.naive_pipeline,
               "one batch at a time goes through the stages (a baseline)")
      ->group(group);
  app.add_option(
         "--distributed-executor-backend", executor_backend_,
         "ranks as threads, as processes (mp) or as those that mpirun has started (mpi); auto: threads on the "
         "CPU, mp for several GPUs, mpi under mpirun")
      ->check(CLI::IsMember({"auto", "threads", "mp", "mpi"}))
      ->type_name("KIND")
      ->capture_default_str()
      ->group(group);
  nodes_.add(app);
  kv_transfer_.add(app);
  kv_store_.add(app);
}

bool EngineFlags::ranks_are_threads(const RunnerConfig& runner) const {
  return launched_world() == nullptr && executor_backend_ != "mp" && !several_gpus(runner);
}

void EngineFlags::expect_one_rank_for_lanes(const RunnerConfig& runner) const {
  LADDER_CHECK(num_ranks(runner) == 1,
               "--phase-lanes: one rank computes prompts beside answers, expected a size of 1 for "
               "--tensor-parallel-size, --pipeline-parallel-size and --prefill-context-parallel-size");
  LADDER_CHECK(launched_world() == nullptr && executor_backend_ != "mp" && executor_backend_ != "mpi",
               "--phase-lanes: both lanes are threads of one process, expected neither mpirun nor --nnodes, "
               "and --distributed-executor-backend auto");
  LADDER_CHECK(
      runner.expert_replicas == 1,
      "--phase-lanes: replicas that share out experts step together, and lanes do not: expected neither "
      "--enable-expert-parallel nor --data-parallel-split-experts");
  LADDER_CHECK(!options_.static_batching,
               "--phase-lanes and --static-batching: a static batch computes its prompts first, expected one "
               "of them");
}

std::string EngineFlags::flag_of_shares() const {
  if (!sm_partition_.empty()) return "--sm-partition";
  if (max_itl_ > 0) return "--max-itl";
  return max_ttft_ > 0 ? "--max-ttft" : "";
}

LaneContextsMaker EngineFlags::lane_contexts(const RunnerConfig& runner) const {
  const bool moves = sm_partition_.empty() || sm_partition_ == "auto";
  LADDER_CHECK(moves || (max_itl_ == 0 && max_ttft_ == 0),
               "{}: with --sm-partition {} the border does not move, expected --sm-partition auto",
               max_itl_ > 0 ? "--max-itl" : "--max-ttft", sm_partition_);
  LADDER_CHECK(
      max_ttft_ == 0 || options_.enable_chunked_prefill,
      "--max-ttft and --no-chunked-prefill: steps of both phases have a prompt's chunks beside the answers, "
      "expected one of them");
  LADDER_CHECK(!runner.device.is_cpu() || flag_of_shares().empty(),
               "{}: a CPU has no multiprocessors to share out, expected a GPU", flag_of_shares());
  if (runner.device.is_cpu() || sm_partition_ == "off") return {};
  std::vector<int> shares;
  if (!moves) shares.push_back(std::stoi(sm_partition_));
  SmBorderOptions border;
  border.max_itl = max_itl_ / 1e3;
  border.max_wait = max_ttft_ / 1e3;
  return [shares, border](const RunnerConfig& config) {
    return std::make_shared<SmLanes>(share_gpu(config.device, shares), border,
                                     [](const SmLanes::Report& report) {
                                       std::fputs(("ladder: " + to_line(report) + "\n").c_str(), stderr);
                                     });
  };
}

ExecutorMaker EngineFlags::executor_maker(const RunnerConfig& runner) const {
  if (phase_lanes_) {
    expect_one_rank_for_lanes(runner);
    return make_phase_executors(lane_contexts(runner));
  }
  LADDER_CHECK(
      flag_of_shares().empty(),
      "{}: prompts and answers have multiprocessors of their own where they are steps of their own, expected "
      "--phase-lanes",
      flag_of_shares());
  LaunchedWorld* const launched = launched_world();
  const std::string& wanted = executor_backend_;
  const bool by_mpirun = launched != nullptr && launched->started_by == "mpirun";
  const std::string without_mpi = communicator_kind("mpi").obstacle(2);
  LADDER_CHECK(wanted != "mpi" || without_mpi.empty(), "--distributed-executor-backend mpi: {}", without_mpi);
  LADDER_CHECK(wanted == "auto" || (wanted == "mpi" ? by_mpirun : launched == nullptr),
               "--distributed-executor-backend {}: {}", wanted,
               launched == nullptr ? "expected mpirun to start the ranks: mpirun -np N ladder ..."
                                   : fmt::format("{} has started several ranks, expected auto{}",
                                                 launched->started_by, by_mpirun ? " or mpi" : ""));
  LADDER_CHECK(launched == nullptr || by_mpirun || runner.device.is_cpu(),
               "--nnodes: ranks of several hosts add up on the CPU alone, expected --device cpu");
  if (launched != nullptr) return make_launched_executor(arguments(), *launched);
  LADDER_CHECK(!several_gpus(runner) || wanted != "threads",
               "--distributed-executor-backend threads: {} ranks on GPUs are processes, expected auto or mp",
               num_ranks(runner) * runner.expert_replicas);
  if (ranks_are_threads(runner)) return make_executor_in_process;
  return make_worker_executor(worker_program());
}

WorkerProgram EngineFlags::worker_program() const {
  WorkerProgram program;
  program.arguments = arguments();
  program.arguments.insert(program.arguments.begin(), "worker-process");
  return program;
}

ExecutorMaker EngineFlags::lockstep_maker(const RunnerConfig& runner,
                                          std::shared_ptr<LockstepGroups> groups) const {
  if (ranks_are_threads(runner)) return make_lockstep_executor(std::move(groups));
  return make_lockstep_executor(
      std::move(groups),
      [program = worker_program()](const ExecutorOptions& options, std::vector<int> experts) {
        return start_workers(options, program, std::move(experts));
      });
}

std::vector<std::string> EngineFlags::arguments() const {
  std::vector<std::string> words = {"--model=" +
                                    model};  // its default depends on where the program is asked from
  for (std::string& word : arguments_of(added_))
    if (!word.starts_with("--model=")) words.push_back(std::move(word));
  return words;
}

std::vector<std::string> EngineFlags::arguments_of_replica(const EngineOptions& own) const {
  std::vector<std::string> words = arguments();
  const RunnerConfig& runner = own.runner;
  replace_flag(words, "--device", device_name(runner.device));
  if (runner.threads > 0) replace_flag(words, "--threads", std::to_string(runner.threads));
  if (!runner.expert_parallel)  // as has been said
    std::erase_if(words, [](const std::string& word) {
      return word.starts_with("--enable-expert-parallel") || word.starts_with("--enable-eplb") ||
             word.starts_with("--num-redundant-experts=");
    });
  if (runner.batch.num_kv_blocks > 0)
    replace_flag(words, "--num-kv-blocks", std::to_string(runner.batch.num_kv_blocks));
  return words;
}

std::vector<std::string> EngineFlags::arguments_of_instance(const EngineOptions& own,
                                                            KvTransferRole role) const {
  std::vector<std::string> words = arguments_of_replica(own);
  replace_flag(words, "--tensor-parallel-size", std::to_string(own.runner.tensor_parallel_size));
  return kv_transfer_.with_role(std::move(words), role);
}

void EngineFlags::connect_with_others(EngineOptions& options, const DataParallelFlags* replicas) const {
  const KvTransferConfig config = kv_transfer_.config();
  if (kv_store_.wanted()) return connect_with_store(options);
  if (!kv_transfer_.wanted()) return;
  LADDER_CHECK(
      !phase_lanes_,
      "--kv-role and --phase-lanes: prompts go to another engine or to another lane, expected one of "
      "them");
  if (replicas != nullptr && replicas->has_door()) {
    LADDER_CHECK(
        replicas->range().num_remote == 0,
        "--kv-role: replicas of other machines are connected with nobody, expected all of them here; "
        "start several servers");
    LADDER_CHECK(options.runner.expert_replicas == 1,
                 "--kv-role: replicas that share out experts step together, expected neither "
                 "--enable-expert-parallel nor --data-parallel-split-experts");
    LADDER_CHECK(!config.produces() || is_a_free_port(config.listen),
                 "--kv-listen {}: each replica listens at a place of its own, expected a free port: "
                 "tcp://HOST:0",
                 config.listen);
  }
  LADDER_CHECK(launched_world() == nullptr,
               "--kv-role: keys and values are read from ranks on this machine, expected neither mpirun nor "
               "--nnodes");
  options.makers.kv_connector = kv_transfer_.maker();
  if (kv_transfer_.layer_by_layer())
    options.makers.executor = tells_layers(std::move(options.makers.executor));
}

void EngineFlags::connect_with_store(EngineOptions& options) const {
  LADDER_CHECK(!kv_transfer_.wanted(),
               "--kv-store and --kv-role: what is missing comes from a folder or from another engine, "
               "expected one of them");
  LADDER_CHECK(
      !phase_lanes_,
      "--kv-store and --phase-lanes: prompts are stored by an engine whose steps are of both phases, "
      "expected one of them");
  LADDER_CHECK(!options.static_batching,
               "--kv-store and --static-batching: static batching shares no prefixes, expected one of them");
  LADDER_CHECK(options.runner.expert_replicas == 1,
               "--kv-store: replicas that share out experts step together, expected neither "
               "--enable-expert-parallel nor --data-parallel-split-experts");
  LADDER_CHECK(launched_world() == nullptr,
               "--kv-store: keys and values are read from ranks on this machine, expected neither mpirun nor "
               "--nnodes");
  options.makers.kv_connector = kv_store_.maker();
}

ModelMakers EngineFlags::model_makers() const {
  ModelMakers makers;
  makers.linear_method = make_quantized_linear_methods(parse_load_format(load_format_));
  // Where no replicas share experts out, the second makes what the empty maker makes.
  makers.mlp = options_.runner.expert_parallel ? make_expert_parallel_mlp : make_split_experts_mlp;
  // Both are refused with --prefill-context-parallel-size, which makes the model too, in the flags' own words.
  if (options_.runner.balance_experts && options_.runner.prefill_context_parallel_size == 1)
    move_experts_by_load(makers, {.num_redundant = options_.runner.num_redundant_experts,
                                  .step_interval = eplb_step_interval_,
                                  .on_moved = [](const ExpertsMoved& moved) {
                                    fmt::print(stderr, "ladder: experts by load: {}\n", moved.str());
                                  }});
  makers.attention = decode_context_attention(options_.runner.decode_context_parallel_size,
                                              options_.runner.kv_interleave_size);
  // With both the configuration is refused, in the flags' own words (resolve_runner_config).
  if (!makers.attention) share_out_prefill(makers, options_.runner.prefill_context_parallel_size);
  return makers;
}

ExecutorOptions EngineFlags::parts() const {
  EngineOptions options;
  options.model = model;
  options.makers.model = model_makers();
  return executor_options(options, open_model_folder(model, "vllm"), {});
}

void EngineFlags::share_out_experts(RunnerConfig& runner, const DataParallelFlags* replicas) const {
  const int num_replicas = replicas == nullptr ? 1 : replicas->range().num_replicas;
  const std::string flag =
      runner.expert_parallel ? "--enable-expert-parallel" : "--data-parallel-split-experts";
  if (num_replicas > 1 && replicas->can_share_experts())
    runner.expert_replicas = num_replicas;
  else if (num_replicas > 1)
    fmt::print(stderr,
               "ladder: {}: each replica has all experts, as replicas share them out only where they are "
               "threads of one program\n",
               flag);
  if (!runner.expert_parallel && num_replicas == 1)
    fmt::print(stderr, "ladder: {} is off: there is one replica\n", flag);
  if (!runner.expert_parallel || num_expert_ranks(runner) > 1) return;
  std::fprintf(stderr,
               "ladder: --enable-expert-parallel is off: each stage is one rank, which has all experts\n");
  runner.expert_parallel = runner.balance_experts = false;
  runner.num_redundant_experts = 0;
}

EngineOptions EngineFlags::options(const DataParallelFlags* replicas) const {
  EngineOptions options = options_alone(replicas);
  connect_with_others(options, replicas);
  return options;
}

EngineOptions EngineFlags::options_of_instances(int num_producers) const {
  kv_transfer_.expect_for_instances(num_producers);
  LADDER_CHECK(!phase_lanes_,
               "--disaggregate and --phase-lanes: prompts go to another engine or to another lane, expected "
               "one of them");
  LADDER_CHECK(
      !kv_store_.wanted(),
      "--disaggregate and --kv-store: prompts come from another engine or from a folder, expected one "
      "of them");
  return options_alone(nullptr);
}

EngineOptions EngineFlags::options_alone(const DataParallelFlags* replicas) const {
  EngineOptions options = options_;
  options.model = model;
  if (dtype_ != "auto") options.dtype = parse_dtype(dtype_);
  options.policy = parse_scheduling_policy(policy_);
  RunnerConfig& runner = options.runner;
  runner.device = find_device(device_);
  runner.kv_cache_dtype = parse_kv_cache_dtype(kv_cache_dtype_, "--kv-cache-dtype");
  runner.load_format = parse_load_format(load_format_);
  // A rank's part is then a block as kernels like it, whatever the ranks.
  if (block_size_->count() == 0) runner.batch.block_size *= runner.decode_context_parallel_size;
  options.makers.split_layers = split_layers;
  options.makers.model = model_makers();
  // Random codes come from no tensors; they take the memory of those that the configuration speaks of.
  if (runner.load_format == LoadFormat::dummy) runner.linear_method = make_quantized_linear_methods();
  const bool split_experts = replicas != nullptr && replicas->split_experts();
  LADDER_CHECK(
      !split_experts || !runner.expert_parallel,
      "--data-parallel-split-experts and --enable-expert-parallel: replicas share experts out by their width "
      "or whole, expected one of them");
  if (split_experts || runner.expert_parallel) share_out_experts(runner, replicas);
  if (pipeline_layers_) {
    const std::vector<int64_t> layers = parse_stage_layers(*pipeline_layers_);
    LADDER_CHECK(std::ssize(layers) == runner.pipeline_parallel_size,
                 "--pipeline-layers {}: expected as many numbers as --pipeline-parallel-size, which is {}",
                 *pipeline_layers_, runner.pipeline_parallel_size);
    std::partial_sum(layers.begin(), layers.end(), std::back_inserter(runner.stage_ends));
  }
  options.makers.executor = executor_maker(runner);
  LADDER_CHECK(runner.batch.num_kv_blocks == 0 || kv_memory_.empty(),
               "--num-kv-blocks and --kv-memory say the same thing: expected one of them");
  if (!kv_memory_.empty()) runner.kv_memory = parse_bytes(kv_memory_, "--kv-memory");
  runner.kernels = forced_kernels(kernels_);
  check_forced_kernels(runner.kernels, runner.device);
  return options;
}

}  // namespace ladder
