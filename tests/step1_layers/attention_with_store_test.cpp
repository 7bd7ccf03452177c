// Tasks 1.3, 1.6 and 1.7 in one call: the new rows of sequences that decode are normed, rotated, stored and
// attended with.
#include "step1_layers/attention/attention_with_store.h"

#include <gtest/gtest.h>

#include "step1_layers/rotary/rope.h"
#include "tests/step1_layers/attention_scene.h"
#include "tests/step1_layers/norm_rotate_reference.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

constexpr int64_t kBlockSize = 16;

struct Scene {
  std::vector<SequenceData> data;  // the last row of each as the projection left it
  AttentionInput input;
  QkNormRopeStoreArgs store;
  Tensor out;
  double scale;

  int64_t sequences() const { return static_cast<int64_t>(data.size()); }
};

// One new row of each sequence; after them `padding` rows that stand for no sequence, as in a captured
// batch.
Scene make_scene(Random& random, const HeadShape& shape, DType dtype, const std::vector<int64_t>& lengths,
                 bool norms, int64_t padding) {
  Scene scene;
  for (int64_t length : lengths) scene.data.push_back(random_sequence(random, length, shape, dtype));
  std::vector<Part> parts;
  for (const SequenceData& one : scene.data) parts.push_back({&one, one.length() - 1, one.length()});
  AttentionInput& input = scene.input;
  const OpContext cpu;
  input = lay_out(cpu, random, parts, kBlockSize, padding);
  AttentionMetadata& metadata = input.metadata;
  const auto sequences = scene.sequences(), rows = sequences + padding, dim = shape.k_dim;
  scene.scale = 1 / std::sqrt(static_cast<double>(dim));

  const Tensor qkv = poisoned({rows, shape.heads + 2 * shape.kv_heads, dim}, dtype);
  QkNormRopeStoreArgs& store = scene.store;
  store.q = qkv.narrow(1, 0, shape.heads);
  store.k = qkv.narrow(1, shape.heads, shape.kv_heads);
  store.v = qkv.narrow(1, shape.heads + shape.kv_heads, shape.kv_heads);
  if (norms) {
    store.q_norm_weight = random.normal({dim}, dtype);
    store.k_norm_weight = random.normal({dim}, dtype);
  }
  store.eps = 1e-5;
  store.table = make_rope_table({.rotary_dim = dim}, 4096);
  store.cache = input.cache;
  std::vector<int32_t> positions, starts, seq_lens;
  std::vector<int64_t> slots;
  const int64_t width = metadata.block_tables.dim(1);
  std::vector<int32_t> tables(static_cast<size_t>(rows * width), -7);
  for (int64_t row = 0; row < rows; ++row) {
    starts.push_back(static_cast<int32_t>(row));
    const bool is_real = row < sequences;
    const int64_t last = is_real ? scene.data[static_cast<size_t>(row)].length() - 1 : -1;
    positions.push_back(static_cast<int32_t>(is_real ? last : 0));
    seq_lens.push_back(static_cast<int32_t>(last + 1));
    slots.push_back(-1);
    if (!is_real) continue;
    const SequenceData& data = scene.data[static_cast<size_t>(row)];
    store.q.select(0, row).copy_from(data.q.select(0, last));
    store.k.select(0, row).copy_from(data.k.select(0, last));
    store.v.select(0, row).copy_from(data.v.select(0, last));
    for (int64_t i = 0; i < width; ++i)
      tables[static_cast<size_t>(row * width + i)] = metadata.block_tables.at<int32_t>({row, i});
    const int64_t block = metadata.block_tables.at<int32_t>({row, last / kBlockSize});
    slots.back() = block * kBlockSize + last % kBlockSize;
    for (const Tensor& side : {input.cache.k, input.cache.v}) {
      const Tensor at = side.select(0, block).select(0, last % kBlockSize);
      at.copy_from(poisoned(at.shape(), dtype));
    }
  }
  starts.push_back(static_cast<int32_t>(rows));
  store.positions = i32_tensor(positions, {rows});
  store.slot_mapping = Tensor::from<int64_t>(slots, {rows});
  metadata.query_start_loc = i32_tensor(starts, {rows + 1});
  metadata.seq_lens = i32_tensor(seq_lens, {rows});
  metadata.block_tables = i32_tensor(tables, {rows, width});
  metadata.slot_mapping = store.slot_mapping;
  metadata.num_seqs = metadata.num_tokens = rows;
  scene.out = poisoned({rows, shape.heads, dim}, dtype);
  return scene;
}

// Runs one call and compares what is stored, and every row, with the reference.
void check(const OpContext& ctx, const HeadShape& shape, DType dtype, const std::vector<int64_t>& lengths,
           bool norms) {
  Random random;
  SCOPED_TRACE(random.describe() + " head_dim " + std::to_string(shape.k_dim));
  Scene scene = make_scene(random, shape, dtype, lengths, norms, 0);
  // The rows as qk_norm_rope_store, which has tests of its own, leaves and stores them.
  QkNormRopeStoreArgs expected = scene.store;
  expected.q = scene.store.q.clone();
  expected.k = scene.store.k.clone();
  expected.cache = {scene.store.cache.k.clone(), scene.store.cache.v.clone()};
  qk_norm_rope_store({}, expected);
  // The keys are compared before they are rounded: two roundings of nearly one number may be neighbours.
  const auto keys = rotated(scene.store.k, scene.store.k_norm_weight, scene.store.eps, scene.store.positions,
                            scene.store.table);

  call(attention_with_store, ctx, scene.store, scene.input.metadata, scene.scale, scene.out);
  for (int64_t row = 0; row < scene.sequences(); ++row) {
    SequenceData& data = scene.data[static_cast<size_t>(row)];
    const int64_t last = data.length() - 1, slot = scene.store.slot_mapping.at<int64_t>({row});
    auto stored = [&](const Tensor& side) {
      return side.select(0, slot / kBlockSize).select(0, slot % kBlockSize);
    };
    const auto width = static_cast<size_t>(shape.kv_heads * shape.k_dim);
    EXPECT_TRUE(close_to(stored(scene.store.cache.k),
                         std::span(keys).subspan(static_cast<size_t>(row) * width, width)));
    EXPECT_TRUE(bitwise_equal(stored(scene.store.cache.v), scene.store.v.select(0, row)));
    data.q.select(0, last).copy_from(expected.q.select(0, row));
    data.k.select(0, last).copy_from(stored(expected.cache.k));
    const Reference reference = attention_reference(data, last, last + 1, scene.scale);
    EXPECT_TRUE(close_to(scene.out.narrow(0, row, 1), reference.out)) << "row of " << last + 1 << " keys";
  }
}

