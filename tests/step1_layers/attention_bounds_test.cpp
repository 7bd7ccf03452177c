// Task 1.7 in a captured graph: the numbers that the host gives are bounds, the truth stands on the device.
#include <gtest/gtest.h>

#include "tests/step1_layers/attention_scene.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

// `more` i32 values after those of a tensor of one dimension.
Tensor extended(const Tensor& tensor, const std::vector<int32_t>& more) {
  std::vector<int32_t> values(tensor.data<int32_t>(), tensor.data<int32_t>() + tensor.numel());
  values.insert(values.end(), more.begin(), more.end());
  return i32_tensor(values, {std::ssize(values)});
}

std::vector<Variant<PagedAttentionArgs>> mixed_gpu_variants() {
  const auto mixed = mixed_attention_variants();
  return rungs_where(std::span(mixed), [](const auto& rung) { return rung.device == DeviceType::cuda; });
}

RUNG_TEST(Task1_7_PagedAttention, HostNumbersMayBeBounds, "paged_attention", mixed_gpu_variants()) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Random random;
    SCOPED_TRACE(random.describe() + " " + std::string(dtype_name(dtype)));
    std::vector<SequenceData> data;
    for (const int64_t length : {20, 33, 9, 1500})
      data.push_back(random_sequence(random, length, {16, 8, 128, 128}, dtype));
    const std::vector<Part> parts{
        {&data[0], 15, 20}, {&data[1], 32, 33}, {&data[2], 0, 9}, {&data[3], 1495, 1500}};

    // Of twelve rows too many two stand in sequences without keys, the rest in none.
    AttentionInput input = lay_out(ctx, random, parts, 16, 12);
    AttentionMetadata& metadata = input.metadata;
    const auto rows = static_cast<int32_t>(metadata.num_tokens);
    const int64_t width = metadata.block_tables.dim(1);
    metadata.query_start_loc = extended(metadata.query_start_loc, {rows + 1, rows + 2});
    metadata.seq_lens = extended(metadata.seq_lens, {0, 0});
    metadata.block_tables = extended(metadata.block_tables.view({4 * width}),
                                     std::vector<int32_t>(static_cast<size_t>(2 * width), -7))
                                .view({6, width});
    metadata.num_seqs = 6;
    metadata.num_tokens = metadata.max_query_len = rows + 12;
    metadata.max_seq_len = 8192;

    Attended result = poisoned_output(input);
    call(paged_attention, ctx, input.q, input.cache, metadata, 0.1, result.out, result.lse);
    int64_t row = 0;
    for (const Part& part : parts) {
      const Reference expected = attention_reference(*part.data, part.begin, part.end, 0.1);
      const int64_t length = part.end - part.begin;
      EXPECT_TRUE(close_to(result.out.narrow(0, row, length), expected.out)) << "row " << row;
      const auto lse = to_double(result.lse.narrow(0, row, length));
      for (size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], expected.lse[i], 1e-4);
      row += length;
    }
    EXPECT_TRUE(bitwise_equal(result.out.narrow(0, row, 12), poisoned({12, 16, 128}, dtype)));
    EXPECT_TRUE(bitwise_equal(result.lse.narrow(0, row, 12), poisoned({12, 16}, DType::f32)));
  }
}

// As a rank has it that computes one of a prompt's last two rows.
RUNG_TEST(Task1_7_PagedAttention, OneRowAloneMayHaveALargerBound, "paged_attention",
          mixed_attention_variants()) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Random random;
    SCOPED_TRACE(random.describe() + " " + std::string(dtype_name(dtype)));
    const SequenceData data = random_sequence(random, 200, {4, 2, 128, 128}, dtype);
    AttentionInput input = lay_out(ctx, random, {{&data, 199, 200}}, 16);
    input.metadata.max_query_len = 2;
    const Attended result = poisoned_output(input);
    call(paged_attention, ctx, input.q, input.cache, input.metadata, 0.1, result.out, result.lse);
    EXPECT_TRUE(close_to(result.out, attention_reference(data, 199, 200, 0.1).out));
  }
}

}  // namespace
}  // namespace ladder
