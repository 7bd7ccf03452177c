// The sampling operators on rows of 151,936 logits (the Qwen vocabulary), one row and sixteen. Logits are
// normal with deviation 3, about as peaked as a model's. The operators that work in place get fresh logits
// before every call, outside the clock: a filtered row is easier to filter again.
#include <fmt/format.h>

#include <cstring>
#include <random>

#include "bench/support/bench_support.h"
#include "step1_layers/sampling/argmax.h"
#include "step1_layers/sampling/logit_bias.h"
#include "step1_layers/sampling/logits_filters.h"
#include "step1_layers/sampling/penalties.h"
#include "step1_layers/sampling/sample.h"
#include "step1_layers/sampling/softmax.h"
#include "step1_layers/sampling/token_bitmask.h"
#include "step1_layers/sampling/top_logprobs.h"

namespace ladder::bench {
namespace {

constexpr int64_t kVocab = 151936, kUsed = 2048, kBiased = 300;
static_assert(kVocab % 32 == 0);

Tensor random_logits(int64_t rows) {
  Tensor result = Tensor::empty({rows, kVocab}, DType::f32);
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (int64_t i = 0; i < result.numel(); ++i) result.data<float>()[i] = normal(engine);
  return result;
}

template <class T>
Tensor per_row(int64_t rows, T value) {
  Tensor result = Tensor::empty({rows}, dtype_of<T>);
  std::fill_n(result.data<T>(), rows, value);
  return result;
}

template <class Args>
BenchProblem<Args> problem(int64_t rows, double rows_moved, std::function<Args()> make) {
  BenchProblem<Args> result;
  result.name = fmt::format("rows:{}", rows);
  result.bytes = rows_moved * static_cast<double>(rows * kVocab) * 4;
  result.make = std::move(make);
  return result;
}

// "<op>/<detail>/rows:<n>/<variant>"
void register_filter(const std::string& op, std::span<const Variant<LogitsFilterArgs>> table, int64_t rows,
                     const Tensor& values) {
  for (const auto& rung : table) {
    if (!runs_here(rung, OpContext{})) continue;
    benchmark::RegisterBenchmark(
        fmt::format("{}/rows:{}/{}", op, rows, rung.name).c_str(),
        [&rung, rows, values](benchmark::State& state) {
          state.SetLabel(std::string(rung.idea));
          const Tensor fresh = random_logits(rows);
          const LogitsFilterArgs args{fresh.clone(), values};
          Arena arena;
          OpContext ctx;
          ctx.arena = &arena;
          double total = 0;
          for (auto _ : state) {
            args.logits.copy_from(fresh);
            const auto start = std::chrono::steady_clock::now();
            rung.run(ctx, args);
            const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
            state.SetIterationTime(elapsed.count());
            total += elapsed.count();
          }
          set_counters(state, total, static_cast<double>(state.iterations() * rows * kVocab) * 8, 0,
                       DType::f32);
        })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

// Every row has used 2048 tokens, once or twice in its output: so no logit shrinks, call after call, to a
// denormal number.
ApplyPenaltiesArgs penalties(int64_t rows) {
  Tensor starts = Tensor::empty({rows + 1}, DType::i32), ids = Tensor::empty({rows * kUsed}, DType::i32),
         counts = Tensor::empty({rows * kUsed}, DType::i32);
  for (int64_t row = 0; row <= rows; ++row) starts.at<int32_t>({row}) = static_cast<int32_t>(row * kUsed);
  for (int64_t i = 0; i < rows * kUsed; ++i) {
    ids.data<int32_t>()[i] = static_cast<int32_t>(i * 7919 % kVocab);
    counts.data<int32_t>()[i] = static_cast<int32_t>(1 + i % 2);
  }
  return {random_tensor({rows, kVocab}, DType::f32),
          starts,
          ids,
          counts,
          per_row(rows, 1.1f),
          per_row(rows, 0.1f),
          per_row(rows, 0.1f)};
}

// 300 tokens of every row, as many as OpenAI's API takes.
ApplyLogitBiasArgs biases(int64_t rows) {
  Tensor starts = Tensor::empty({rows + 1}, DType::i32), ids = Tensor::empty({rows * kBiased}, DType::i32);
  for (int64_t row = 0; row <= rows; ++row) starts.at<int32_t>({row}) = static_cast<int32_t>(row * kBiased);
  for (int64_t i = 0; i < rows * kBiased; ++i)
    ids.data<int32_t>()[i] = static_cast<int32_t>(i * 7919 % kVocab);
  return {random_tensor({rows, kVocab}, DType::f32), starts, ids, per_row(rows * kBiased, 1e-3f)};
}

// Every row has a mask of its own, which allows one token in a thousand: a grammar's.
ApplyTokenBitmaskArgs masked(int64_t rows) {
  Tensor index = Tensor::empty({rows}, DType::i32), masks = Tensor::zeros({rows, kVocab / 32}, DType::i32);
  for (int64_t row = 0; row < rows; ++row) index.at<int32_t>({row}) = static_cast<int32_t>(row);
  for (int64_t i = 0; i < masks.numel(); i += 31) masks.data<int32_t>()[i] = 1 << i % 31;
  return {random_logits(rows), index, masks};
}

const bool kRegistered = [] {
  std::vector<BenchProblem<ArgmaxArgs>> best;
  std::vector<BenchProblem<SoftmaxArgs>> both;
  std::vector<BenchProblem<TopLogprobsArgs>> top;
  std::vector<BenchProblem<SampleArgs>> draw;
  for (int64_t rows : {1, 16}) {
    best.push_back(problem<ArgmaxArgs>(rows, 1, [=] {
      return ArgmaxArgs{random_logits(rows), Tensor::zeros({rows}, DType::i32)};
    }));
    both.push_back(problem<SoftmaxArgs>(rows, 2, [=] {
      return SoftmaxArgs{random_logits(rows), Tensor::zeros({rows, kVocab}, DType::f32)};
    }));
    top.push_back(problem<TopLogprobsArgs>(rows, 1, [=] {
      return TopLogprobsArgs{random_logits(rows), Tensor::zeros({rows}, DType::i32),
                             Tensor::zeros({rows}, DType::f32), Tensor::zeros({rows, 20}, DType::i32),
                             Tensor::zeros({rows, 20}, DType::f32)};
    }));
    draw.push_back(problem<SampleArgs>(rows, 1, [=] {
      return SampleArgs{random_logits(rows), per_row(rows, 1.0f), per_row(rows, int64_t{7}),
                        per_row(rows, int64_t{3}), Tensor::zeros({rows}, DType::i32)};
    }));
    register_filter("apply_temperature", apply_temperature_variants(), rows, per_row(rows, 0.7f));
    register_filter("mask_min_p", mask_min_p_variants(), rows, per_row(rows, 0.05f));
    register_filter("mask_top_k/k:20", mask_top_k_variants(), rows, per_row(rows, int32_t{20}));
    register_filter("mask_top_k/k:1000", mask_top_k_variants(), rows, per_row(rows, int32_t{1000}));
    register_filter("mask_top_p", mask_top_p_variants(), rows, per_row(rows, 0.95f));
  }
  // An id, a count, and a logit read and written per used token.
  std::vector<BenchProblem<ApplyPenaltiesArgs>> used;
  for (int64_t rows : {1, 4}) {
    used.push_back(problem<ApplyPenaltiesArgs>(rows, 1, [=] { return penalties(rows); }));
    used.back().bytes = 16.0 * kUsed * static_cast<double>(rows);
  }
  register_ladder(fmt::format("apply_penalties/used:{}", kUsed), apply_penalties_variants(), used);
  std::vector<BenchProblem<ApplyLogitBiasArgs>> biased;
  std::vector<BenchProblem<ApplyTokenBitmaskArgs>> allowed;
  for (int64_t rows : {1, 16}) {
    biased.push_back(problem<ApplyLogitBiasArgs>(rows, 1, [=] { return biases(rows); }));
    biased.back().bytes = 16.0 * kBiased * static_cast<double>(rows);
    allowed.push_back(problem<ApplyTokenBitmaskArgs>(rows, 1, [=] { return masked(rows); }));
  }
  register_ladder(fmt::format("apply_logit_bias/biased:{}", kBiased), apply_logit_bias_variants(), biased);
  register_ladder("apply_token_bitmask", apply_token_bitmask_variants(), allowed);
  register_ladder("argmax", argmax_variants(), best);
  register_ladder("softmax", softmax_variants(), both);
  register_ladder("log_softmax", log_softmax_variants(), both);
  register_ladder("top_logprobs/k:20", top_logprobs_variants(), top);
  register_ladder("sample", sample_variants(), draw);
  return true;
}();

}  // namespace
}  // namespace ladder::bench
