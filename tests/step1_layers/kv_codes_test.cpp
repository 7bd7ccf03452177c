#include "step1_layers/attention/kv_codes.h"

#include <array>
#include <limits>
#include <vector>

#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/core/error.h"
#include "step1_layers/rotary/rope.h"
#include "tests/step1_layers/attention_scene.h"

namespace ladder {
namespace {

using namespace ladder::testing;

constexpr KvCacheDType kCodes[] = {KvCacheDType::fp8, KvCacheDType::int8, KvCacheDType::int4};

std::vector<float> round_trip(KvCacheDType kept_as, const std::vector<float>& x,
                              std::array<float, kKvScales>* scales_out = nullptr) {
  const auto dim = std::ssize(x);
  std::vector<uint8_t> codes(static_cast<size_t>(kv_code_bytes(kept_as, dim)), 0xa5);
  std::array<float, kKvScales> scales{NAN, NAN};
  quantize_kv(kept_as, x.data(), dim, codes.data(), scales.data());
  std::vector<float> back(x.size(), NAN);
  dequantize_kv(kept_as, codes.data(), scales.data(), dim, back.data());
  if (scales_out != nullptr) *scales_out = scales;
  return back;
}

TEST(Task8_6_KvCodes, AreNoFurtherFromTheNumbersThanHalfAStep) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const KvCacheDType kept_as : kCodes)
    for (const int64_t dim : {1, 2, 7, 64, 128, 129}) {
      const Tensor numbers = random.normal({dim}, DType::f32);
      std::vector<float> x(numbers.data<float>(), numbers.data<float>() + dim);
      x[static_cast<size_t>(dim / 2)] *= 20;  // an outlier
      std::array<float, kKvScales> scales{};
      const std::vector<float> back = round_trip(kept_as, x, &scales);
      for (size_t i = 0; i < x.size(); ++i) {
        // E4M3: a sixteenth of the number, or half of the smallest step, 2^-9.
        const float half = kept_as == KvCacheDType::fp8 ? std::max(std::fabs(x[i]) / 16, scales[0] * 0x1p-10f)
                                                        : scales[0] / 2;
        EXPECT_NEAR(back[i], x[i], half * 1.0001f) << kv_cache_dtype_name(kept_as) << " of " << dim;
      }
    }
}

TEST(Task8_6_KvCodes, NumbersThatAreOnTheGridComeBack) {
  for (const KvCacheDType kept_as : kCodes) {
    std::vector<float> x;
    for (int i = 0; i < 16; ++i)
      x.push_back(kept_as == KvCacheDType::int4   ? 3.0f + 0.5f * static_cast<float>(i)
                  : kept_as == KvCacheDType::int8 ? static_cast<float>(i == 0 ? -127 : 8 * i)
                                                  : (i == 0 ? 448.0f : std::ldexp(1.25f, i - 8)));
    EXPECT_EQ(round_trip(kept_as, x), x) << kv_cache_dtype_name(kept_as);
  }
}

TEST(Task8_6_KvCodes, NothingButFiniteNumbersIsKept) {
  constexpr float kMax = std::numeric_limits<float>::max();
  for (const KvCacheDType kept_as : kCodes) {
    EXPECT_EQ(round_trip(kept_as, {0, 0, 0}), (std::vector<float>{0, 0, 0}));
    for (const std::vector<float>& x : {std::vector<float>{NAN, 1, -1},
                                        {INFINITY, 1},
                                        {-INFINITY, INFINITY},
                                        {kMax, -kMax, 1e-45f},
                                        {1e-45f}})
      for (const float number : round_trip(kept_as, x)) EXPECT_TRUE(std::isfinite(number));
    EXPECT_EQ(round_trip(kept_as, {NAN, 4, -4}).at(1), 4.0f);
  }
}

TEST(Task8_6_KvCodes, TakeTheBytesThatAreSaid) {
  const KvCacheSpec int8{.kind = {},
                         .dtype = DType::bf16,
                         .kept_as = KvCacheDType::int8,
                         .num_kv_heads = 2,
                         .k_dim = 128,
                         .v_dim = 64};
  EXPECT_EQ(int8.bytes_per_token(), 2 * (128 + 8 + 64 + 8));
  EXPECT_EQ(kv_head_bytes(KvCacheDType::int4, DType::bf16, 33), 17 + 8);
  EXPECT_EQ(kv_head_bytes(KvCacheDType::automatic, DType::bf16, 33), 66);
}

