// A prompt and answers at once on one GPU, of Llama-3.1-8B's shape in bf16 with random weights: a step of answers (one token each
// behind 8,192, with head and argmax, replayed from a graph) and one of a prompt (2,048 tokens that end at 8,192), over one model and
// one pool of blocks. Alone on every share of the multiprocessors, and beside each other: on shares (the border's two sides), on two
// plain streams, and on two streams of which that of the answers has priority. The names say how many multiprocessors the answers
// have, and how many answers there are. Runs where there is a GPU with green contexts.
//
//   decode_ms, decode_p99_ms   from the end of a step of answers to that of the next one: median, 99 %
//   prefill_ms                 likewise, of the prompt's steps: mean
//   capture_ms, graph_MB       of the graph: its two passes on the host, and what it takes of the GPU's memory once it has run
#ifdef LADDER_HAS_CUDA
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <thread>

#include "step1_layers/core/device_graph.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/sm_partition_cuda.h"
#include "step1_layers/sampling/argmax.h"
#include "step2_model/model.h"
#include "step4_runner/kv_cache_size.h"

namespace ladder::bench {
namespace {

constexpr int64_t kKeys = 8192, kChunk = 2048, kBlockSize = 16, kBlocksOfSequence = kKeys / kBlockSize;
constexpr int64_t kMaxAnswers = 32;
constexpr int kShares[] = {16, 24, 32, 40, 48, 64, 80};
constexpr int kAll = 0, kPlain = -1, kPriority = -2;  // in the place of a share's multiprocessors

// A step that can be computed again and again: the last `rows` tokens of each of `num_seqs` sequences of kKeys.
class RepeatedStep {
 public:
  RepeatedStep(Device device, int64_t first_sequence, int64_t num_seqs, int64_t rows) {
    std::vector<int32_t> ids, positions, starts{0}, lengths, tables;
    std::vector<int64_t> slots;
    for (int64_t s = 0; s < num_seqs; ++s) {
      const int64_t sequence = first_sequence + s;
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t position = kKeys - rows + i;
        ids.push_back(static_cast<int32_t>((sequence * 7919 + i * 104729) % 100000));
        positions.push_back(static_cast<int32_t>(position));
        slots.push_back(sequence * kKeys + position);
      }
      starts.push_back(static_cast<int32_t>(std::ssize(ids)));
      lengths.push_back(static_cast<int32_t>(kKeys));
      for (int64_t b = 0; b < kBlocksOfSequence; ++b)
        tables.push_back(static_cast<int32_t>(sequence * kBlocksOfSequence + b));
    }
    const auto put = [&](const auto& values) {
      using T = typename std::decay_t<decltype(values)>::value_type;
      return Tensor::from<T>(values, {std::ssize(values)}).to(device);
    };
    input_.input_ids = put(ids);
    input_.positions = put(positions);
    input_.attention.query_start_loc = put(starts);
    input_.attention.seq_lens = put(lengths);
    input_.attention.block_tables = Tensor::from<int32_t>(tables, {num_seqs, kBlocksOfSequence}).to(device);
    input_.attention.slot_mapping = put(slots);
    input_.attention.num_seqs = num_seqs;
    input_.attention.num_tokens = std::ssize(ids);
    input_.attention.max_query_len = rows;
    input_.attention.max_seq_len = kKeys;
    input_.host_query_start_loc = Tensor::from<int32_t>(starts, {num_seqs + 1});
    token_ids_ = Tensor::empty({num_seqs}, DType::i32, device);
  }

  // A token of each sequence; of one sequence that of its last row.
  void run(const OpContext& ctx, Model& model, std::span<const KvCacheView> caches) {
    input_.kv_caches = caches;
    const ArenaScope scope(*ctx.arena);
    const Tensor hidden = model.forward(ctx, input_);
    const int64_t num_seqs = token_ids_.dim(0);
    argmax(ctx, model.compute_logits(ctx, hidden.narrow(0, hidden.dim(0) - num_seqs, num_seqs)), token_ids_);
  }

