// Logits may be rows of a wider tensor, at any address: every operator of the sampler must give
// what it gives for the same rows by themselves, and write nothing beside them.
#include <gtest/gtest.h>

#include "tests/support/devices.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

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

// Logits of some rows, and what the operators of the sampler take beside them. With `cuts` some tokens are cut and
// some are equal.
struct Rows {
  Rows(Random& from, int64_t count, int64_t size, bool cuts) : random(from), rows(count), vocab(size) {
    logits = random.normal({rows, vocab}, DType::f32, 3.0);
    for (int64_t i = 0; i < logits.numel(); ++i)
      if (cuts && i % 7 == 3 && vocab > 8) logits.data<float>()[i] = i % 2 == 0 ? -INFINITY : 1.5f;
    // Every row has used its first and its last token.
    std::vector<int32_t> starts{0}, tokens, of_row;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t token = 0; token < vocab; token += std::max<int64_t>(vocab - 1, 1)) {
        tokens.push_back(static_cast<int32_t>(token));
        of_row.push_back(static_cast<int32_t>(row));
      }
      starts.push_back(static_cast<int32_t>(tokens.size()));
    }
    const auto entries = static_cast<int64_t>(tokens.size());
    used_starts = Tensor::from<int32_t>(starts, {rows + 1});
    used = Tensor::from<int32_t>(tokens, {entries});
    counts = Tensor::from<int32_t>(of_row, {entries});
  }

  template <class T>
  Tensor column(const std::vector<T>& values, int64_t length = 0) const {
    const Tensor result = Tensor::empty({length > 0 ? length : rows}, dtype_of<T>);
    for (int64_t i = 0; i < result.dim(0); ++i) result.at<T>({i}) = random.one_of(values);
    return result;
  }
  Tensor floats(const std::vector<float>& values) const { return column(values); }
  Tensor ids() const { return poisoned({rows}, DType::i32); }
  Tensor temperature() const { return floats({0, 1, 0.7f}); }
  Tensor min_p() const { return floats({0, 0.05f}); }
  Tensor top_k() const { return column(std::vector<int32_t>{0, 1, 40, 3000}); }
  Tensor top_p() const { return floats({0.3f, 0.9f, 1}); }
  Tensor seeds() const { return column(std::vector<int64_t>{1, -5, int64_t{1} << 40}); }
  Tensor output_index() const { return column(std::vector<int64_t>{0, 7}); }

  Random& random;
  int64_t rows, vocab;
  Tensor logits, used_starts, used, counts;
};