// Keys and values as the cache has them, for the reference.
SequenceData as_kept(const SequenceData& data, KvCacheDType kept_as) {
  SequenceData kept = data;
  for (Tensor* tensor : {&kept.k, &kept.v}) {
    const Tensor numbers = Tensor::empty(tensor->shape(), DType::f32);
    const std::vector<double> all = to_double(*tensor);
    const int64_t dim = tensor->dim(2);
    for (int64_t head = 0; head < tensor->dim(0) * tensor->dim(1); ++head) {
      std::vector<float> x;
      for (int64_t i = 0; i < dim; ++i)
        x.push_back(static_cast<float>(all[static_cast<size_t>(head * dim + i)]));
      const std::vector<float> back = round_trip(kept_as, x);
      std::copy(back.begin(), back.end(), numbers.data<float>() + head * dim);
    }
    *tensor = numbers;
  }
  return kept;
}

std::vector<Variant<PagedAttentionArgs>> rungs_of_cpu() {
  return rungs_where(paged_attention_variants(),
                     [](const auto& rung) { return rung.device == DeviceType::cpu; });
}

RUNG_TEST(Task8_6_PagedAttentionOverCodes, EqualsDoublePrecisionOverWhatIsKept, "paged_attention",
          rungs_of_cpu()) {
  for (const KvCacheDType kept_as : kCodes)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const HeadShape& shape : {HeadShape{4, 2, 128, 128}, {6, 2, 33, 40}, {2, 1, 1, 1}}) {
        Random random;
        SCOPED_TRACE(random.describe() + " " + std::string(kv_cache_dtype_name(kept_as)));
        std::vector<SequenceData> data, kept;
        for (const int64_t length : {1, 65, 150}) {
          data.push_back(random_sequence(random, length, shape, dtype));
          if (shape.v_dim == 1) take_magnitudes(data.back().v);
          kept.push_back(as_kept(data.back(), kept_as));
        }
        const std::vector<Part> parts = {{&data[0], 0, 1}, {&data[1], 64, 65}, {&data[2], 90, 150}};
        const double scale = 1 / std::sqrt(static_cast<double>(shape.k_dim));
        const Attended result = attend(ctx, random, parts, 7, scale, 0, kept_as);
        int64_t row = 0;
        for (size_t i = 0; i < parts.size(); ++i) {
          const Reference expected = attention_reference(kept[i], parts[i].begin, parts[i].end, scale);
          const int64_t length = parts[i].end - parts[i].begin;
          EXPECT_TRUE(close_to(result.out.narrow(0, row, length), expected.out));
          const auto lse = to_double(result.lse.narrow(0, row, length));
          for (size_t j = 0; j < lse.size(); ++j) EXPECT_NEAR(lse[j], expected.lse[j], 1e-4);
          row += length;
        }
      }
}

RUNG_TEST(Task8_6_PagedAttentionOverCodes, ARowIsTheSameAloneAndInABatch, "paged_attention", rungs_of_cpu()) {
  for (const KvCacheDType kept_as : kCodes) {
    Random random;
    SCOPED_TRACE(random.describe());
    const SequenceData one = random_sequence(random, 100, {}, DType::f32),
                       other = random_sequence(random, 40, {}, DType::f32);
    const Attended whole = attend(ctx, random, {{&other, 10, 40}, {&one, 0, 100}}, 16, 0.25, 0, kept_as);
    const Attended alone = attend(ctx, random, {{&one, 99, 100}}, 3, 0.25, 0, kept_as);
    EXPECT_TRUE(bitwise_equal(whole.out.narrow(0, 129, 1), alone.out));
  }
}