// Which rungs serve a call is asked for every model; heads of fewer than 16 elements have no unit of lanes.
TEST(Task1_7_AttentionWithStore, HeadsTooSmallForAKernelAreLeftToTheSequence) {
  Random random;
  for (int64_t dim : {2, 8, 14}) {
    const Scene scene = make_scene(random, {2, 1, dim, dim}, DType::bf16, {3}, true, 0);
    const AttentionWithStoreArgs args{
        scene.store, {scene.store.q, scene.store.cache, scene.input.metadata, scene.scale, scene.out, {}}};
    for (const auto& variant : attention_with_store_variants()) {
      if (variant.supports == nullptr) continue;
      EXPECT_FALSE(variant.supports(args)) << variant.name << ", heads of " << dim;
    }
  }
}

RUNG_TEST(Task1_7_AttentionWithStore, EqualsDoublePrecision, "attention_with_store",
          attention_with_store_variants()) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (bool norms : {false, true})
      for (const HeadShape& shape :
           {HeadShape{4, 2, 128, 128}, {8, 1, 64, 64}, {4, 1, 256, 256}, {3, 3, 64, 64}})
        check(ctx, shape, dtype, {1, 16, 17, 33, 130, 300}, norms);
}

// For a tool that follows every access to memory (tools/gpu_check.sh).
RUNG_TEST(Task1_7_AttentionWithStore, OneSmallCallOfEveryRung, "attention_with_store",
          attention_with_store_variants()) {
  check(ctx, {4, 2, 128, 128}, DType::bf16, {5, 70}, true);
}

TEST(Task1_7_AttentionWithStore, HasTheBitsOfItsPartsAndLeavesPaddingRowsAlone) {
  if (cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  Arena arena(cuda_context()->device);
  OpContext parts = *cuda_context();
  parts.arena = &arena;
  OpContext fused = parts;
  parts.kernels["attention_with_store"] = "sequence";
  parts.kernels["qk_norm_rope_store"] = "fused";
  parts.kernels["paged_attention"] = "cluster";
  fused.kernels["attention_with_store"] = "fused";
  for (const auto& variant : attention_with_store_variants())
    if (variant.name == "fused" && !runs_here(variant, fused)) GTEST_SKIP() << "needs compute capability 9.0";
  for (DType dtype : {DType::bf16, DType::f16})
    for (bool norms : {false, true})
      for (const HeadShape& shape :
           {HeadShape{4, 2, 128, 128}, {16, 8, 128, 128}, {10, 1, 64, 64}, {6, 1, 256, 256}, {3, 3, 64, 64}})
        for (const std::vector<int64_t>& lengths :
             {std::vector<int64_t>{1}, {16}, {64, 65}, {900, 15, 17, 384}}) {
          Random random;
          SCOPED_TRACE(random.describe() + " head_dim " + std::to_string(shape.k_dim) + " of " +
                       std::to_string(shape.heads) + ", " + std::to_string(lengths[0]) + " keys");
          parts.dependent_launch = fused.dependent_launch = lengths.size() > 1;
          const Scene scene = make_scene(random, shape, dtype, lengths, norms, lengths.size() % 2);
          auto outcome = [&](const OpContext& ctx) {
            QkNormRopeStoreArgs store = scene.store;
            const Tensor qkv = store.q.clone();
            store.q = qkv;
            store.cache = {store.cache.k.clone(), store.cache.v.clone()};
            const Tensor out = scene.out.clone();
            call(attention_with_store, ctx, store, scene.input.metadata, scene.scale, out);
            return std::array{out, store.cache.k, store.cache.v};
          };
          const auto expected = outcome(parts), got = outcome(fused);
          ASSERT_TRUE(bitwise_equal(got[1], expected[1])) << "keys";
          ASSERT_TRUE(bitwise_equal(got[2], expected[2])) << "values";
          ASSERT_TRUE(bitwise_equal(got[0], expected[0]));
          for (int64_t row = scene.sequences(); row < got[0].dim(0); ++row)
            ASSERT_TRUE(bitwise_equal(got[0].select(0, row), scene.out.select(0, row))) << "padding";
        }
}

TEST(Task1_7_AttentionWithStore, WhoForcesAPartGetsIt) {
  if (cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  Random random;
  SCOPED_TRACE(random.describe());
  const Scene scene = make_scene(random, {4, 2, 128, 128}, DType::bf16, {5}, false, 0);
  for (const char* part : {"paged_attention", "qk_norm_rope_store"}) {
    OpContext ctx = *cuda_context();
    Arena arena(ctx.device);
    ctx.arena = &arena;
    ctx.kernels[part] = "no_such_kernel";
    EXPECT_THROW(call(attention_with_store, ctx, scene.store, scene.input.metadata, scene.scale, scene.out),
                 Error);
  }
}

}  // namespace
}  // namespace ladder
