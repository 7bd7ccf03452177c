#include "step1_layers/attention/kv_codes.h"

#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/core/error.h"
#include "step1_layers/rotary/rope.h"
#include "tests/step1_layers/kv_codes_scene.h"

namespace ladder {
namespace {

using namespace ladder::testing;

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

// A scale for a whole cache, found beforehand or set to 1, fails where a model's values are large (vLLM's issue 12076). Here they
// may be as large or as small as they like: the codes are the same, and so is what a token loses.
TEST(Task8_6_KvCodes, OfLargeAndOfSmallNumbersAreTheSame) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor numbers = random.normal({64}, DType::f32);
  const std::vector<float> x(numbers.data<float>(), numbers.data<float>() + 64);
  for (const KvCacheDType kept_as : kCodes)
    for (const float times : {128.0f, 0x1p40f, 0x1p-40f}) {
      std::vector<float> other = x, expected = round_trip(kept_as, x);
      for (float& number : other) number *= times;
      for (float& number : expected) number *= times;
      EXPECT_EQ(round_trip(kept_as, other), expected) << kv_cache_dtype_name(kept_as) << " times " << times;
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

std::vector<Variant<PagedAttentionArgs>> rungs_of_cpu() {
  return rungs_where(paged_attention_variants(),
                     [](const auto& rung) { return rung.device == DeviceType::cpu; });
}

RUNG_TEST(Task8_6_PagedAttentionOverCodes, EqualsDoublePrecisionOverWhatIsKept, "paged_attention",
          rungs_of_cpu()) {
  for (const KvCacheDType kept_as : kCodes)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const auto& [shape, block_size] : {std::pair<HeadShape, int64_t>{{4, 2, 128, 128}, 7},
                                              {{6, 2, 33, 40}, 16},
                                              {{2, 1, 1, 1}, 7},
                                              {{3, 3, 80, 80}, 17},
                                              {{7, 1, 96, 96}, 1},
                                              {{8, 1, 256, 256}, 16}}) {
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
        const Attended result = attend(ctx, random, parts, block_size, scale, 0, kept_as);
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

// The fused rungs and the sequence keep the same codes, on a GPU those of the CPU.
RUNG_TEST(Task8_6_KvCodes, AreThoseOfTheKeysThatAreStored, "qk_norm_rope_store",
          qk_norm_rope_store_variants()) {
  for (const KvCacheDType kept_as : kCodes)
    for (const auto& [dtype, dim] : {std::pair<DType, int64_t>{DType::f32, 24},
                                     {DType::bf16, 24},
                                     {DType::f32, 128},
                                     {DType::bf16, 64},
                                     {DType::f16, 128},
                                     {DType::bf16, 256}}) {
      Random random;
      SCOPED_TRACE(random.describe() + ", heads of " + std::to_string(dim));
      const int64_t tokens = 5;
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
        call(rope_and_store_codes, ctx, CallOfCodes<QkNormRopeStoreArgs>{copy});
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

TEST(Task8_6_KvCodes, AGpuStoresTheCodesOfTheCpu) {
  if (cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  constexpr float kMax = std::numeric_limits<float>::max();
  for (const KvCacheDType kept_as : kCodes)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const auto& [k_dim, v_dim] :
           {std::pair<int64_t, int64_t>{128, 128}, {33, 40}, {1, 7}, {256, 64}}) {
        Random random;
        SCOPED_TRACE(random.describe() + " " + std::string(kv_cache_dtype_name(kept_as)));
        const int64_t tokens = 40, heads = 3, block_size = 7, blocks = 9;
        StoreKvArgs args;
        args.k = random.normal({tokens, heads, k_dim}, DType::f32);
        args.v = random.normal({tokens, heads, v_dim}, DType::f32);
        // Heads of nothing but zeros or one number, tiny ones, and what no cache can keep.
        const std::vector<float> odd{0.0f, -3.0f, 1e-40f, NAN, INFINITY, -INFINITY, kMax, -kMax};
        for (size_t i = 0; i < odd.size(); ++i)
          for (int64_t d = 0; d < k_dim; ++d)
            if (i < 3 || d % 5 == 0) args.k.at<float>({static_cast<int64_t>(i), 1, d}) = odd[i];
        for (Tensor* tensor : {&args.k, &args.v}) *tensor = tensor->to(dtype);
        std::vector<int64_t> slots(static_cast<size_t>(tokens));
        for (int64_t i = 0; i < tokens; ++i)
          slots[static_cast<size_t>(i)] = i == 20 ? -1 : blocks * block_size - 1 - i;
        args.slot_mapping = Tensor::from<int64_t>(slots, {tokens});
        const auto cache_of = [&] {
          const auto codes = [&](int64_t dim) {
            return Tensor::zeros({blocks, block_size, heads, kv_code_bytes(kept_as, dim)}, DType::u8);
          };
          const Shape scales = {blocks, block_size, heads, kKvScales};
          return KvCacheView{codes(k_dim), codes(v_dim), kept_as, Tensor::zeros(scales, DType::f32),
                             Tensor::zeros(scales, DType::f32)};
        };
        CallOfCodes<StoreKvArgs> cpu{args}, gpu{args};
        cpu.args.cache = cache_of();
        gpu.args.cache = cache_of();
        store_codes(OpContext{}, cpu);
        call(store_codes, *cuda_context(), gpu);
        for (const auto& [ours, theirs] :
             {std::pair{gpu.args.cache.k, cpu.args.cache.k}, {gpu.args.cache.v, cpu.args.cache.v}})
          EXPECT_TRUE(bitwise_equal(ours, theirs));
        for (const auto& [ours, theirs] : {std::pair{gpu.args.cache.k_scales, cpu.args.cache.k_scales},
                                           {gpu.args.cache.v_scales, cpu.args.cache.v_scales}})
          EXPECT_EQ(to_double(ours), to_double(theirs));  // a zero has two signs
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
