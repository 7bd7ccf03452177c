// The decoder at the shape of Qwen3-0.6B with dummy weights: the two ends of serving, one token for one
// sequence and a prompt of 512, and what it takes to make the weights.
//
// Decoding one token reads every weight once, so its ceiling is the read bandwidth of the same threads;
// prefill multiplies every weight by 512 rows, so its ceiling is the library's matrix product.
#include <filesystem>

#include "bench/support/bench_support.h"
#include "step2_model/model.h"
#include "tests/support/model_session.h"

namespace ladder::bench {
namespace {

using testing::ModelSession;

const std::filesystem::path kModel = std::filesystem::path(LADDER_SOURCE_DIR) / "models/qwen3-0.6b";
constexpr int64_t kMaxModelLen = 2048;

std::unique_ptr<Model> make_model(DType dtype) {
  ModelOptions options;
  options.dtype = dtype;
  options.load_format = LoadFormat::dummy;
  options.max_model_len = kMaxModelLen;
  return load_model({}, kModel, load_decoder_spec(kModel), options);
}

// Both benchmarks of a dtype share the model: it takes seconds to make.
Model& model_of(DType dtype) {
  static DType held = DType::f32;
  static std::unique_ptr<Model> model;
  if (model == nullptr || held != dtype) {
    model.reset();
    model = make_model(dtype);
    held = dtype;
  }
  return *model;
}

// Weights that every token is multiplied by: all but the rotary table (the tied embedding is the LM head).
double matrix_bytes(const Model& model) {
  return static_cast<double>(model.spec().num_parameters() * dtype_size(model.dtype()));
}

void decoder_decode(benchmark::State& state, DType dtype) {
  Model& model = model_of(dtype);
  ModelSession session(model, {}, 16, kMaxModelLen / 16);
  session.step({{0, std::vector<int32_t>(16, 1)}});
  int64_t length = 16;
  double seconds = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    session.step({{0, {static_cast<int32_t>(length)}}});
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (++length == kMaxModelLen) {
      state.SkipWithError("the cache is full: ask for fewer iterations");
      break;
    }
  }
  const auto steps = static_cast<double>(state.iterations());
  set_counters(state, seconds, matrix_bytes(model) * steps,
               2.0 * static_cast<double>(model.spec().num_parameters()) * steps, dtype);
  state.counters["tokens/s"] = steps / seconds;
}
BENCHMARK_CAPTURE(decoder_decode, bf16, DType::bf16)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decoder_decode, f32, DType::f32)->UseRealTime()->Unit(benchmark::kMillisecond);

void decoder_prefill_512(benchmark::State& state, DType dtype) {
  constexpr int64_t kTokens = 512;
  Model& model = model_of(dtype);
  const DecoderSpec& spec = model.spec();
  std::vector<int32_t> ids(kTokens);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 1000);
  double seconds = 0;
  for (auto _ : state) {
    ModelSession session(model, {}, 16, kTokens / 16);
    const auto start = std::chrono::steady_clock::now();
    session.forward({{0, ids}});
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  // The layers' matrices for every token, and the two products of causal attention; no logits.
  const auto layers = static_cast<double>(spec.num_parameters() - spec.vocab_size * spec.hidden_size);
  const double attention = 4.0 * static_cast<double>(spec.num_layers * spec.num_heads * spec.head_dim) *
                           (kTokens + 1) / 2 * kTokens;
  const auto steps = static_cast<double>(state.iterations());
  set_counters(state, seconds, 0, (2.0 * layers * kTokens + attention) * steps, dtype);
  state.counters["tokens/s"] = kTokens * steps / seconds;
}
BENCHMARK_CAPTURE(decoder_prefill_512, bf16, DType::bf16)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decoder_prefill_512, f32, DType::f32)->UseRealTime()->Unit(benchmark::kMillisecond);

void dummy_weights(benchmark::State& state) {
  double bytes = 0;
  for (auto _ : state) bytes += static_cast<double>(make_model(DType::bf16)->weight_bytes());
  state.counters["bytes_per_second"] = benchmark::Counter(bytes, benchmark::Counter::kIsRate);
}
BENCHMARK(dummy_weights)->Iterations(1)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ladder::bench
