// Partial results of any dtype, merged all at once: on every rung, against the sums in double precision.
#include "step7_parallel/context/lse_merge.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {

inline auto tensors_of(LseMergeArgs& a) {
  return std::array{&a.parts, &a.part_lse, &a.out, &a.lse, &a.onto, &a.onto_lse};
}
namespace {

using testing::Random;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

// What is merged, a part after the other, the result so far last; where lse is no number, values are none either.
struct Parts {
  Tensor values, lse;  // [parts, rows, heads, dim], [parts, rows, heads]

  Parts(Random& random, const Shape& shape, DType dtype)
      : values(random.normal(shape, dtype)),
        lse(random.normal({shape[0], shape[1], shape[2]}, DType::f32, 4)) {
    const int64_t dim = shape[3];
    if (dim < 8) testing::take_magnitudes(values);  // few numbers may all be a small rest of large ones
    for (int64_t i = 0; i < lse.numel(); ++i) {
      if (random.integer(0, 3) > 0) continue;
      lse.data<float>()[i] = random.one_of<float>({-INFINITY, INFINITY, NAN});
      Tensor::wrap(static_cast<char*>(values.raw()) + i * dim * dtype_size(dtype), {dim}, dtype)
          .fill_bytes(0xff);
    }
  }
};

// Of row-heads, in double precision.
struct Expected {
  std::vector<double> out, lse;

  explicit Expected(const std::vector<const Parts*>& all) {
    const int64_t items = all[0]->lse.numel() / all[0]->lse.dim(0), dim = all[0]->values.dim(3);
    for (int64_t item = 0; item < items; ++item) {
      std::vector<double> sum(static_cast<size_t>(dim));
      double weight = 0;
      for (const Parts* some : all) {
        const std::vector<double> values = testing::to_double(some->values);
        for (int64_t part = 0; part < some->lse.dim(0); ++part) {
          const int64_t at = part * items + item;
          const double of_part = some->lse.data<float>()[at];
          if (!std::isfinite(of_part)) continue;
          weight += std::exp(of_part);
          for (int64_t i = 0; i < dim; ++i)
            sum[static_cast<size_t>(i)] += std::exp(of_part) * values[static_cast<size_t>(at * dim + i)];
        }
      }
      for (const double value : sum) out.push_back(weight > 0 ? value / weight : 0);
      lse.push_back(weight > 0 ? std::log(weight) : -INFINITY);
    }
  }
};

void expect_lse(const Tensor& lse, const std::vector<double>& expected) {
  for (int64_t i = 0; i < lse.numel(); ++i) {
    const float got = lse.data<float>()[i];
    const double wanted = expected[static_cast<size_t>(i)];
    ASSERT_TRUE(std::isfinite(wanted) ? std::abs(got - wanted) < 1e-5 * (1 + std::abs(wanted))
                                      : got == wanted)
        << "lse " << i << " is " << got << ", expected " << wanted;
  }
}

RUNG_TEST(LseMerge, IsThatOfAllPartsAtOnce, "lse_merge", lse_merge_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 54; ++round) {
    const DType of_parts = kDTypes[round % 3], of_out = kDTypes[round / 3 % 3];
    const int64_t parts = random.integer(1, 8), rows = random.integer(1, 9), heads = random.integer(1, 5),
                  dim = random.one_of<int64_t>({1, 3, 4, 12, 64, 100, 128, 256});
    SCOPED_TRACE(::testing::Message()
                 << parts << " parts of " << rows << " rows, " << heads << " heads of " << dim << ", "
                 << dtype_name(of_parts) << " into " << dtype_name(of_out));
    const Parts some(random, {parts, rows, heads, dim}, of_parts);
    LseMergeArgs args;
    args.parts = some.values;
    args.part_lse = some.lse;
    // Rows that lie apart.
    args.out = testing::poisoned({rows, heads + 1, dim}, of_out).narrow(1, 0, heads);
    if (round % 2 == 0) args.lse = testing::poisoned({rows, heads}, DType::f32);
    testing::call(merge_parts, ctx, args);
    const Expected expected({&some});
    ASSERT_TRUE(testing::close_to(args.out.clone(), expected.out));
    if (args.lse.defined()) expect_lse(args.lse, expected.lse);
  }
}

RUNG_TEST(LseMerge, ContinuesAResultInPlaceOrElsewhere, "lse_merge", lse_merge_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 24; ++round) {
    const int64_t rows = random.integer(1, 40), heads = random.integer(1, 5),
                  dim = random.one_of<int64_t>({3, 64, 128});
    const Parts before(random, {1, rows, heads, dim}, DType::f32),
        some(random, {random.integer(1, 2), rows, heads, dim}, kDTypes[round % 3]);
    const Expected expected({&some, &before});
    LseMergeArgs args;
    args.parts = some.values;
    args.part_lse = some.lse;
    args.onto = before.values.select(0, 0).clone();
    args.onto_lse = before.lse.select(0, 0).clone();
    const bool in_place = round % 2 == 0;
    args.out = in_place ? args.onto : testing::poisoned({rows, heads, dim}, DType::bf16);
    if (in_place) args.lse = args.onto_lse;
    testing::call(merge_parts, ctx, args);
    ASSERT_TRUE(testing::close_to(args.out, expected.out)) << "in place: " << in_place;
    if (in_place) expect_lse(args.lse, expected.lse);
  }
}

}  // namespace
}  // namespace ladder
