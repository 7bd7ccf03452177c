#pragma once
// What the tests of whole engines share: small checkpoints as requests, and how two runs are compared.
#include <gtest/gtest.h>

#include <bit>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "step6_engine/load_engine.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

inline std::filesystem::path golden_folder() {
  return std::filesystem::path(LADDER_SOURCE_DIR) / "tests" / "goldens";
}
inline std::filesystem::path tiny_model() {
  return std::filesystem::path(LADDER_SOURCE_DIR) / "models" / "tinyworld";
}

inline EngineOptions small_options(const std::filesystem::path& model, DeviceType device,
                                   int64_t max_model_len) {
  EngineOptions options;
  options.model = model;
  options.dtype = DType::f32;
  options.runner.device = {device, 0};
  options.runner.max_model_len = max_model_len;
  options.runner.kv_memory = int64_t{8} << 20;
  options.runner.max_num_seqs = 16;
  options.runner.max_num_batched_tokens = 64;
  options.runner.threads = 1;
  return options;
}

inline std::unique_ptr<Engine> engine_with(const EngineOptions& options) {
  return load_engine(options, open_model_folder(options.model));
}

inline Request greedy_request(const GoldenPrompt& prompt) {
  Request request;
  request.prompt_token_ids = prompt.token_ids;
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = static_cast<int64_t>(prompt.greedy_token_ids.size());
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 4;
  return request;
}

inline std::vector<Request> greedy_requests(const GoldenCheckpoint& checkpoint) {
  std::vector<Request> requests;
  for (const GoldenPrompt& prompt : checkpoint.prompts) requests.push_back(greedy_request(prompt));
  return requests;
}

// Tokens and all log probabilities, bit for bit.
inline ::testing::AssertionResult same_bits(const RequestOutput& a, const RequestOutput& b) {
  if (a.completions.size() != b.completions.size()) return ::testing::AssertionFailure() << "completions";
  for (size_t c = 0; c < a.completions.size(); ++c) {
    const CompletionOutput &x = a.completions[c], &y = b.completions[c];
    if (x.token_ids != y.token_ids)
      return ::testing::AssertionFailure() << "tokens " << ::testing::PrintToString(x.token_ids) << " and "
                                           << ::testing::PrintToString(y.token_ids);
    if (x.logprobs.size() != x.token_ids.size() || y.logprobs.size() != y.token_ids.size())
      return ::testing::AssertionFailure() << "log probabilities are missing";
    const auto same = [](const TokenLogprob& p, const TokenLogprob& q) {
      return p.token_id == q.token_id &&
             std::bit_cast<uint32_t>(p.logprob) == std::bit_cast<uint32_t>(q.logprob);
    };
    for (size_t i = 0; i < x.logprobs.size(); ++i) {
      bool equal = same(x.logprobs[i].chosen, y.logprobs[i].chosen) &&
                   x.logprobs[i].top.size() == y.logprobs[i].top.size();
      for (size_t k = 0; equal && k < x.logprobs[i].top.size(); ++k)
        equal = same(x.logprobs[i].top[k], y.logprobs[i].top[k]);
      if (!equal)
        return ::testing::AssertionFailure()
               << "log probability of output token " << i << ": " << x.logprobs[i].chosen.logprob << " and "
               << y.logprobs[i].chosen.logprob;
    }
  }
  return ::testing::AssertionSuccess();
}

// How much likelier one token may be than another for the two to count as nearly tied: f32 as for the
// goldens; narrower types 16 times the bound of a row (numerics.h), 0.064 in bf16.
inline double near_tie(DType dtype) {
  return dtype == DType::f32 ? 1e-4 : 16.0 * row_bound(dtype);
}

// Greedy outputs of two runs with log probabilities: equal, or they part where both runs find the two tokens
// nearly tied, which is printed. What follows is not compared: it answers another text.
inline ::testing::AssertionResult equal_or_near_tie(const CompletionOutput& a, const CompletionOutput& b,
                                                    DType dtype, const std::string& what) {
  const size_t common = std::min(a.token_ids.size(), b.token_ids.size());
  for (size_t t = 0; t < common; ++t) {
    const int32_t x = a.token_ids[t], y = b.token_ids[t];
    if (x == y) continue;
    const auto of = [t](const CompletionOutput& run, int32_t token) -> const TokenLogprob* {
      for (const TokenLogprob& top : run.logprobs.at(t).top)
        if (top.token_id == token) return &top;
      return nullptr;
    };
    double gap = 0.0;
    for (const CompletionOutput* run : {&a, &b}) {
      if (of(*run, x) == nullptr || of(*run, y) == nullptr)
        return ::testing::AssertionFailure() << what << ": output token " << t << " is " << x << " and " << y
                                             << ", and one is not among the likeliest of the other run";
      gap = std::max(gap, std::abs(static_cast<double>(of(*run, x)->logprob) - of(*run, y)->logprob));
    }
    if (!(gap <= near_tie(dtype)))
      return ::testing::AssertionFailure()
             << what << ": output token " << t << " is " << x << " and " << y << ", a gap of " << gap;
    std::printf("%s: near tie at output token %zu, %d and %d, a gap of %.2e\n", what.c_str(), t, x, y, gap);
    return ::testing::AssertionSuccess();
  }
  if (a.token_ids.size() != b.token_ids.size())
    return ::testing::AssertionFailure() << what << ": one output is longer";
  return ::testing::AssertionSuccess();
}

}  // namespace ladder::testing