 private:
  ModelInput input_;
  Tensor token_ids_;
};

// Half of what a border divides: its contexts by the multiprocessors of the answers, and scratch of its own.
struct Side {
  std::unique_ptr<Arena> arena;
  std::map<int, std::shared_ptr<CudaContext>> contexts;

  OpContext at(int share) const {
    OpContext ctx = contexts.at(share)->op_context();
    ctx.arena = arena.get();
    return ctx;
  }
};

struct Scene {
  Side prompts, answers;
  std::unique_ptr<Model> model;
  std::vector<KvCacheView> caches;
  std::map<int64_t, RepeatedStep> decode;
  std::unique_ptr<RepeatedStep> prefill;
  std::map<std::pair<int, int64_t>, DeviceGraph> graphs;

  Scene() {
    const auto whole_prompts = std::make_shared<CudaContext>(0),
               whole_answers = std::make_shared<CudaContext>(0);
    for (Side* side : {&prompts, &answers})
      side->arena = std::make_unique<Arena>(Device{DeviceType::cuda, 0});
    for (const int share : {kAll, kPlain, kPriority}) {
      prompts.contexts[share] = whole_prompts;
      answers.contexts[share] = share == kPriority ? with_priority(*whole_answers) : whole_answers;
    }
    for (const SmSplit& split : split_multiprocessors(*whole_answers, *whole_prompts, kShares)) {
      answers.contexts[split.first->num_multiprocessors()] = split.first;
      prompts.contexts[split.first->num_multiprocessors()] = split.second;
    }
    const std::filesystem::path folder = std::filesystem::path(LADDER_SOURCE_DIR) / "models/llama-3.1-8b";
    ModelOptions options;
    options.dtype = DType::bf16;
    options.load_format = LoadFormat::dummy;
    options.max_model_len = kKeys;
    const OpContext ctx = prompts.at(kAll);
    model = load_model(ctx, folder, load_decoder_spec(folder), options);
    caches = allocate_kv_caches(model->kv_cache_specs(), (kMaxAnswers + 1) * kBlocksOfSequence, kBlockSize,
                                ctx.device);
    for (const int64_t count : {1, 8, 32}) decode.emplace(count, RepeatedStep(ctx.device, 0, count, 1));
    prefill = std::make_unique<RepeatedStep>(ctx.device, kMaxAnswers, 1, kChunk);
  }

  static Scene& get() {
    static Scene scene;
    return scene;
  }

  void run_prefill(int share) { prefill->run(prompts.at(share), *model, caches); }
  const DeviceGraph& graph(int share, int64_t count) {
    DeviceGraph& graph = graphs[{share, count}];
    if (captured_.insert({share, count}).second) {
      const OpContext ctx = answers.at(share);
      RepeatedStep& step = decode.at(count);
      step.run(ctx, *model, caches);  // kernels load, plans are made
      device_synchronize(ctx.device, ctx.stream);
      graph.capture(ctx, [&] { step.run(ctx, *model, caches); });
    }
    return graph;
  }

 private:
  std::set<std::pair<int, int64_t>> captured_;
};

// Events at the ends of steps. At most two steps are launched ahead.
class Ends {
 public:
  explicit Ends(const OpContext& ctx) : ctx_(ctx) {}
  void record() {
    events_.emplace_back().record(ctx_);
    if (events_.size() > 2) events_[events_.size() - 3].wait();
  }
  std::vector<double> seconds() const {
    events_.back().wait();
    std::vector<double> gaps;
    for (size_t i = 1; i < events_.size(); ++i) gaps.push_back(events_[i].seconds_since(events_[i - 1]));
    return gaps;
  }

 private:
  OpContext ctx_;
  std::vector<DeviceEvent> events_;
};

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}
double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void report_decode(benchmark::State& state, const std::vector<double>& gaps) {
  state.counters["decode_ms"] = 1e3 * quantile(gaps, 0.5);
  state.counters["decode_p99_ms"] = 1e3 * quantile(gaps, 0.99);
}

