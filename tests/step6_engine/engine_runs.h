#pragma once
// What the tests of whole engines share: small checkpoints as requests, and how two runs are compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "step6_engine/load_engine.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"

namespace ladder::testing {

inline std::filesystem::path golden_folder() {
  return testing::source_folder() / "tests" / "goldens";
}
inline std::filesystem::path tiny_model() {
  return testing::source_folder() / "models" / "tinyworld";
}

inline EngineOptions small_options(const std::filesystem::path& model, DeviceType device,
                                   int64_t max_model_len) {
  EngineOptions options;
  options.model = model;
  options.dtype = DType::f32;
  options.runner.device = {device, 0};
  options.runner.batch.max_model_len = max_model_len;
  options.runner.kv_memory = int64_t{8} << 20;
  options.runner.batch.max_num_seqs = 16;
  options.runner.batch.max_num_batched_tokens = 64;
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

// Log probabilities of the 20 likeliest tokens at every position of the texts.
inline std::vector<PositionLogprobs> score(const EngineOptions& options,
                                           const std::vector<std::vector<int32_t>>& texts) {
  std::vector<Request> requests;
  for (const std::vector<int32_t>& text : texts) {
    Request& request = requests.emplace_back();
    request.prompt_token_ids = text;
    request.sampling.max_tokens = 1;
    request.sampling.temperature = 0.0;
    request.sampling.prompt_logprobs = 20;
  }
  std::vector<PositionLogprobs> all;
  for (RequestOutput& output : engine_with(options)->generate(requests))
    std::move(output.prompt_logprobs.begin(), output.prompt_logprobs.end(), std::back_inserter(all));
  return all;
}

// How far log probabilities are from those of f32, over all tokens that both list.
struct Deviation {
  double rms = 0.0, largest = 0.0;
};

inline Deviation deviation(const std::vector<PositionLogprobs>& out,
                           const std::vector<PositionLogprobs>& reference) {
  EXPECT_EQ(out.size(), reference.size());
  Deviation result;
  int64_t count = 0;
  for (size_t i = 0; i < std::min(out.size(), reference.size()); ++i)
    for (const TokenLogprob& expected : reference[i].top)
      for (const TokenLogprob& found : out[i].top) {
        if (found.token_id != expected.token_id) continue;
        const double difference = std::abs(static_cast<double>(found.logprob) - expected.logprob);
        result.rms += difference * difference;
        result.largest = std::max(result.largest, difference);
        ++count;
      }
  EXPECT_GT(count, 15 * std::ssize(reference)) << "mostly other tokens are the likeliest";
  result.rms = std::sqrt(result.rms / static_cast<double>(count));
  return result;
}

// What a type costs on this model, measured on the CPU: log probabilities of two runs may be this far apart
// each, so two tokens that are nearer than twice that may change places.
struct TypeCost {
  std::vector<PositionLogprobs> exact;  // f32
  Deviation cpu;
  double near_tie = 0.0;
};

inline TypeCost type_cost(EngineOptions options, const std::vector<std::vector<int32_t>>& texts) {
  const DType type = options.dtype.value();
  options.runner.device = {};
  const std::vector<PositionLogprobs> narrow = score(options, texts);
  options.dtype = DType::f32;
  TypeCost cost{score(options, texts), {}, 1e-4};
  if (type == DType::f32) return cost;  // as for the goldens
  cost.cpu = deviation(narrow, cost.exact);
  cost.near_tie = 2.0 * cost.cpu.largest;
  return cost;
}

// Greedy outputs of two runs with log probabilities: equal, or they part where both runs find the two tokens
// nearly tied, which is printed. What follows is not compared: it answers another text.
inline ::testing::AssertionResult equal_or_near_tie(const CompletionOutput& a, const CompletionOutput& b,
                                                    double near_tie, const std::string& what) {
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
    if (!(gap <= near_tie))
      return ::testing::AssertionFailure()
             << what << ": output token " << t << " is " << x << " and " << y << ", a gap of " << gap
             << " where " << near_tie << " is a near tie";
    std::printf("%s: near tie at output token %zu, %d and %d, a gap of %.2e\n", what.c_str(), t, x, y, gap);
    return ::testing::AssertionSuccess();
  }
  if (a.token_ids.size() != b.token_ids.size())
    return ::testing::AssertionFailure() << what << ": one output is longer";
  return ::testing::AssertionSuccess();
}

}  // namespace ladder::testing
