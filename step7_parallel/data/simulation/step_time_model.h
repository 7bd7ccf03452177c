#pragma once
// How long a step of an engine takes, as a sum of what it does:
//
//   seconds = fixed + per_sequence * sequences + per_prompt_token * prompt tokens + per_kv_token * KV tokens read
//             + per_prompt_pair * pairs of a prompt's row and a token before it
//
// `fixed` is reading the weights and starting kernels; attention reads the K and V of all tokens before a row's own, and of
// a long prompt computes a product for every pair.
#include <cstdint>
#include <span>

namespace ladder {

// What one step computes.
struct StepWork {
  int64_t num_sequences = 0;
  int64_t num_prompt_tokens = 0;  // all rows but one of each sequence that samples
  int64_t num_kv_tokens = 0;      // of all sequences, those computed before this step
  int64_t num_prompt_pairs = 0;   // of sequences with several rows, for each row the tokens before it
};

// Pairs of `num_rows` rows of one sequence behind `num_before` tokens. A single row's are its KV tokens.
inline int64_t prompt_pairs(int64_t num_rows, int64_t num_before) {
  return num_rows > 1 ? num_rows * num_before + num_rows * (num_rows - 1) / 2 : 0;
}

// One more sequence: `num_rows` rows behind `num_before` tokens; `samples`: the last of them gives a token.
inline void add_sequence(StepWork& work, int64_t num_rows, int64_t num_before, bool samples) {
  work.num_sequences += 1;
  work.num_kv_tokens += num_before;
  work.num_prompt_tokens += num_rows - (samples ? 1 : 0);
  work.num_prompt_pairs += prompt_pairs(num_rows, num_before);
}

struct StepTimeModel {
  double fixed = 0;  // seconds, all five
  double per_sequence = 0;
  double per_prompt_token = 0;
  double per_kv_token = 0;
  double per_prompt_pair = 0;

  double seconds(const StepWork& work) const {
    return fixed + per_sequence * static_cast<double>(work.num_sequences) +
           per_prompt_token * static_cast<double>(work.num_prompt_tokens) +
           per_kv_token * static_cast<double>(work.num_kv_tokens) +
           per_prompt_pair * static_cast<double>(work.num_prompt_pairs);
  }
};

// Qwen3-0.6B in bf16 on one H200, solved from four committed runs (bench/results/h200; the shares are from the lengths):
//   latency_qwen3-0.6b     a token alone, about 80 tokens before it               0.538 ms
//   decode256_qwen3-0.6b   256 sequences, about 80 tokens before each             2.248 ms
//                          their prompts of 32 tokens each, in one step           17.7 ms
//   throughput_qwen3-0.6b  1,024 steps: 140,841 sequences, 140,344 prompt tokens,
//                          125 million KV tokens                                  5.08 s
inline constexpr StepTimeModel kQwen3SmallOnH200{
    .fixed = 0.531e-3, .per_sequence = 4.37e-6, .per_prompt_token = 2.02e-6, .per_kv_token = 29.0e-9};

}  // namespace ladder