std::vector<double> decode_for(int share, int64_t count, const std::function<bool(int64_t)>& more) {
  Scene& scene = Scene::get();
  const DeviceGraph& graph = scene.graph(share, count);
  const OpContext ctx = scene.answers.at(share);
  Ends ends(ctx);
  for (int64_t i = 0; more(i) || i < 4; ++i) {
    graph.replay(ctx);
    ends.record();
  }
  return ends.seconds();
}

std::vector<double> prefill_for(int share, int64_t steps) {
  Scene& scene = Scene::get();
  Ends ends(scene.prompts.at(share));
  for (int64_t i = 0; i < steps; ++i) {
    scene.run_prefill(share);
    ends.record();
  }
  return ends.seconds();
}

void decode_alone(benchmark::State& state, int share, int64_t count) {
  Scene& scene = Scene::get();
  const int64_t free_before = cuda_device_info(0).free_bytes;
  const auto begin = std::chrono::steady_clock::now();
  scene.graph(share, count);
  state.counters["capture_ms"] =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  decode_for(share, count, [](int64_t i) { return i < 10; });
  state.counters["graph_MB"] = static_cast<double>(free_before - cuda_device_info(0).free_bytes) / 1e6;
  for (auto _ : state) report_decode(state, decode_for(share, count, [](int64_t i) { return i < 60; }));
}

void prefill_alone(benchmark::State& state, int share) {
  prefill_for(share, 3);
  for (auto _ : state) state.counters["prefill_ms"] = 1e3 * mean(prefill_for(share, 12));
}

void together(benchmark::State& state, int share, int64_t count) {
  prefill_for(share, 2);
  decode_for(share, count, [](int64_t i) { return i < 10; });
  for (auto _ : state) {
    std::atomic<bool> done = false;
    std::vector<double> prompt_gaps;
    std::thread prompts([&] {
      prompt_gaps = prefill_for(share, 20);
      done = true;
    });
    const std::vector<double> gaps = decode_for(share, count, [&](int64_t) { return !done; });
    prompts.join();
    report_decode(state, gaps);
    state.counters["prefill_ms"] = 1e3 * mean(prompt_gaps);
    state.counters["prefill_max_ms"] = 1e3 * std::ranges::max(prompt_gaps);
  }
}

void add(const std::string& name, const std::function<void(benchmark::State&)>& work) {
  benchmark::RegisterBenchmark(("sm_partition/" + name).c_str(),
                               [work](benchmark::State& state) {
                                 try {
                                   work(state);
                                 } catch (const Error& error) {
                                   state.SkipWithError(error.what());
                                 }
                               })
      ->Iterations(1)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

const bool kRegistered = [] {
  if (cuda_device_count() == 0) return false;
  std::vector<int> shares(std::begin(kShares), std::end(kShares));
  shares.push_back(kAll);
  const auto name_of = [](int share) {
    return share == kAll        ? "all"
           : share == kPlain    ? "plain"
           : share == kPriority ? "priority"
                                : std::to_string(share);
  };
  for (const int share : shares)
    for (const int64_t count : {1, 8, 32})
      add(fmt::format("decode/{}/answers:{}", name_of(share), count),
          [=](benchmark::State& state) { decode_alone(state, share, count); });
  for (const int share : shares)
    add(fmt::format("prefill/{}", name_of(share)),
        [=](benchmark::State& state) { prefill_alone(state, share); });
  shares.back() = kPlain;
  shares.push_back(kPriority);
  for (const int share : shares)
    for (const int64_t count : {8, 32})
      add(fmt::format("together/{}/answers:{}", name_of(share), count),
          [=](benchmark::State& state) { together(state, share, count); });
  return true;
}();

}  // namespace
}  // namespace ladder::bench
#endif
