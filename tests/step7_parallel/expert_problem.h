#pragma once
// A layer's experts and its tokens, both shared out over ranks at random.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/counting_communicator.h"
#include "step7_parallel/communicators/kinds.h"
#include "step7_parallel/expert/expert_exchange.h"
#include "tests/step1_layers/moe_scene.h"

namespace ladder::testing {

struct ExpertProblem {
  ExpertProblem(Random& random, int ranks, MoeSizes sizes, DType dtype, bool with_holes)
      : scene(random, sizes, dtype, with_holes), sizes(sizes), ranks(ranks) {
    for (const Tensor* values : {&scene.x, &scene.gate_up, &scene.down}) take_magnitudes(*values);
    begins.push_back(0);
    for (int rank = 1; rank < ranks; ++rank) begins.push_back(random.integer(0, sizes.tokens));
    std::sort(begins.begin(), begins.end());
    begins.push_back(sizes.tokens);
    for (int64_t expert = 0; expert < sizes.experts; ++expert)
      rank_of.push_back(static_cast<int32_t>(random.integer(0, ranks - 1)));
  }

  // What a rank gets, put into `out` [tokens, hidden]; the bytes that it sends.
  int64_t run(const Variant<ExpertExchangeArgs>& method, int rank, Communicator& group,
              const Tensor& out) const {
    const int64_t first = begins[static_cast<size_t>(rank)],
                  count = begins[static_cast<size_t>(rank) + 1] - first;
    CountingCommunicator counting(group);
    ExpertExchangeArgs args;
    args.ranks = &counting;
    args.x = scene.x.narrow(0, first, count);
    args.expert_ids = scene.expert_ids.narrow(0, first, count);
    args.weights = scene.weights.narrow(0, first, count);
    args.rank_of = rank_of;
    args.out = out.narrow(0, first, count);
    int calls = 0;
    args.compute = [&](const OpContext& ctx, const Tensor& x, const Tensor& ids, const Tensor& weights,
                       const Tensor& parts) {
      ++calls;
      for (int64_t i = 0; i < ids.numel(); ++i) {
        const int32_t expert = ids.data<int32_t>()[i];
        if (expert >= 0 && rank_of[static_cast<size_t>(expert)] != rank)
          throw Error("rank " + std::to_string(rank) + " was given expert " + std::to_string(expert) +
                      ", which is elsewhere");
      }
      if (x.dim(0) > 0) moe_experts(ctx, {x, ids, weights, scene.gate_up, scene.down, parts});
    };
    OpContext forced;
    forced.kernels["expert_exchange"] = method.name;
    expert_exchange(forced, args);
    if (calls != 1) throw Error("the experts were asked " + std::to_string(calls) + " times");
    return counting.sent_bytes();
  }
  Tensor over(const CommunicatorKind& kind, const Variant<ExpertExchangeArgs>& method,
              std::vector<int64_t>* sent = nullptr) const {
    const Tensor out = Tensor::empty(scene.x.shape(), scene.x.dtype());
    out.fill_bytes(0xff);
    const auto errors = kind.run(ranks, std::chrono::seconds(60), [&](int rank, Communicator& group) {
      const int64_t bytes = run(method, rank, group, out);
      if (sent != nullptr) (*sent)[static_cast<size_t>(rank)] = bytes;
    });
    for (const std::string& error : errors)
      if (!error.empty()) ADD_FAILURE() << error;
    return out;
  }
  // Of the experts of each rank in double, rounded once as the contract says, and added up.
  std::vector<double> expected() const {
    std::vector<double> sums(static_cast<size_t>(scene.x.numel()), 0.0);
    for (int rank = 0; rank < ranks; ++rank) {
      MoeScene part = scene;
      part.expert_ids = scene.expert_ids.clone();
      for (int64_t pair = 0; pair < part.expert_ids.numel(); ++pair) {
        int32_t& expert = part.expert_ids.data<int32_t>()[pair];
        if (expert >= 0 && rank_of[static_cast<size_t>(expert)] != rank) expert = -1;
      }
      const std::vector<double> of_rank = part.rounded(part.expected());
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
    }
    return sums;
  }
  std::string str() const {
    return fmt::format("{} tokens, {} of {} experts, {} ranks with tokens from {}, experts on {}",
                       sizes.tokens, sizes.top_k, sizes.experts, ranks, fmt::join(begins, " "),
                       fmt::join(rank_of, " "));
  }

  MoeScene scene;
  MoeSizes sizes;
  int ranks;
  std::vector<int64_t> begins;  // of the ranks' tokens
  std::vector<int32_t> rank_of;
};

}  // namespace ladder::testing
