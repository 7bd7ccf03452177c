// What a prefix store is worth: the time to the first token of a prompt that is computed, of one that is computed and stored (into
// an empty folder, in the background), and of one that is loaded from the files of the one before, which are still in the
// system's memory. models/tinyworld in f32, an engine of one thread; on a GPU Llama-3.1-8B's shape in bf16, random weights. The medians of
// rounds, which take turns. block_*: of one block of 16 tokens. Argument: tokens of the prompt, of which the last one is computed anyway.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <random>
#include <thread>

#include "step1_layers/core/error.h"
#include "step6_engine/load_engine.h"
#include "step8_advanced/disaggregation/store/kv_store.h"

namespace ladder::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

struct Setup {
  std::string model = "tinyworld";
  LoadFormat load_format = LoadFormat::automatic;
  DType dtype = DType::f32;
  Device device = {};
  int64_t chunk = 512;
  int64_t kv_memory = int64_t{256} << 20;
  int threads = 1, rounds = 7;
};

struct OneEngine {
  std::shared_ptr<KvStoreConnector> store;
  std::unique_ptr<Engine> engine;

  OneEngine(const Setup& setup, int64_t prompt_tokens, const std::filesystem::path* folder) {
    EngineOptions options;
    options.model = std::filesystem::path(LADDER_SOURCE_DIR) / "models" / setup.model;
    options.dtype = setup.dtype;
    options.enable_prefix_caching = false;  // what is loaded once would be there
    options.runner.device = setup.device;
    options.runner.load_format = setup.load_format;
    options.runner.threads = setup.threads;
    options.runner.kv_memory = setup.kv_memory;
    options.runner.cuda_graphs = false;  // long steps have none
    options.runner.batch.max_model_len = prompt_tokens + 8;
    options.runner.batch.max_num_batched_tokens = setup.chunk;
    options.runner.batch.max_num_seqs = 4;
    if (folder != nullptr)
      options.makers.kv_connector = [&](const ExecutorOptions& parts) {
        KvStoreConfig config;
        config.folder = *folder;
        config.queue_bytes = int64_t{2} << 30;  // all of a prompt: none of it is dropped
        store = std::make_shared<KvStoreConnector>(config,
                                                   model_fingerprint(parts.model, parts.config.load_format),
                                                   kv_layout_of(parts.spec, parts.config));
        return MadeKvConnector{store, store};
      };
    engine = load_engine(options, open_model_folder(options.model));
  }

  double milliseconds_of(const std::vector<int32_t>& prompt) {
    Request request;
    request.prompt_token_ids = prompt;
    request.sampling.max_tokens = 1;
    request.sampling.temperature = 0;
    const auto begin = Clock::now();
    engine->generate({request});
    return Milliseconds(Clock::now() - begin).count();
  }
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

void kv_store(benchmark::State& state, const Setup& setup) {
  const int64_t tokens = state.range(0), blocks = (tokens - 1) / 16;
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("ladder-bench-store-{}", ::getpid());
  std::mt19937 random(1);
  std::array<std::vector<double>, 3> times;
  double block_bytes = 0;
  for (auto _ : state) {
    OneEngine plain(setup, tokens, nullptr), stores(setup, tokens, &folder), loads(setup, tokens, &folder);
    for (int round = -1; round < setup.rounds; ++round) {
      std::vector<int32_t> prompt(static_cast<size_t>(tokens));
      for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 3000);
      const double computed = plain.milliseconds_of(prompt), stored = stores.milliseconds_of(prompt);
      while (stores.store->stats().num_stored_blocks < (round + 2) * (tokens / 16))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const double loaded = loads.milliseconds_of(prompt);
      if (round < 0) continue;  // buffers are made
      times[0].push_back(computed);
      times[1].push_back(stored);
      times[2].push_back(loaded);
    }
    const KvTransferStats stats = loads.store->stats();
    LADDER_CHECK(stats.num_loaded_tokens == (setup.rounds + 1) * blocks * 16, "{} tokens were loaded",
                 stats.num_loaded_tokens);
    block_bytes =
        static_cast<double>(stats.num_loaded_bytes) / static_cast<double>((setup.rounds + 1) * blocks);
  }
  std::filesystem::remove_all(folder);
  const char* const names[] = {"computed", "stored", "loaded"};
  for (size_t i = 0; i < times.size(); ++i) state.counters[fmt::format("{}_ms", names[i])] = median(times[i]);
  state.counters["block_kB"] = block_bytes / 1e3;
  state.counters["block_computed_ms"] = median(times[0]) / static_cast<double>(blocks);
  state.counters["block_loaded_ms"] = median(times[2]) / static_cast<double>(blocks);
}

void register_setup(const Setup& setup, std::initializer_list<int64_t> lengths) {
  auto* const registered = benchmark::RegisterBenchmark(
      ("kv_store/" + setup.model).c_str(), [setup](benchmark::State& state) { kv_store(state, setup); });
  for (const int64_t tokens : lengths) registered->Arg(tokens);
  registered->ArgName("tokens")->Iterations(1)->UseRealTime()->Unit(benchmark::kMillisecond);
}

const bool registered = [] {
  register_setup({}, {129, 513, 1921});
#ifdef LADDER_HAS_CUDA
  if (cuda_device_count() > 0)
    register_setup({.model = "llama-3.1-8b",
                    .load_format = LoadFormat::dummy,
                    .dtype = DType::bf16,
                    .device = {DeviceType::cuda, 0},
                    .chunk = 8192,
                    .kv_memory = int64_t{2} << 30,
                    .threads = 0,  // as many as there are, which make the weights
                    .rounds = 3},
                   {4097});
#endif
  return true;
}();

}  // namespace
}  // namespace ladder::bench
