#include "cli/flags.h"

#include <charconv>
#include <filesystem>
#include <limits>
#include <optional>

#include "cli/kernels.h"
#include "cli/request_lines.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"

namespace ladder {

namespace {

DType parse_dtype(const std::string& name) {
  if (name == "f32") return DType::f32;
  if (name == "f16") return DType::f16;
  return DType::bf16;
}

// The N of cuda:N, 0 for cuda alone; none for anything else.
std::optional<int> cuda_index(std::string_view text) {
  if (text == "cuda") return 0;
  if (!text.starts_with("cuda:")) return {};
  text.remove_prefix(5);
  int index = -1;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc() || rest != text.data() + text.size() || index < 0) return {};
  return index;
}

CLI::Validator whole_in(FlagRange range) {
  return whole_in_range(range.min, range.max);
}

CLI::Validator device_name_check() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text == "auto" || text == "cpu" || cuda_index(text)) return {};
        return fmt::format("expected auto, cpu, cuda or cuda:N, found \"{}\"", text);
      },
      "");
}

}  // namespace

Device find_device(const std::string& text) {
  if (text == "cpu") return {};
  std::string reason;
  const int count = cuda_device_count(&reason);
  if (text == "auto") {
    return count > 0 && usable(cuda_device_info(0)) ? Device{DeviceType::cuda, 0} : Device{};
  }
  LADDER_CHECK(count > 0, "--device {}: no GPU can be used: {}", text, reason);
  const int index = cuda_index(text).value();
  LADDER_CHECK(index < count, "--device {}: this machine has {} GPU{}, the last is cuda:{}", text, count,
               count == 1 ? "" : "s", count - 1);
  check_usable(cuda_device_info(index), "--device " + text);
  return {DeviceType::cuda, index};
}

CLI::Validator in_range(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        double value = 0.0;
        if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return {};
        return fmt::format("expected a number in [{}, {}], found \"{}\"", low, high, text);
      },
      "");
}

CLI::Validator whole_in_range(int64_t low, int64_t high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        int64_t value = 0;
        const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && rest == text.data() + text.size() && value >= low && value <= high) {
          text = std::to_string(value);  // or else CLI11 reads 010 as octal
          return {};
        }
        return fmt::format("expected an integer in [{}, {}], found \"{}\"", low, high, text);
      },
      "");
}

CLI::Validator above_zero(double high) {
  return CLI::Validator(
      [high](std::string& text) -> std::string {
        double value = 0.0;
        if (CLI::detail::lexical_cast(text, value) && value > 0.0 && value <= high) return {};
        return fmt::format(
            "expected a number above 0{}, found \"{}\"",
            high < std::numeric_limits<double>::max() ? fmt::format(" and at most {}", high) : "", text);
      },
      "");
}

int64_t parse_bytes(std::string_view text, std::string_view flag) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  double value = 0.0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + digits, value);
  std::string_view unit = text.substr(digits);
  double scale = -1.0;
  if (unit.empty() || unit == "B") scale = 1.0;
  if (unit == "K" || unit == "KiB") scale = 1024.0;
  if (unit == "M" || unit == "MiB") scale = 1024.0 * 1024.0;
  if (unit == "G" || unit == "GiB") scale = 1024.0 * 1024.0 * 1024.0;
  if (unit == "T" || unit == "TiB") scale = 1024.0 * 1024.0 * 1024.0 * 1024.0;
  if (unit == "KB") scale = 1e3;
  if (unit == "MB") scale = 1e6;
  if (unit == "GB") scale = 1e9;
  const bool number = digits > 0 && error == std::errc() && rest == text.data() + digits;
  LADDER_CHECK(number && scale > 0.0 && value * scale >= 1.0 && value * scale < 0x1p50,
               "{}: expected a size like 512MiB or 2GiB, found \"{}\"", flag, text);
  return static_cast<int64_t>(value * scale);
}

std::string tiny_model_folder() {
  const std::filesystem::path tiny = std::filesystem::path("models") / "tinyworld";
  std::error_code none;
  std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  while (!std::filesystem::is_directory(tiny, none) && folder.has_relative_path()) {
    if (std::filesystem::is_directory(folder / tiny, none)) return (folder / tiny).string();
    folder = folder.parent_path();
  }
  return tiny.string();
}