// Runs the rung with logits by themselves and in a wider tensor. Where `exact` all results have the same bits;
// otherwise sums of floats may be added in another order.
template <class Args, class Make>
void expect_same(const OpContext& ctx, const Variant<Args>& rung, Make&& make, bool exact = true) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const auto& [rows, vocab] :
       {std::pair<int64_t, int64_t>{1, 1}, {5, 63}, {3, 4096}, {4, 5003}, {2, 40001}}) {
    const Rows given(random, rows, vocab, exact);
    const Args args = make(given);
    const auto copy_with = [&](const Tensor& own_logits) {
      Args copy = args;
      for (Tensor* tensor : tensors_of(copy))
        if (tensor->defined()) *tensor = tensor->clone();
      copy.logits = own_logits;
      return copy;
    };
    Args alone = copy_with(given.logits.clone()), inside = copy_with(widened(random, given.logits));
    if (!can_run_rung(rung, ctx, alone) || !can_run_rung(rung, ctx, inside)) continue;
    SCOPED_TRACE(given.logits.str() + ", stride " + std::to_string(inside.logits.stride(0)));
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

RUNG_TEST(Task1_8_Softmax, RowsOfAWiderTensor, "softmax", softmax_variants()) {
  expect_same(
      ctx, rung,
      [](const Rows& of) {
        return SoftmaxArgs{of.logits, of.logits};
      },
      false);
}

RUNG_TEST(Task1_8_LogSoftmax, RowsOfAWiderTensor, "log_softmax", log_softmax_variants()) {
  expect_same(
      ctx, rung,
      [](const Rows& of) {
        return SoftmaxArgs{of.logits, of.logits};
      },
      false);
}

RUNG_TEST(Task1_8_TopLogprobs, RowsOfAWiderTensor, "top_logprobs", top_logprobs_variants()) {
  const auto make = [](const Rows& of) {
    const int64_t best = std::min<int64_t>(5, of.vocab);
    return TopLogprobsArgs{of.logits, of.column(std::vector<int32_t>{0, static_cast<int32_t>(of.vocab - 1)}),
                           poisoned({of.rows}, DType::f32), poisoned({of.rows, best}, DType::i32),
                           poisoned({of.rows, best}, DType::f32)};
  };
  expect_same(ctx, rung, make, false);
}

RUNG_TEST(Task1_8_Argmax, RowsOfAWiderTensor, "argmax", argmax_variants()) {
  expect_same(ctx, rung, [](const Rows& of) { return ArgmaxArgs{of.logits, of.ids()}; });
}

RUNG_TEST(Task1_8_Temperature, RowsOfAWiderTensor, "apply_temperature", apply_temperature_variants()) {
  expect_same(ctx, rung, [](const Rows& of) { return LogitsFilterArgs{of.logits, of.temperature()}; });
}

RUNG_TEST(Task1_8_MinP, RowsOfAWiderTensor, "mask_min_p", mask_min_p_variants()) {
  expect_same(ctx, rung, [](const Rows& of) { return LogitsFilterArgs{of.logits, of.min_p()}; });
}

RUNG_TEST(Task1_8_TopK, RowsOfAWiderTensor, "mask_top_k", mask_top_k_variants()) {
  expect_same(ctx, rung, [](const Rows& of) { return LogitsFilterArgs{of.logits, of.top_k()}; });
}

RUNG_TEST(Task1_8_TopP, RowsOfAWiderTensor, "mask_top_p", mask_top_p_variants()) {
  expect_same(ctx, rung, [](const Rows& of) { return LogitsFilterArgs{of.logits, of.top_p()}; });
}

RUNG_TEST(Task1_8_Sample, RowsOfAWiderTensor, "sample", sample_variants()) {
  expect_same(ctx, rung, [](const Rows& of) {
    return SampleArgs{of.logits, of.temperature(), of.seeds(), of.output_index(), of.ids()};
  });
}

RUNG_TEST(Task1_8_Draw, RowsOfAWiderTensor, "draw", draw_variants()) {
  expect_same(ctx, rung, [](const Rows& of) {
    return DrawArgs{of.logits, of.temperature(), {}, {}, {}, of.seeds(), of.output_index(), of.ids()};
  });
  expect_same(ctx, rung, [](const Rows& of) {
    return DrawArgs{of.logits,  of.temperature(), of.min_p(),        of.top_k(),
                    of.top_p(), of.seeds(),       of.output_index(), of.ids()};
  });
}

RUNG_TEST(Task1_8_Penalties, RowsOfAWiderTensor, "apply_penalties", apply_penalties_variants()) {
  expect_same(ctx, rung, [](const Rows& of) {
    return ApplyPenaltiesArgs{of.logits,
                              of.used_starts,
                              of.used,
                              of.counts,
                              of.floats({1, 1.3f}),
                              of.floats({0, 0.5f}),
                              of.floats({0, -0.2f})};
  });
}

RUNG_TEST(Task1_8_LogitBias, RowsOfAWiderTensor, "apply_logit_bias", apply_logit_bias_variants()) {
  expect_same(ctx, rung, [](const Rows& of) {
    return ApplyLogitBiasArgs{of.logits, of.used_starts, of.used,
                              of.column(std::vector<float>{1.5f, -INFINITY}, of.used.dim(0))};
  });
}

RUNG_TEST(Task1_8_TokenBitmask, RowsOfAWiderTensor, "apply_token_bitmask", apply_token_bitmask_variants()) {
  expect_same(ctx, rung, [](const Rows& of) {
    const Tensor masks = Tensor::empty({2, bitmask_words(of.vocab)}, DType::i32);
    for (int64_t i = 0; i < masks.numel(); ++i)
      masks.data<int32_t>()[i] = static_cast<int32_t>(of.random.engine()());
    return ApplyTokenBitmaskArgs{of.logits, of.column(std::vector<int32_t>{-1, 0, 1}), masks};
  });
}

}  // namespace
}  // namespace ladder
