// Logits may be rows of a wider tensor, at any address: every rung of every operator of the sampler must give
// what it gives for the same rows by themselves, and write nothing beside them.
#include <gtest/gtest.h>

#include "tests/support/devices.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace ladder::testing;

// The same rows, in a wider tensor of NaN.
Tensor widened(Random& random, const Tensor& rows) {
  const int64_t step = random.one_of<int64_t>({1, 4}), first = step * random.integer(0, 3);
  const Tensor wide = poisoned({rows.dim(0), first + rows.dim(1) + step * random.integer(0, 3)}, DType::f32);
  const Tensor window = wide.narrow(1, first, rows.dim(1));
  window.copy_from(rows);
  return window;
}

// Runs every rung with `logits` by themselves and in a wider tensor. Where `exact` all results have the same
// bits; otherwise sums of floats may be added in another order.
template <class Args>
void expect_same(Random& random, std::span<const Variant<Args>> table, const Tensor& logits, const Args& args,
                 bool exact = true) {
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  const auto copy_with = [&](const Tensor& own_logits) {
    Args copy = args;
    for (Tensor* tensor : tensors_of(copy))
      if (tensor->defined()) *tensor = tensor->clone();
    copy.logits = own_logits;
    return copy;
  };
  for (const auto& rung : table) {
    Args alone = copy_with(logits.clone()), inside = copy_with(widened(random, logits));
    if (!can_run_rung(rung, ctx, alone) || !can_run_rung(rung, ctx, inside)) continue;
    SCOPED_TRACE(std::string(rung.name) + (rung.device == DeviceType::cuda ? " on the GPU: " : ": ") +
                 logits.str() + ", stride " + std::to_string(inside.logits.stride(0)));
    run_rung(rung, ctx, alone);
    run_rung(rung, ctx, inside);
    const auto expected = tensors_of(alone), got = tensors_of(inside);
    for (size_t i = 0; i < got.size(); ++i) {
      if (!got[i]->defined()) continue;
      if (exact || got[i]->dtype() != DType::f32)
        EXPECT_TRUE(bitwise_equal(*got[i], *expected[i])) << "argument " << i;
      else
        EXPECT_TRUE(close_to(*got[i], to_double(*expected[i]))) << "argument " << i;
    }
  }
}

TEST(Task1_8_Sampling, RowsOfAWiderTensorGiveWhatTheyGiveAlone) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const auto& [rows, vocab] :
       {std::pair<int64_t, int64_t>{1, 1}, {5, 63}, {3, 4096}, {4, 5003}, {2, 40001}}) {
    const Tensor logits = random.normal({rows, vocab}, DType::f32, 3.0);
    const auto column = [&, count = rows]<class T>(const std::vector<T>& values) {
      const Tensor result = Tensor::empty({count}, dtype_of<T>);
      for (int64_t row = 0; row < count; ++row) result.at<T>({row}) = random.one_of(values);
      return result;
    };
    const Tensor ids = poisoned({rows}, DType::i32);
    const Tensor temperature = column(std::vector<float>{0, 1, 0.7f}),
                 top_k = column(std::vector<int32_t>{0, 1, 40, 3000}),
                 top_p = column(std::vector<float>{0.3f, 0.9f, 1}),
                 min_p = column(std::vector<float>{0, 0.05f}),
                 seeds = column(std::vector<int64_t>{1, -5, int64_t{1} << 40}),
                 output_index = column(std::vector<int64_t>{0, 7});

    expect_same<SoftmaxArgs>(random, softmax_variants(), logits, {logits, logits}, false);
    expect_same<SoftmaxArgs>(random, log_softmax_variants(), logits, {logits, logits}, false);
    const int64_t best = std::min<int64_t>(5, vocab);
    const Tensor chosen = column(std::vector<int32_t>{0, static_cast<int32_t>(vocab - 1)});
    expect_same<TopLogprobsArgs>(random, top_logprobs_variants(), logits,
                                 {logits, chosen, poisoned({rows}, DType::f32),
                                  poisoned({rows, best}, DType::i32), poisoned({rows, best}, DType::f32)},
                                 false);

    for (int64_t i = 0; i < logits.numel(); ++i)  // some tokens are cut, some are equal
      if (i % 7 == 3 && vocab > 8) logits.data<float>()[i] = i % 2 == 0 ? -INFINITY : 1.5f;
    expect_same<ArgmaxArgs>(random, argmax_variants(), logits, {logits, ids});
    expect_same<LogitsFilterArgs>(random, apply_temperature_variants(), logits, {logits, temperature});
    expect_same<LogitsFilterArgs>(random, mask_min_p_variants(), logits, {logits, min_p});
    expect_same<LogitsFilterArgs>(random, mask_top_k_variants(), logits, {logits, top_k});
    expect_same<LogitsFilterArgs>(random, mask_top_p_variants(), logits, {logits, top_p});
    expect_same<SampleArgs>(random, sample_variants(), logits,
                            {logits, temperature, seeds, output_index, ids});
    expect_same<DrawArgs>(random, draw_variants(), logits,
                          {logits, temperature, {}, {}, {}, seeds, output_index, ids});
    expect_same<DrawArgs>(random, draw_variants(), logits,
                          {logits, temperature, min_p, top_k, top_p, seeds, output_index, ids});
    // Every row has used its first and its last token.
    std::vector<int32_t> starts{0}, used, counts;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t token = 0; token < vocab; token += std::max<int64_t>(vocab - 1, 1)) {
        used.push_back(static_cast<int32_t>(token));
        counts.push_back(static_cast<int32_t>(row));
      }
      starts.push_back(static_cast<int32_t>(used.size()));
    }
    const auto entries = static_cast<int64_t>(used.size());
    expect_same<ApplyPenaltiesArgs>(
        random, apply_penalties_variants(), logits,
        {logits, Tensor::from<int32_t>(starts, {rows + 1}), Tensor::from<int32_t>(used, {entries}),
         Tensor::from<int32_t>(counts, {entries}), column(std::vector<float>{1, 1.3f}),
         column(std::vector<float>{0, 0.5f}), column(std::vector<float>{0, -0.2f})});
    const Tensor biases = Tensor::empty({entries}, DType::f32);
    for (int64_t i = 0; i < entries; ++i) biases.at<float>({i}) = random.one_of<float>({1.5f, -INFINITY});
    expect_same<ApplyLogitBiasArgs>(
        random, apply_logit_bias_variants(), logits,
        {logits, Tensor::from<int32_t>(starts, {rows + 1}), Tensor::from<int32_t>(used, {entries}), biases});
    const Tensor masks = Tensor::empty({2, bitmask_words(vocab)}, DType::i32);
    for (int64_t i = 0; i < masks.numel(); ++i)
      masks.data<int32_t>()[i] = static_cast<int32_t>(random.engine()());
    expect_same<ApplyTokenBitmaskArgs>(random, apply_token_bitmask_variants(), logits,
                                       {logits, column(std::vector<int32_t>{-1, 0, 1}), masks});
  }
}

}  // namespace
}  // namespace ladder
