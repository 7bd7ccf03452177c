#pragma once
// Prompts with random queries, keys and values, shared out over ranks; and what attention on one rank makes of them.
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "step7_parallel/context/context_attention.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

struct ContextPart {
  int64_t cached = 0, length = 0;  // tokens of earlier steps, and new ones
};

class ContextProblem {
 public:
  using Method = std::function<void(const OpContext&, const ContextAttentionArgs&)>;

  // Each cached key is on a random rank. kv_heads of 0: small random numbers of both kinds of heads.
  ContextProblem(Random& random, int ranks, const std::vector<ContextPart>& parts, int64_t kv_heads = 0,
                 int64_t heads = 0, int64_t dim = 16, DType dtype = DType::f32);

  // Of one prompt: [length, heads, dim], and [cached + length, kv_heads, dim].
  const Tensor& q(size_t prompt) const { return q_[prompt]; }
  const Tensor& k(size_t prompt) const { return k_[prompt]; }
  const Tensor& v(size_t prompt) const { return v_[prompt]; }

  // This rank's rows, and the keys that it holds, of all prompts; on the CPU.
  ContextAttentionArgs args_of(int rank) const;
  // What this rank computes, put into each prompt's tensor [length, heads, dim].
  void put_back(int rank, const Tensor& rows, const std::vector<Tensor>& outs) const;

  // On this rank of a group. Throws what is wrong with its rows.
  void run(const Method& method, int rank, Communicator& group) const;
  void run_on(const OpContext& ctx, const Method& method, int rank, Communicator& group) const;
  // On threads: each prompt's result.
  std::vector<Tensor> over_threads(const Method& method) const;
  ::testing::AssertionResult is_solved_by(const Method& method) const;

  std::string str() const;

 private:
  const std::vector<double>& on_one_rank(size_t prompt) const;  // computed once
  std::vector<double> computed(size_t prompt) const;

  int ranks_;
  double scale_;
  std::vector<ContextPart> parts_;
  std::vector<std::vector<int>> holder_;  // of each cached key of each prompt
  std::vector<Tensor> q_, k_, v_;
  mutable std::once_flag computes_;
  mutable std::vector<std::vector<double>> expected_;
};

}  // namespace ladder::testing
