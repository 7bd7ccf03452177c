// Task 8.6 on a GPU: the ladder of attention over codes. The caches are filled by the CPU, whose codes a GPU's equal
// (kv_codes_test.cpp).
#include "step1_layers/attention/paged_attention_of_codes.h"

#include "tests/step1_layers/kv_codes_scene.h"

namespace ladder {
namespace {

using namespace ladder::testing;

// How far the log of a row's sum may be off. The rung for prompts rounds keys to the model's type.
double lse_bound(std::string_view rung, DType dtype) {
  if (rung != "tensor_core" && rung != "split") return 1e-4;
  return dtype == DType::bf16 ? 1e-2 : dtype == DType::f16 ? 2e-3 : 1e-4;
}

// In 16 bits a number is rounded twice: what its code stands for, when it becomes an operand, and the result.
double out_bound(DType dtype) {
  return (dtype == DType::f32 ? 1 : 2) * row_bound(dtype);
}

void check_parts(const OpContext& ctx, std::string_view rung, Random& random,
                 const std::vector<SequenceData>& data, const std::vector<Part>& parts, int64_t block_size,
                 KvCacheDType kept_as, bool causal = true) {
  const AttentionInput input = lay_out(OpContext{}, random, parts, block_size, 2, kept_as);
  const double scale = 1 / std::sqrt(static_cast<double>(input.q.dim(2)));
  const Attended result = poisoned_output(input);
  const Attended before{result.out.clone(), result.lse.clone()};
  call(attend_codes, ctx,
       CallOfCodes<PagedAttentionArgs>{
           {input.q, input.cache, input.metadata, scale, result.out, result.lse, causal}});
  int64_t row = 0;
  for (const Part& part : parts) {
    const int64_t rows = part.end - part.begin;
    const SequenceData kept = as_kept(data[static_cast<size_t>(part.data - data.data())], kept_as);
    const Reference expected = attention_reference(kept, part.begin, part.end, scale, causal ? 0 : part.end);
    EXPECT_TRUE(close_to(to_double(result.out.narrow(0, row, rows)), expected.out, result.out.dim(2),
                         out_bound(input.q.dtype())))
        << "rows " << part.begin << " to " << part.end;
    const auto lse = to_double(result.lse.narrow(0, row, rows));
    for (size_t i = 0; i < lse.size(); ++i)
      EXPECT_NEAR(lse[i], expected.lse[i], lse_bound(rung, input.q.dtype()));
    row += rows;
  }
  const int64_t padding = input.q.dim(0) - row;
  EXPECT_TRUE(bitwise_equal(result.out.narrow(0, row, padding), before.out.narrow(0, row, padding)));
  EXPECT_TRUE(bitwise_equal(result.lse.narrow(0, row, padding), before.lse.narrow(0, row, padding)));
}

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

RUNG_TEST(Task8_6_PagedAttentionOfCodes, DecodesAsDoublePrecisionOverWhatIsKept, "paged_attention_of_codes",
          paged_attention_of_codes_variants()) {
  for (const KvCacheDType kept_as : kCodes)
    for (const DType dtype : kTypes)
      for (const HeadShape& shape : std::vector<HeadShape>{
               {4, 2, 128, 128}, {8, 1, 64, 64}, {2, 1, 256, 256}, {20, 2, 128, 128}, {6, 2, 33, 40}}) {
        Random random;
        SCOPED_TRACE(random.describe() + " " + std::string(kv_cache_dtype_name(kept_as)) + ", heads of " +
                     std::to_string(shape.k_dim));
        const int64_t block_size = random.one_of<int64_t>({16, 16, 64, 7});
        std::vector<SequenceData> data;
        std::vector<Part> parts;
        for (const int64_t length : {1, 15, 16, 17, 63, 64, 65, 128, 300, 1100})
          data.push_back(random_sequence(random, length, shape, dtype));
        for (const SequenceData& one : data) parts.push_back({&one, one.length() - 1, one.length()});
        check_parts(ctx, rung.name, random, data, parts, block_size, kept_as);
        // One sequence alone: all blocks share its keys.
        check_parts(ctx, rung.name, random, data, {parts.back()}, block_size, kept_as);
      }
}

RUNG_TEST(Task8_6_PagedAttentionOfCodes, TakesPromptsAndChunksAmongSingleRows, "paged_attention_of_codes",
          paged_attention_of_codes_variants()) {
  for (const KvCacheDType kept_as : kCodes)
    for (const DType dtype : kTypes)
      for (const HeadShape& shape :
           std::vector<HeadShape>{{4, 2, 128, 128}, {8, 1, 64, 64}, {2, 1, 256, 256}, {6, 2, 33, 40}})
        for (const bool causal : {true, false}) {
          Random random;
          SCOPED_TRACE(random.describe() + " " + std::string(kv_cache_dtype_name(kept_as)) + ", heads of " +
                       std::to_string(shape.k_dim));
          std::vector<SequenceData> data;
          for (const int64_t length : {70, 90, 1, 200, 130})
            data.push_back(random_sequence(random, length, shape, dtype));
          const std::vector<Part> parts{{&data[0], 0, 70},
                                        {&data[1], 89, 90},
                                        {&data[2], 0, 1},
                                        {&data[3], 150, 200},
                                        {&data[4], 129, 130}};
          check_parts(ctx, rung.name, random, data, parts, random.one_of<int64_t>({16, 32, 7}), kept_as,
                      causal);
        }
}

// Values of one token a thousand times as large as another's: weights are kept relative to the largest scale so far.
RUNG_TEST(Task8_6_PagedAttentionOfCodes, ScalesMayDifferFromTokenToToken, "paged_attention_of_codes",
          paged_attention_of_codes_variants()) {
  for (const KvCacheDType kept_as : kCodes)
    for (const DType dtype : kTypes) {
      Random random;
      SCOPED_TRACE(random.describe() + " " + std::string(kv_cache_dtype_name(kept_as)));
      std::vector<SequenceData> data;
      for (const int64_t length : {200, 33}) {
        SequenceData& one = data.emplace_back(random_sequence(random, length, {4, 2, 128, 128}, DType::f32));
        for (int64_t token = 0; token < length; ++token) {
          const float factor = std::ldexp(1.0f, static_cast<int>(random.integer(-8, 4)));
          for (int64_t i = 0; i < 2 * 128; ++i) one.v.data<float>()[token * 2 * 128 + i] *= factor;
        }
        for (Tensor* tensor : {&one.q, &one.k, &one.v}) *tensor = tensor->to(dtype);
      }
      // A token without values, and one whose values are all the same.
      for (const auto& [token, value] : {std::pair<int64_t, float>{3, 0.0f}, {20, 2.0f}})
        data[0]
            .v.narrow(0, token, 1)
            .copy_from(Tensor::from<float>(std::vector<float>(2 * 128, value), {1, 2, 128}).to(dtype));
      check_parts(ctx, rung.name, random, data, {{&data[0], 199, 200}, {&data[1], 32, 33}}, 16, kept_as);
    }
}

RUNG_TEST(Task8_6_PagedAttentionOfCodes, ARowIsTheSameAloneAndInABatch, "paged_attention_of_codes",
          rungs_where(paged_attention_of_codes_variants(),
                      [](const auto& rung) { return rung.batch_invariant; })) {
  for (const KvCacheDType kept_as : kCodes)
    for (const DType dtype : kTypes) {
      Random random;
      SCOPED_TRACE(random.describe() + " " + std::string(kv_cache_dtype_name(kept_as)));
      const SequenceData one = random_sequence(random, 200, {4, 2, 128, 128}, dtype),
                         other = random_sequence(random, 40, {4, 2, 128, 128}, dtype);
      const auto last_row = [&](const std::vector<Part>& parts, int64_t block_size) {
        const AttentionInput input = lay_out(OpContext{}, random, parts, block_size, 0, kept_as);
        const Attended result = poisoned_output(input);
        call(attend_codes, ctx,
             CallOfCodes<PagedAttentionArgs>{
                 {input.q, input.cache, input.metadata, 0.1, result.out, result.lse}});
        return result.out.narrow(0, input.q.dim(0) - 1, 1);
      };
      EXPECT_TRUE(
          bitwise_equal(last_row({{&other, 10, 40}, {&one, 0, 200}}, 16), last_row({{&one, 199, 200}}, 7)));
    }
}

}  // namespace
}  // namespace ladder