void EngineFlags::add(CLI::App& app, RunnerConfig defaults, std::string model_default) {
  runner_ = defaults;
  model = std::move(model_default);
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
  app.add_option("--max-num-seqs", runner_.batch.max_num_seqs,
                 fmt::format("sequences in one step [{}]",
                             unless(defaults.batch.max_num_seqs, on_cpu.max_num_seqs, on_gpu.max_num_seqs)))
      ->check(whole_in(kMaxNumSeqsRange))
      ->type_name("N")
      ->group(group);
  app.add_option(
         "--max-num-batched-tokens", runner_.batch.max_num_batched_tokens,
         fmt::format(
             "tokens computed in one step [{}; the longest sequence where prompts are computed whole]",
             unless(defaults.batch.max_num_batched_tokens, on_cpu.max_num_batched_tokens,
                    on_gpu.max_num_batched_tokens)))
      ->check(whole_in(kMaxNumBatchedTokensRange))
      ->type_name("N")
      ->group(group);
  app.add_option("--max-model-len", runner_.batch.max_model_len,
                 "longest sequence, prompt and output [the model's, or what the KV cache holds]")
      ->check(whole_in(kMaxModelLenRange))
      ->type_name("N")
      ->group(group);
  app.add_option("--block-size", runner_.batch.block_size, "tokens in one KV block")
      ->check(whole_in(kBlockSizeRange))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--num-kv-blocks", runner_.batch.num_kv_blocks, "KV blocks [as many as --kv-memory holds]")
      ->check(whole_in(kNumKvBlocksRange))
      ->type_name("N")
      ->group(group);
  app.add_option("--kv-memory", kv_memory_,
                 "memory for the KV cache, e.g. 512MiB or 2GiB [a share of the device's]")
      ->type_name("SIZE")
      ->group(group);
  app.add_flag("--no-prefix-caching", no_prefix_caching_, "recompute prompts that begin alike")->group(group);
  app.add_flag("--no-chunked-prefill", no_chunked_prefill_, "compute every prompt whole, in one step")
      ->group(group);
  app.add_flag("--static-batching", static_batching_, "run a batch until all of it is done (a baseline)")
      ->group(group);
  app.add_option("--scheduling-policy", policy_, "fcfs (first come, first served) or priority")
      ->check(CLI::IsMember({"fcfs", "priority"}))
      ->type_name("POLICY")
      ->capture_default_str()
      ->group(group);
  app.add_option("--threads", runner_.threads, "threads, of all ranks together [one per core]")
      ->check(whole_in(kThreadsRange))
      ->type_name("N")
      ->group(group);
  app.add_option("--tensor-parallel-size", runner_.tensor_parallel_size,
                 "ranks (as threads of the CPU) that split every layer")
      ->check(whole_in(kTensorParallelSizeRange))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--kernel", kernels_, "force the kernel of an operator, e.g. matmul=loop; may repeat")
      ->type_name("OP=NAME")
      ->allow_extra_args(false)
      ->group(group);
  const char* gpu = "How a GPU is used (the CPU has none of this and ignores it)";
  app.add_option("--gpu-memory-utilization", runner_.gpu_memory_utilization,
                 "share of the GPU's memory for weights, activations and KV cache together")
      ->check(above_zero(1))
      ->type_name("U")
      ->capture_default_str()
      ->group(gpu);
  app.add_flag("--enforce-eager", enforce_eager_, "launch every kernel by itself: no CUDA graphs")
      ->group(gpu);
  app.add_flag("--no-async-scheduling", no_async_scheduling_, "plan a step only when the one before is done")
      ->group(gpu);
  app.add_flag("--no-dependent-launch", no_dependent_launch_,
               "set a kernel up only when the one in front has ended")
      ->group(gpu);
}

EngineOptions EngineFlags::options() const {
  EngineOptions options;
  options.model = model;
  if (dtype_ != "auto") options.dtype = parse_dtype(dtype_);
  options.runner = runner_;
  options.runner.device = find_device(device_);
  LADDER_CHECK(options.runner.device.is_cpu() || runner_.tensor_parallel_size == 1,
               "--tensor-parallel-size {}: on GPUs one rank only so far; with --device cpu ranks are threads",
               runner_.tensor_parallel_size);
  options.runner.cuda_graphs = !enforce_eager_;
  options.runner.async_scheduling = !no_async_scheduling_;
  options.runner.dependent_launch = !no_dependent_launch_;
  options.runner.load_format = load_format_ == "dummy" ? LoadFormat::dummy : LoadFormat::automatic;
  LADDER_CHECK(runner_.batch.num_kv_blocks == 0 || kv_memory_.empty(),
               "--num-kv-blocks and --kv-memory say the same thing: expected one of them");
  if (!kv_memory_.empty()) options.runner.kv_memory = parse_bytes(kv_memory_, "--kv-memory");
  for (const std::string& kernel : kernels_) {
    const size_t equals = kernel.find('=');
    LADDER_CHECK(equals != std::string::npos && equals > 0 && equals + 1 < kernel.size(),
                 "--kernel: expected operator=variant, found \"{}\"", kernel);
    const auto [forced, is_first] =
        options.runner.kernels.emplace(kernel.substr(0, equals), kernel.substr(equals + 1));
    LADDER_CHECK(is_first || forced->second == kernel.substr(equals + 1),
                 "--kernel {} and --kernel {}={}: expected one of them", kernel, forced->first,
                 forced->second);
  }
  check_forced_kernels(options.runner.kernels, options.runner.device);
  options.policy = parse_scheduling_policy(policy_);
  options.enable_prefix_caching = !no_prefix_caching_;
  options.enable_chunked_prefill = !no_chunked_prefill_;
  options.static_batching = static_batching_;
  return options;
}

