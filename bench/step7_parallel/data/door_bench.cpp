// What the door costs a stream: updates of one token from an engine to their readers, with and without it.
#include <benchmark/benchmark.h>

#include "step7_parallel/data/data_parallel_client.h"

namespace ladder {
namespace {

// An engine that has no model and no thread: turn() hands a token to each of its streams.
class TurnClient final : public EngineClient {
 public:
  RequestStream submit(const Request& request, std::function<void()> on_ready) override {
    buffers_.push_back(std::make_shared<StreamBuffer>(std::move(on_ready)));
    return RequestStream(request.request_id, buffers_.back(), [] {});
  }
  void turn() {
    for (const auto& buffer : buffers_) buffer->push(CompletionUpdate(update_));
  }
  void end() {
    RequestOutput output;
    output.completions.resize(1);
    for (const auto& buffer : buffers_) buffer->end(RequestOutput(output));
  }
  void abort(const RequestId&) override {}
  EngineStats stats() const override { return {}; }
  void pause() override {}
  void resume() override {}
  bool reset_prefix_cache() override { return true; }
  void stop(std::chrono::milliseconds) override {}

 private:
  static CompletionUpdate word() {
    CompletionUpdate update;
    update.token_ids = {7};
    update.text = " word";
    return update;
  }

  std::vector<std::shared_ptr<StreamBuffer>> buffers_;
  CompletionUpdate update_ = word();
};

SchedulerConfig config() {
  SchedulerConfig config;
  config.batch.max_num_seqs = 512;
  config.batch.max_num_batched_tokens = 8192;
  config.batch.max_model_len = 4096;
  config.batch.block_size = 16;
  config.batch.num_kv_blocks = 4096;
  config.vocab_size = 1000;
  return config;
}

Request request() {
  Request request;
  request.prompt_token_ids = {1, 2, 3};
  request.sampling.max_tokens = 16;
  return request;
}

// A turn: every stream gets a token and is read.
void run(benchmark::State& state, EngineClient& client, TurnClient& engine) {
  std::vector<RequestStream> streams;
  for (int64_t i = 0; i < state.range(0); ++i) streams.push_back(client.submit(request()));
  for (auto _ : state) {
    engine.turn();
    for (RequestStream& stream : streams) benchmark::DoNotOptimize(stream.next(std::chrono::nanoseconds(0)));
  }
  engine.end();
  for (RequestStream& stream : streams) stream.output();
  state.counters["a_stream"] = benchmark::Counter(static_cast<double>(state.iterations() * state.range(0)),
                                                  benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void BM_StreamsWithoutADoor(benchmark::State& state) {
  TurnClient engine;
  run(state, engine, engine);
}
void BM_StreamsThroughADoor(benchmark::State& state) {
  TurnClient* engine = nullptr;
  DataParallelOptions options;
  options.start = [&engine](int) {
    auto client = std::make_unique<TurnClient>();
    engine = client.get();
    return StartedEngine{std::move(client), config()};
  };
  DataParallelClient door(std::move(options));
  run(state, door, *engine);
}
BENCHMARK(BM_StreamsWithoutADoor)->Arg(256)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_StreamsThroughADoor)->Arg(256)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ladder
