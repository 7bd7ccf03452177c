#include <array>
#include <set>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/moe/touched_experts.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {

// call() takes them to the device and back.
inline auto tensors_of(CountTouchedExpertsArgs& a) {
  return std::array{&a.expert_ids, &a.counts};
}

namespace {

using namespace ladder::testing;

Tensor random_ids(Random& random, int64_t tokens, int64_t top_k, int64_t num_experts) {
  const Tensor ids = Tensor::empty({tokens, top_k}, DType::i32);
  for (int64_t i = 0; i < ids.numel(); ++i)
    ids.data<int32_t>()[i] = static_cast<int32_t>(random.integer(-1, num_experts));  // one too many, too
  return ids;
}

RUNG_TEST(Task1_9_Touched, CountsEachExpertOnceACall, "count_touched_experts",
          count_touched_experts_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const int64_t num_experts : {1, 8, 31, 32, 33, 128, 4096}) {
    const Tensor counts = Tensor::zeros({41, 2}, DType::i64);
    std::vector<int64_t> expected(82);
    for (const int64_t tokens : {1, 3, 3, 40, 41, 1, 3}) {  // 41: more than there is room for
      const Tensor ids = random_ids(random, tokens, 8, num_experts);
      call(count_touched_experts, ctx, CountTouchedExpertsArgs{ids, num_experts, counts});
      std::set<int32_t> touched;
      for (int64_t i = 0; i < ids.numel(); ++i)
        if (const int32_t id = ids.data<int32_t>()[i]; id >= 0 && id < num_experts) touched.insert(id);
      if (tokens == 41) continue;
      expected[static_cast<size_t>(2 * tokens)] += 1;
      expected[static_cast<size_t>(2 * tokens + 1)] += std::ssize(touched);
    }
    EXPECT_EQ(std::vector<int64_t>(counts.data<int64_t>(), counts.data<int64_t>() + 82), expected)
        << num_experts << " experts";
  }
}

TEST(Task1_9_Touched, RefusesWhatDoesNotFit) {
  const Tensor ids = Tensor::zeros({2, 2}, DType::i32), counts = Tensor::zeros({3, 2}, DType::i64);
  EXPECT_THROW(count_touched_experts({}, {ids, 0, counts}), Error);
  EXPECT_THROW(count_touched_experts({}, {ids, kMaxCountedExperts + 1, counts}), Error);
  EXPECT_THROW(count_touched_experts({}, {ids, 4, Tensor::zeros({3, 1}, DType::i64)}), Error);
  EXPECT_THROW(count_touched_experts({}, {Tensor::zeros({2, 2}, DType::i64), 4, counts}), Error);
}

}  // namespace
}  // namespace ladder
