// How long after a prompt's end the last of its keys and values arrives: handed over as a whole, chunk by chunk, and layer by
// layer. hidden_share is 1 - tail of layer by layer / tail of the whole: the share of the transfer that nobody waits for. A tail
// below 0 ended before the prompt did, which has work of its own after its last layer's keys are stored; it counts as 0.
//
// The prompt is computed by an engine of one thread, models/tinyworld in f32; or on a GPU, one of 4,096 tokens of Llama-3.1-8B's
// shape (random weights, bf16), into caches on the second GPU, or on the same one where there is no other. The reader takes it
// into caches of its own, in the same process. Rounds of the three ways take turns, on two engines that differ in nothing else; the
// medians count: whole_prompt_ms is the prompt alone, whole_tail_ms the transfer alone, by_layer_prompt_ms the prompt beside it.
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
#include "step8_advanced/disaggregation/connector/layer_by_layer.h"

namespace ladder::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr int kRounds = 7;

struct Setup {
  std::string transport;
  std::string model = "tinyworld";
  LoadFormat load_format = LoadFormat::automatic;
  DType dtype = DType::f32;
  Device from = {}, to = {};
  int64_t prompt_tokens = 1921;  // the last one is the reader's own
  int64_t kv_memory = int64_t{256} << 20;
  int threads = 1;

  std::filesystem::path folder() const { return std::filesystem::path(LADDER_SOURCE_DIR) / "models" / model; }
  ModelFingerprint fingerprint() const { return model_fingerprint(folder(), load_format); }
};

#ifdef LADDER_HAS_CUDA
Setup on_gpus() {
  Setup setup{
      .transport = "cuda", .model = "llama-3.1-8b", .load_format = LoadFormat::dummy, .dtype = DType::bf16};
  setup.from = {DeviceType::cuda, 0};
  setup.to = {DeviceType::cuda, std::min(cuda_device_count(), 2) - 1};
  setup.prompt_tokens = 4096;
  setup.kv_memory = int64_t{2} << 30;
  setup.threads = 0;  // as many as there are, which make the weights
  return setup;
}
#endif

struct Producer {
  std::shared_ptr<KvTransferConnector> connector;
  KvLayout layout;
  std::unique_ptr<Engine> engine;

  Producer(const Setup& setup, const std::string& listen, int64_t chunk, bool layer_by_layer) {
    KvTransferConfig config;
    config.role = KvTransferRole::producer;
    config.listen = listen;
    config.layer_by_layer = layer_by_layer;
    EngineOptions options;
    options.model = setup.folder();
    options.dtype = setup.dtype;
    options.enable_prefix_caching = false;
    options.runner.device = setup.from;
    options.runner.load_format = setup.load_format;
    options.runner.threads = setup.threads;
    options.runner.kv_memory = setup.kv_memory;
    options.runner.batch.max_model_len = setup.prompt_tokens + 127;
    options.runner.batch.max_num_batched_tokens = chunk;
    options.runner.batch.max_num_seqs = 4;
    options.runner.cuda_graphs =
        false;  // long steps have none, and capturing takes longer than all that is measured
    options.makers.kv_connector = [&](const ExecutorOptions& parts) {
      layout = kv_layout_of(parts.spec, parts.config);
      connector = std::make_shared<KvTransferConnector>(config, setup.fingerprint(), layout);
      return MadeKvConnector{connector, connector};
    };
    options.makers.executor = tells_layers(std::move(options.makers.executor));
    engine = load_engine(options, open_model_folder(options.model));
  }
};

// The connector of an engine that loads, and its caches.
class Reader {
 public:
  Reader(const Setup& setup, const KvLayout& layout)
      : prompt_tokens_(setup.prompt_tokens), connector_(as_consumer(), setup.fingerprint(), layout) {
    const int64_t blocks = (prompt_tokens_ + layout.block_size - 1) / layout.block_size;
    RankKvCaches caches;
    caches.layers = {0, layout.num_layers};
    for (int64_t layer = 0; layer < layout.num_layers; ++layer) {
      KvCacheView& cache = caches.caches.emplace_back();
      const auto zeros = [&](int64_t dim) {
        return Tensor::zeros({blocks, layout.block_size, layout.num_kv_heads, dim}, layout.dtype, setup.to);
      };
      cache.k = zeros(layout.k_dim);
      cache.v = zeros(layout.v_dim);
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
    sequence.num_prompt_tokens = prompt_tokens_;
    sequence.prompt_token_ids = std::make_shared<const std::vector<int32_t>>(prompt);
    auto params = std::make_shared<const KvTransferParams>(from);
    sequence.kv_transfer = params;
    connector_.on_queued(sequence);
    connector_.start_load({sequence.id, table_, 0, prompt_tokens_ - 1, params});
  }
  // When the load that was started has ended. Error: it is not whole.
  Clock::time_point end() {
    while (true) {
      const KvConnectorEvents events = connector_.poll();
      if (!events.loads.empty()) {
        LADDER_CHECK(events.loads[0].num_tokens == prompt_tokens_ - 1, "{}", events.loads[0].error);
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

  const int64_t prompt_tokens_;
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

void hidden_share(benchmark::State& state, const Setup& setup) {
  enum Way { whole, by_chunk, by_layer };
  const auto place = [&](int number) {
    return setup.transport == "tcp"
               ? std::string("tcp://127.0.0.1:0")
               : fmt::format("{}://ladder-bench-{}-{}", setup.transport, ::getpid(), number);
  };
  std::mt19937 random(1);
  std::array<std::vector<double>, 3> tails, prompts;
  double megabytes = 0;
  for (auto _ : state) {
    Producer steps(setup, place(0), state.range(0), false), layers(setup, place(1), state.range(0), true);
    Reader reader(setup, steps.layout);
    for (int round = -1; round < kRounds; ++round)
      for (const Way way : {whole, by_chunk, by_layer}) {
        Producer& producer = way == by_layer ? layers : steps;
        std::vector<int32_t> tokens(static_cast<size_t>(setup.prompt_tokens));
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

void register_setup(const Setup& setup, std::initializer_list<int64_t> chunks) {
  auto* const registered =
      benchmark::RegisterBenchmark(("kv_layer_by_layer/" + setup.transport).c_str(),
                                   [setup](benchmark::State& state) { hidden_share(state, setup); });
  for (const int64_t chunk : chunks) registered->Arg(chunk);
  registered->ArgName("chunk")->Iterations(1)->UseRealTime()->Unit(benchmark::kMillisecond);
}

const bool kRegistered = [] {
  for (const char* transport : {"tcp", "shm"}) register_setup({.transport = transport}, {512, 2048});
#ifdef LADDER_HAS_CUDA
  if (cuda_device_count() > 0) register_setup(on_gpus(), {8192, 2048});
#endif
  return true;
}();

}  // namespace
}  // namespace ladder::bench
