#pragma once
// The flags that several commands share.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "step3_sequence/sampling_params.h"
#include "step6_engine/load_engine.h"

namespace ladder {

// What "auto", "cpu", "cuda" or "cuda:N" means on this machine. Error naming --device: no GPU (and why), none
// of that number, or one that is too old; auto takes the CPU then.
Device find_device(const std::string& text);

// --model and everything about how it is run. add() declares the flags, options() reads them after parsing.
class EngineFlags {
 public:
  // `model_default`: the folder where --model is not given; none: it must be given.
  void add(CLI::App& app, RunnerConfig defaults = {}, std::string model_default = {});
  EngineOptions options() const;  // Error naming the flag

  std::string model;

 private:
  std::string dtype_ = "auto";
  std::string device_ = "auto";
  std::string load_format_ = "auto";
  std::string policy_ = "fcfs";
  std::string kv_memory_;
  RunnerConfig runner_;
  bool no_prefix_caching_ = false;
  bool no_chunked_prefill_ = false;
  bool static_batching_ = false;
  bool enforce_eager_ = false;
  bool no_async_scheduling_ = false;
  bool no_dependent_launch_ = false;
  std::vector<std::string> kernels_;
};

// The flags of SamplingParams.
class SamplingFlags {
 public:
  void add(CLI::App& app, const SamplingParams& defaults = {});
  SamplingParams params() const;  // Error naming the flag

 private:
  SamplingParams params_;
  std::string seed_;
  std::vector<std::string> stop_token_ids_;
};

// models/tinyworld, in this folder or in the checkout that this program lies in.
std::string tiny_model_folder();

// "512MiB", "2GiB", "1.5G", "4096". Error naming the flag.
int64_t parse_bytes(std::string_view text, std::string_view flag);

// What a flag's number must be: in [low, high]; an integer in [low, high]; in (0, high]. NaN is none of
// these.
CLI::Validator in_range(double low, double high);
CLI::Validator whole_in_range(int64_t low, int64_t high);
CLI::Validator above_zero(double high = std::numeric_limits<double>::max());

}  // namespace ladder
