// How long after a prompt's end the last of its keys and values arrives: handed over as a whole, chunk by chunk, and layer by
// layer. hidden_share is 1 - tail of layer by layer / tail of the whole: the share of the transfer that nobody waits for. A tail
// below 0 ended before the prompt did, which has work of its own after its last layer's keys are stored; it counts as 0.
//
// The prompt is computed by an engine of one thread, models/tinyworld in f32; the reader takes it into caches of its own, in the
// same process. Rounds of the three ways take turns, on two engines that differ in nothing else; the medians count.
#include <benchmark/benchmark.h>

#include <unistd.h>
#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>
#include <random>

#include "step1_layers/core/error.h"
#include "step6_engine/load_engine.h"
#include "step8_advanced/disaggregation/connector/connector.h"

namespace ladder::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr int64_t kPromptTokens = 1921;  // the last one is the reader's own
constexpr int kRounds = 7;

std::filesystem::path model() {
  return std::filesystem::path(LADDER_SOURCE_DIR) / "models" / "tinyworld";
}

struct Producer {
  std::shared_ptr<KvTransferConnector> connector;
  KvLayout layout;
  std::unique_ptr<Engine> engine;

  Producer(const std::string& listen, int64_t chunk, bool layer_by_layer) {
    KvTransferConfig config;
    config.role = KvTransferRole::producer;
    config.listen = listen;
    config.layer_by_layer = layer_by_layer;
    EngineOptions options;
    options.model = model();
    options.dtype = DType::f32;
    options.enable_prefix_caching = false;
    options.runner.threads = 1;
    options.runner.kv_memory = int64_t{256} << 20;
    options.runner.batch.max_model_len = 2048;
    options.runner.batch.max_num_batched_tokens = chunk;
    options.makers.kv_connector = [&](const ExecutorOptions& parts) {
      layout = kv_layout_of(parts.spec, parts.config);
      connector = std::make_shared<KvTransferConnector>(config, model_fingerprint(model()), layout);
      return MadeKvConnector{connector, connector};
    };
    options.makers.executor = tells_layers(std::move(options.makers.executor));
    engine = load_engine(options, open_model_folder(options.model));
  }
};

// The connector of an engine that loads, and its caches.
class Reader {
 public:
  explicit Reader(const KvLayout& layout) : connector_(as_consumer(), model_fingerprint(model()), layout) {
    const int64_t blocks = (kPromptTokens + layout.block_size - 1) / layout.block_size;
    RankKvCaches caches;
    caches.layers = {0, layout.num_layers};
    for (int64_t layer = 0; layer < layout.num_layers; ++layer) {
      KvCacheView& cache = caches.caches.emplace_back();
      cache.k =
          Tensor::zeros({blocks, layout.block_size, layout.num_kv_heads, layout.k_dim}, layout.dtype, {});
      cache.v =
          Tensor::zeros({blocks, layout.block_size, layout.num_kv_heads, layout.v_dim}, layout.dtype, {});
    }
    connector_.register_kv_caches(std::move(caches));
    for (int64_t block = 0; block < blocks; ++block) table_.push_back(static_cast<int32_t>(block));
    connector_.on_event([this] {
      const std::lock_guard lock(mutex_);
      end_ = Clock::now();
    });
  }

  void start(const std::vector<int32_t>& prompt, const KvTransferParams& from) {
    Sequence sequence;
    sequence.id = ++num_loads_;
    sequence.num_prompt_tokens = kPromptTokens;
    sequence.prompt_token_ids = std::make_shared<const std::vector<int32_t>>(prompt);
    auto params = std::make_shared<const KvTransferParams>(from);
    sequence.kv_transfer = params;
    connector_.on_queued(sequence);
    connector_.start_load({sequence.id, table_, 0, kPromptTokens - 1, params});
  }
  // When the load that was started has ended. Error: it is not whole.
  Clock::time_point end() {
    while (true) {
      const KvConnectorEvents events = connector_.poll();
      if (!events.loads.empty()) {
        LADDER_CHECK(events.loads[0].num_tokens == kPromptTokens - 1, "{}", events.loads[0].error);
        const std::lock_guard lock(mutex_);
        return end_;
      }
      connector_.wait(std::chrono::seconds(1));
    }
  }
  int64_t num_bytes() const { return connector_.stats().num_loaded_bytes; }