// The fused rungs and the sequence keep the same codes.
RUNG_TEST(Task8_6_KvCodes, AreThoseOfTheKeysThatAreStored, "qk_norm_rope_store",
          rungs_where(qk_norm_rope_store_variants(),
                      [](const auto& rung) { return rung.device == DeviceType::cpu; })) {
  for (const KvCacheDType kept_as : kCodes)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Random random;
      SCOPED_TRACE(random.describe());
      const int64_t tokens = 5, dim = 24;
      const auto cache_of = [&](KvCacheDType kept) {
        KvCacheView cache;
        cache.kept_as = kept;
        if (kept == KvCacheDType::automatic) {
          cache.k = poisoned({2, 4, 2, dim}, dtype);
          cache.v = poisoned({2, 4, 2, dim}, dtype);
          return cache;
        }
        cache.k = Tensor::zeros({2, 4, 2, kv_code_bytes(kept, dim)}, DType::u8);
        cache.v = Tensor::zeros({2, 4, 2, kv_code_bytes(kept, dim)}, DType::u8);
        cache.k_scales = poisoned({2, 4, 2, kKvScales}, DType::f32);
        cache.v_scales = poisoned({2, 4, 2, kKvScales}, DType::f32);
        return cache;
      };
      QkNormRopeStoreArgs args;
      args.q = random.normal({tokens, 4, dim}, dtype);
      args.k = random.normal({tokens, 2, dim}, dtype);
      args.v = random.normal({tokens, 2, dim}, dtype);
      args.k_norm_weight = random.normal({dim}, dtype);
      args.q_norm_weight = args.k_norm_weight;
      args.positions = Tensor::from<int32_t>(std::vector<int32_t>{0, 1, 2, 3, 9}, {tokens});
      RopeConfig rope;
      rope.rotary_dim = dim;
      args.table = make_rope_table(rope, 16);
      args.slot_mapping = Tensor::from<int64_t>(std::vector<int64_t>{6, -1, 0, 3, 7}, {tokens});
      KvCacheView values = cache_of(KvCacheDType::automatic), codes = cache_of(kept_as);
      for (const KvCacheView& cache : {values, codes}) {
        QkNormRopeStoreArgs copy = args;
        copy.q = args.q.clone();
        copy.k = args.k.clone();
        copy.cache = cache;
        qk_norm_rope_store(ctx, copy);
      }
      for (const int64_t slot : {6, 0, 3, 7})
        for (int64_t head = 0; head < 2; ++head)
          for (const bool key : {true, false}) {
            const Tensor row =
                (key ? values.k : values.v).select(0, slot / 4).select(0, slot % 4).select(0, head);
            std::vector<float> x;
            for (const double number : to_double(row)) x.push_back(static_cast<float>(number));
            std::vector<uint8_t> expected(static_cast<size_t>(kv_code_bytes(kept_as, dim)));
            std::array<float, kKvScales> scales{};
            quantize_kv(kept_as, x.data(), dim, expected.data(), scales.data());
            const Tensor here =
                (key ? codes.k : codes.v).select(0, slot / 4).select(0, slot % 4).select(0, head);
            const Tensor here_scales = (key ? codes.k_scales : codes.v_scales)
                                           .select(0, slot / 4)
                                           .select(0, slot % 4)
                                           .select(0, head);
            EXPECT_EQ(std::vector<uint8_t>(here.data<uint8_t>(), here.data<uint8_t>() + here.numel()),
                      expected);
            EXPECT_EQ(here_scales.data<float>()[0], scales[0]);
            EXPECT_EQ(here_scales.data<float>()[1], scales[1]);
          }
    }
}

TEST(Task8_6_KvCodes, ACacheThatIsNotWhatItSaysIsNamed) {
  KvCacheView plain;
  plain.k = plain.v = Tensor::zeros({2, 4, 2, 8}, DType::f32);
  KvCacheView codes = plain;
  codes.kept_as = KvCacheDType::int8;
  EXPECT_NO_THROW(expect_kv_cache(plain, DType::f32, 8, 8, "op"));
  EXPECT_THROW(expect_kv_cache(codes, DType::f32, 8, 8, "op"), Error) << "floats as codes";
  codes.k = codes.v = Tensor::zeros({2, 4, 2, 8}, DType::u8);
  EXPECT_THROW(expect_kv_cache(codes, DType::f32, 8, 8, "op"), Error) << "no scales";
  codes.k_scales = codes.v_scales = Tensor::zeros({2, 4, 2, kKvScales}, DType::f32);
  EXPECT_NO_THROW(expect_kv_cache(codes, DType::f32, 8, 8, "op"));
  EXPECT_THROW(expect_kv_cache(codes, DType::f32, 9, 8, "op"), Error);
}

}  // namespace
}  // namespace ladder