void SamplingFlags::add(CLI::App& app, const SamplingParams& defaults) {
  params_ = defaults;
  const char* group = "Sampling";
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  app.add_option("--max-tokens", params_.max_tokens, "tokens to generate")
      ->check(whole_in_range(1, kMax))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--temperature", params_.temperature, "0 is greedy")
      ->check(in_range(0, 100))
      ->type_name("T")
      ->capture_default_str()
      ->group(group);
  app.add_option("--top-k", params_.top_k, "keep the K likeliest tokens; 0: all")
      ->check(whole_in_range(0, kMax))
      ->type_name("K")
      ->capture_default_str()
      ->group(group);
  app.add_option("--top-p", params_.top_p, "keep the likeliest tokens that together reach P")
      ->check(above_zero(1))
      ->type_name("P")
      ->capture_default_str()
      ->group(group);
  app.add_option("--min-p", params_.min_p, "keep tokens at least P times as likely as the likeliest")
      ->check(in_range(0, 1))
      ->type_name("P")
      ->capture_default_str()
      ->group(group);
  app.add_option("--repetition-penalty", params_.repetition_penalty, "over prompt and output; 1: none")
      ->check(above_zero())
      ->type_name("R")
      ->capture_default_str()
      ->group(group);
  app.add_option("--presence-penalty", params_.presence_penalty, "over output, -2 to 2; 0: none")
      ->check(in_range(-2, 2))
      ->type_name("R")
      ->capture_default_str()
      ->group(group);
  app.add_option("--frequency-penalty", params_.frequency_penalty, "over output, -2 to 2; 0: none")
      ->check(in_range(-2, 2))
      ->type_name("R")
      ->capture_default_str()
      ->group(group);
  app.add_option("--seed", seed_, "the same seed gives the same tokens [a new one every time]")
      ->type_name("S")
      ->group(group);
  app.add_option("--n", params_.n, "completions of every prompt")
      ->check(whole_in_range(1, kMaxCompletions))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  // allow_extra_args(false) keeps CLI11 from reading "[a,b]" as a list of two.
  app.add_option("--stop", params_.stop, "end before this text; may repeat")
      ->type_name("STR")
      ->expected(1, 4096)
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--stop-token-ids", stop_token_ids_, "end after one of these tokens, e.g. 1,2; may repeat")
      ->type_name("IDS")
      ->expected(1, 4096)
      ->group(group);
  app.add_flag("--ignore-eos", params_.ignore_eos, "go on after an end token")->group(group);
  app.add_option("--logprobs", params_.logprobs,
                 "log probabilities: of the chosen token and of the K likeliest")
      ->check(whole_in_range(0, kMaxLogprobs))
      ->type_name("K")
      ->group(group);
}

SamplingParams SamplingFlags::params() const {
  SamplingParams params = params_;
  if (!seed_.empty()) {
    uint64_t seed = 0;
    const auto [rest, error] = std::from_chars(seed_.data(), seed_.data() + seed_.size(), seed);
    LADDER_CHECK(error == std::errc() && rest == seed_.data() + seed_.size(),
                 "--seed: expected an integer in [0, 2^64), found \"{}\"", seed_);
    params.seed = seed;
  }
  for (const std::string& list : stop_token_ids_) {
    const std::vector<int32_t> ids = parse_token_ids(list, "--stop-token-ids");
    params.stop_token_ids.insert(params.stop_token_ids.end(), ids.begin(), ids.end());
  }
  for (const std::string& stop : params.stop)
    LADDER_CHECK(!stop.empty() && is_utf8(stop), "--stop: expected a text that is not empty, in UTF-8");
  return params;
}

}  // namespace ladder