 private:
  static KvTransferConfig as_consumer() {
    KvTransferConfig config;
    config.role = KvTransferRole::consumer;
    return config;
  }

  std::vector<int32_t> table_;
  std::mutex mutex_;
  Clock::time_point end_;
  SequenceId num_loads_ = 0;
  KvTransferConnector connector_;  // last: its threads end first
};

// Computes a prompt that has not been seen; when it ended.
struct Computed {
  Clock::time_point begin, end;
  std::optional<KvTransferParams> kept;
};
Computed compute(Producer& producer, const std::vector<int32_t>& prompt, const std::string& id) {
  Request request;
  request.prompt_token_ids = prompt;
  request.sampling.max_tokens = 1;
  request.sampling.temperature = 0;
  request.kv_transfer.emplace().do_remote_decode = true;
  request.kv_transfer->remote_request_id = id;
  producer.engine->take_kv_events();
  producer.engine->add_request(request);
  Computed computed{Clock::now(), {}, {}};
  while (true) {
    const StepResult result = producer.engine->step();
    if (result.finished.empty()) continue;
    computed.end = Clock::now();
    computed.kept = result.finished[0].kv_transfer;
    return computed;
  }
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

void hidden_share(benchmark::State& state, const std::string& transport) {
  enum Way { whole, by_chunk, by_layer };
  const auto place = [&](int number) {
    return transport == "tcp" ? std::string("tcp://127.0.0.1:0")
                              : fmt::format("shm://ladder-bench-{}-{}", ::getpid(), number);
  };
  std::mt19937 random(1);
  std::array<std::vector<double>, 3> tails, prompts;
  double megabytes = 0;
  for (auto _ : state) {
    Producer steps(place(0), state.range(0), false), layers(place(1), state.range(0), true);
    Reader reader(steps.layout);
    for (int round = -1; round < kRounds; ++round)
      for (const Way way : {whole, by_chunk, by_layer}) {
        Producer& producer = way == by_layer ? layers : steps;
        std::vector<int32_t> tokens(kPromptTokens);
        for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 3000);
        const std::string id = fmt::format("{}-{}", round, static_cast<int>(way));
        KvTransferParams from;
        from.do_remote_prefill = true;
        from.remote_request_id = id;
        from.remote_address = producer.connector->address();
        if (way != whole) reader.start(tokens, from);
        const Computed computed = compute(producer, tokens, id);
        if (way == whole) reader.start(tokens, *computed.kept);
        const double tail = Milliseconds(reader.end() - computed.end).count();
        if (round < 0) continue;  // connections are made
        tails[way].push_back(tail);
        prompts[way].push_back(Milliseconds(computed.end - computed.begin).count());
      }
    megabytes = static_cast<double>(reader.num_bytes()) / (3 * (kRounds + 1)) / 1e6;
  }
  state.counters["MB"] = megabytes;
  const char* const names[] = {"whole", "by_chunk", "by_layer"};
  for (const Way way : {whole, by_chunk, by_layer}) {
    state.counters[fmt::format("{}_prompt_ms", names[way])] = median(prompts[way]);
    state.counters[fmt::format("{}_tail_ms", names[way])] = median(tails[way]);
  }
  state.counters["hidden_share"] = 1 - std::max(0.0, median(tails[by_layer])) / median(tails[whole]);
}

const bool kRegistered = [] {
  for (const std::string transport : {"tcp", "shm"})
    benchmark::RegisterBenchmark(("kv_layer_by_layer/" + transport).c_str(),
                                 [transport](benchmark::State& state) { hidden_share(state, transport); })
        ->Arg(512)
        ->Arg(2048)
        ->ArgName("chunk")
        ->Iterations(1)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace ladder::bench
