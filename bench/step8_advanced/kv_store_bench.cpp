// What a prefix store is worth: the time to the first token of a prompt that is computed, of one that is computed and stored (into
// an empty folder, in the background), and of one that is loaded from the files of the one before, which are still in the
// system's memory. models/tinyworld in f32, an engine of one thread; the medians of rounds, which take turns. block_*: of one
// block of 16 tokens. Argument: tokens of the prompt, of which the last one is computed anyway.
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

constexpr int kRounds = 7;

struct OneEngine {
  std::shared_ptr<KvStoreConnector> store;
  std::unique_ptr<Engine> engine;

  OneEngine(int64_t prompt_tokens, const std::filesystem::path* folder) {
    EngineOptions options;
    options.model = std::filesystem::path(LADDER_SOURCE_DIR) / "models" / "tinyworld";
    options.dtype = DType::f32;
    options.enable_prefix_caching = false;  // what is loaded once would be there
    options.runner.threads = 1;
    options.runner.kv_memory = int64_t{256} << 20;
    options.runner.batch.max_model_len = prompt_tokens + 8;
    options.runner.batch.max_num_batched_tokens = 512;
    if (folder != nullptr)
      options.makers.kv_connector = [&](const ExecutorOptions& parts) {
        KvStoreConfig config;
        config.folder = *folder;
        store = std::make_shared<KvStoreConnector>(config, model_fingerprint(parts.model),
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

void kv_store(benchmark::State& state) {
  const int64_t tokens = state.range(0), blocks = (tokens - 1) / 16;
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("ladder-bench-store-{}", ::getpid());
  std::mt19937 random(1);
  std::array<std::vector<double>, 3> times;
  double block_bytes = 0;
  for (auto _ : state) {
    OneEngine plain(tokens, nullptr), stores(tokens, &folder), loads(tokens, &folder);
    for (int round = -1; round < kRounds; ++round) {
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
    LADDER_CHECK(stats.num_loaded_tokens == (kRounds + 1) * blocks * 16, "{} tokens were loaded",
                 stats.num_loaded_tokens);
    block_bytes = static_cast<double>(stats.num_loaded_bytes) / static_cast<double>((kRounds + 1) * blocks);
  }
  std::filesystem::remove_all(folder);
  const char* const names[] = {"computed", "stored", "loaded"};
  for (size_t i = 0; i < times.size(); ++i) state.counters[fmt::format("{}_ms", names[i])] = median(times[i]);
  state.counters["block_kB"] = block_bytes / 1e3;
  state.counters["block_computed_ms"] = median(times[0]) / static_cast<double>(blocks);
  state.counters["block_loaded_ms"] = median(times[2]) / static_cast<double>(blocks);
}

BENCHMARK(kv_store)->Arg(129)->Arg(513)->Arg(1921)->ArgName("tokens")->Iterations(1)->UseRealTime()->Unit(
    benchmark::kMillisecond);

}  // namespace
}  // namespace ladder::bench
