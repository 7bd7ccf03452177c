// Prompts beside answers on one GPU: the cures of chapter 8.7 under the same load, each the whole engine in this process, of
// Llama-3.1-8B's shape in bf16 with random weights.
//
//   one_gpu/chunks_N/...   one lane, prompts in chunks of N beside the answers (N = --max-num-batched-tokens)
//   one_gpu/streams/...    a lane for prompts and one for answers, on two plain streams
//   one_gpu/shares_N/...   the same on shares of the multiprocessors, whose border keeps N ms a token (--max-itl N)
//   one_gpu/shares_N_M/... and chunks of 512 beside the answers, until none waits, where what waits would take longer than M ms
//                          (--max-ttft M)
//
//   long    prompts of 4,096 to 16,384 tokens, 256 out, 1.2 a second: about 0.7 of what the GPU can compute of prompts
//   full    the same, 24 at once
//   short   prompts of 1,024 tokens, 128 out, 10 a second
//
//   gap_*     from a token of an answer to its next one, as it comes out of the engine; second_*: of these, from the first to the
//             second, between which an answer changes its lane; first_*: from arrival to the first; longest_at_s: when the
//             longest gap ended, from the first arrival
#ifdef LADDER_HAS_CUDA
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "step1_layers/core/error.h"
#include "step6_engine/load_engine.h"
#include "step8_advanced/disaggregation/partition/phase_executors.h"
#include "step8_advanced/disaggregation/partition/sm_lanes_maker.h"

namespace ladder::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPromptStep = 4096;  // of a prefill lane

struct Load {
  const char* name;
  int64_t min_prompt, max_prompt, num_output;
  double rate;  // a second; 0: all at once
  int num_requests;
};
constexpr Load kLoads[] = {{"long", 4096, 16384, 256, 1.2, 40},
                           {"full", 4096, 16384, 256, 0, 24},
                           {"short", 1024, 1024, 128, 10, 120}};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void tell(const SmLanes::Report& report) {
  std::fputs((to_line(report) + "\n").c_str(), stderr);
}

EngineOptions options_of(const std::string& cure) {
  EngineOptions options;
  options.model = std::filesystem::path(LADDER_SOURCE_DIR) / "models/llama-3.1-8b";
  options.dtype = DType::bf16;
  options.runner.load_format = LoadFormat::dummy;
  options.runner.device = {DeviceType::cuda, 0};
  options.runner.batch.max_model_len = 16768;
  options.runner.batch.max_num_batched_tokens =
      cure.starts_with("chunks_") ? std::stoll(cure.substr(7)) : kPromptStep;
  options.enable_prefix_caching = false;
  if (cure == "streams") options.makers.executor = make_phase_executors();
  if (cure.starts_with("shares_")) {
    SmBorderOptions border;
    border.max_itl = std::stod(cure.substr(7)) / 1e3;
    if (const size_t second = cure.find('_', 7); second != std::string::npos)
      border.max_wait = std::stod(cure.substr(second + 1)) / 1e3;
    options.makers.executor = make_phase_executors([border](const RunnerConfig& config) {
      return std::make_shared<SmLanes>(share_gpu(config.device, {}), border, tell);
    });
  }
  return options;
}

// The engine of one cure at a time.
Engine& engine_of(const std::string& cure) {
  static std::string made;
  static std::unique_ptr<Engine> engine;
  if (made != cure) {
    engine.reset();
    made.clear();
    const EngineOptions options = options_of(cure);
    engine = load_engine(options, open_model_folder(options.model));
    made = cure;
  }
  return *engine;
}

struct Arrivals {
  std::vector<Request> requests;
  std::vector<double> at;  // seconds
};
Arrivals draw(const Load& load) {
  std::mt19937_64 random(7);
  std::uniform_int_distribution<int64_t> length(load.min_prompt, load.max_prompt);
  std::uniform_int_distribution<int32_t> token(0, 99'999);
  std::uniform_real_distribution<double> share(0, 1);
  Arrivals arrivals;
  double now = 0;
  for (int i = 0; i < load.num_requests; ++i) {
    Request& request = arrivals.requests.emplace_back();
    for (int64_t left = length(random); left > 0; --left) request.prompt_token_ids.push_back(token(random));
    request.sampling.max_tokens = load.num_output;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    arrivals.at.push_back(now);
    if (load.rate > 0) now -= std::log(1 - share(random)) / load.rate;
  }
  return arrivals;
}

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

void run(benchmark::State& state, const std::string& cure, const Load& load) {
  Engine& engine = engine_of(cure);
  const Arrivals arrivals = draw(load);
  for (auto _ : state) {
    std::unordered_map<RequestId, double> last;  // of the latest token; before the first the arrival
    std::unordered_map<RequestId, int64_t> num_tokens;
    std::vector<double> firsts, second_gaps, gaps;
    double longest = 0, longest_at = 0;
    const auto begin = Clock::now();
    size_t next = 0;
    while (next < arrivals.at.size() || engine.has_unfinished()) {
      for (; next < arrivals.at.size() && seconds_since(begin) >= arrivals.at[next]; ++next)
        last[engine.add_request(arrivals.requests[next])] = arrivals.at[next];
      if (!engine.has_unfinished()) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        continue;
      }
      const StepResult result = engine.step();
      const double now = seconds_since(begin);
      for (const CompletionUpdate& update : result.updates) {
        if (update.token_ids.empty()) continue;
        double& before = last.at(update.request_id);
        const int64_t index = num_tokens[update.request_id]++;
        (index == 0 ? firsts : gaps).push_back(now - before);
        if (index == 1) second_gaps.push_back(now - before);
        if (index > 0 && now - before > longest) {
          longest = now - before;
          longest_at = now;
        }
        before = now;
      }
    }
    const double seconds = seconds_since(begin);
    const auto milliseconds = [](const std::vector<double>& values, double share) {
      return 1e3 * quantile(values, share);
    };
    state.counters["gap_ms"] = milliseconds(gaps, 0.5);
    state.counters["gap_p99_ms"] = milliseconds(gaps, 0.99);
    state.counters["gap_max_ms"] = milliseconds(gaps, 1);
    state.counters["longest_at_s"] = longest_at;
    state.counters["second_ms"] = milliseconds(second_gaps, 0.5);
    state.counters["second_p99_ms"] = milliseconds(second_gaps, 0.99);
    state.counters["first_ms"] = milliseconds(firsts, 0.5);
    state.counters["first_p99_ms"] = milliseconds(firsts, 0.99);
    state.counters["tokens_per_second"] = static_cast<double>(load.num_requests * load.num_output) / seconds;
  }
}

const bool kRegistered = [] {
  if (cuda_device_count() == 0) return false;
  for (const char* cure :
       {"shares_9", "shares_9_6000", "shares_9_4000", "shares_9_1000", "shares_20", "chunks_256",
        "chunks_512", "chunks_1024", "chunks_2048", "chunks_8192", "streams"})
    for (const Load& load : kLoads)
      benchmark::RegisterBenchmark(fmt::format("one_gpu/{}/{}", cure, load.name).c_str(),
                                   [cure = std::string(cure), &load](benchmark::State& state) {
                                     try {
                                       run(state, cure, load);
                                     } catch (const Error& error) {
                                       state.SkipWithError(error.what());
                                     }
                                   })
          ->Iterations(1)
          ->UseRealTime()
          ->Unit(benchmark::kSecond);
  return true;
}();

}  // namespace
}  // namespace ladder::bench
#endif
