// Attention as the runner replays it: captured once for a batch size, over lengths that change, with padding
// rows and bounds far above the truth.
#include <gtest/gtest.h>

#include "step1_layers/attention/paged_attention_of_codes.h"
#include "tests/step1_layers/kv_codes_scene.h"
#include "tests/support/rungs.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/core/device_cuda.h"
#endif

namespace ladder {
namespace {

using namespace ladder::testing;

#ifdef LADDER_HAS_CUDA

class CapturedGraph {
 public:
  template <class Fn>
  CapturedGraph(cudaStream_t stream, Fn&& fn) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    LADDER_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    fn();
    LADDER_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    LADDER_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph, 0));
    LADDER_CUDA_CHECK(cudaGraphDestroy(graph));
  }
  ~CapturedGraph() { cudaGraphExecDestroy(executable_); }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  void replay() const {
    LADDER_CUDA_CHECK(cudaGraphLaunch(executable_, stream_));
    LADDER_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
  cudaStream_t stream_;
};

void check_captured(const Variant<PagedAttentionArgs>& variant, const HeadShape& shape, int64_t batch,
                    bool dependent, KvCacheDType kept_as = KvCacheDType::automatic) {
  OpContext ctx = *cuda_context();
  ctx.dependent_launch = dependent && ctx.device_arch >= 90;
  Random random;
  SCOPED_TRACE(random.describe() + " " + std::string(variant.name) + " batch " + std::to_string(batch));
  constexpr DType kType = DType::bf16;
  constexpr int64_t kBlockSize = 16, kMaxLength = 4096, kWidth = kMaxLength / kBlockSize;
  const int64_t num_blocks = 2 * kWidth, dim = shape.k_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  auto device = [&](Shape size, DType dtype) { return Tensor::zeros(size, dtype, ctx.device); };
  const Tensor q = device({batch, shape.heads, dim}, kType), k = device({batch, shape.kv_heads, dim}, kType),
               v = device({batch, shape.kv_heads, dim}, kType), slots = device({batch}, DType::i64),
               out = device({batch, shape.heads, dim}, kType), lse = device({batch, shape.heads}, DType::f32);
  const bool has_codes = kept_as != KvCacheDType::automatic;
  const auto cache_of_nan = [&] {
    KvCacheView cache;
    cache.kept_as = kept_as;
    for (Tensor* tensor : {&cache.k, &cache.v}) {
      *tensor = Tensor::empty(
          {num_blocks, kBlockSize, shape.kv_heads, has_codes ? kv_code_bytes(kept_as, dim) : dim},
          has_codes ? DType::u8 : kType);
      tensor->fill_bytes(has_codes ? 0x7f : 0xff);
    }
    if (has_codes)
      for (Tensor* tensor : {&cache.k_scales, &cache.v_scales})
        *tensor = poisoned({num_blocks, kBlockSize, shape.kv_heads, kKvScales}, DType::f32);
    return cache;
  };
  KvCacheView cache = cache_of_nan();
  for (Tensor* tensor : {&cache.k, &cache.v, &cache.k_scales, &cache.v_scales})
    if (tensor->defined()) *tensor = tensor->to(ctx.device);
  AttentionMetadata metadata{.query_start_loc = device({batch + 1}, DType::i32),
                             .seq_lens = device({batch}, DType::i32),
                             .block_tables = device({batch, kWidth}, DType::i32),
                             .slot_mapping = slots,
                             .num_seqs = batch,
                             .num_tokens = batch,
                             .max_query_len = 1,
                             .max_seq_len = kMaxLength};
  const PagedAttentionArgs args{q, cache, metadata, scale, out, lse};
  if (!can_run(variant, ctx, args)) return;
  std::vector<int32_t> starts(static_cast<size_t>(batch + 1));
  std::iota(starts.begin(), starts.end(), 0);
  metadata.query_start_loc.copy_from(i32_tensor(starts, {batch + 1}));

  auto call = [&] {
    store_kv(ctx, k, v, slots, cache);
    variant.run(ctx, args);
  };
  slots.fill_bytes(0xff);
  device_synchronize(ctx.device, ctx.stream);
  call();  // scratch grows outside the capture
  device_synchronize(ctx.device, ctx.stream);
  const CapturedGraph graph(stream_of(ctx), call);

  std::vector<int64_t> even(299);
  for (int64_t& length : even) length = random.integer(1, 16);
  std::vector<int64_t> many = even;  // one longer than all others together
  many[std::min<size_t>(211, static_cast<size_t>(batch) / 2)] = 3001;
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{
           {5, 300, 1, 64}, {}, many, even, {3001, 16, 17}, {128, 1, 700, 33, 65, 200, 1024, 2}}) {
    std::vector<int32_t> seq_lens(static_cast<size_t>(batch), 0),
        free_blocks(static_cast<size_t>(num_blocks)), tables(static_cast<size_t>(batch * kWidth), -1);
    std::vector<int64_t> new_slots(static_cast<size_t>(batch), -1);
    std::iota(free_blocks.begin(), free_blocks.end(), 0);
    std::shuffle(free_blocks.begin(), free_blocks.end(), random.engine());
    const Tensor q_rows = poisoned({batch, shape.heads, dim}, kType),
                 k_rows = poisoned({batch, shape.kv_heads, dim}, kType),
                 v_rows = poisoned({batch, shape.kv_heads, dim}, kType);
    const KvCacheView filled = cache_of_nan();
    std::vector<SequenceData> data;
    for (size_t row = 0; row < lengths.size() && row < static_cast<size_t>(batch); ++row) {
      const int64_t length = lengths[row], last = length - 1;
      data.push_back(random_sequence(random, length, shape, kType));
      int32_t* table = tables.data() + row * kWidth;
      for (int64_t block = 0; block * kBlockSize < length; ++block) {
        table[block] = free_blocks.back();
        free_blocks.pop_back();
      }
      std::vector<int64_t> earlier(static_cast<size_t>(last));
      for (int64_t p = 0; p < last; ++p)
        earlier[static_cast<size_t>(p)] = table[p / kBlockSize] * kBlockSize + p % kBlockSize;
      if (last > 0)
        store_kv(OpContext{}, data[row].k.rows(last), data[row].v.rows(last),
                 Tensor::from<int64_t>(earlier, {last}), filled);
      const auto at = static_cast<int64_t>(row);
      seq_lens[row] = static_cast<int32_t>(length);
      new_slots[row] = table[last / kBlockSize] * kBlockSize + last % kBlockSize;
      q_rows.select(0, at).copy_from(data[row].q.select(0, last));
      k_rows.select(0, at).copy_from(data[row].k.select(0, last));
      v_rows.select(0, at).copy_from(data[row].v.select(0, last));
    }
    q.copy_from(q_rows);
    k.copy_from(k_rows);
    v.copy_from(v_rows);
    cache.k.copy_from(filled.k);
    cache.v.copy_from(filled.v);
    if (has_codes) {
      cache.k_scales.copy_from(filled.k_scales);
      cache.v_scales.copy_from(filled.v_scales);
    }
    slots.copy_from(Tensor::from<int64_t>(new_slots, {batch}));
    metadata.seq_lens.copy_from(i32_tensor(seq_lens, {batch}));
    metadata.block_tables.copy_from(i32_tensor(tables, {batch, kWidth}));
    out.fill_bytes(0xff);
    lse.fill_bytes(0xff);
    device_synchronize(ctx.device, ctx.stream);
    const Tensor untouched = out.to(Device{}), untouched_lse = lse.to(Device{});
    graph.replay();

    const Tensor got = out.to(Device{}), got_lse = lse.to(Device{});
    const auto rows = static_cast<int64_t>(data.size());
    for (int64_t row = 0; row < rows; ++row) {
      const SequenceData& given = data[static_cast<size_t>(row)];
      const SequenceData sequence = has_codes ? as_kept(given, kept_as) : given;
      const Reference expected =
          attention_reference(sequence, sequence.length() - 1, sequence.length(), scale);
      ASSERT_TRUE(close_to(got.narrow(0, row, 1), expected.out)) << "row of " << sequence.length() << " keys";
      const auto sums = to_double(got_lse.narrow(0, row, 1));
      for (size_t i = 0; i < sums.size(); ++i) ASSERT_NEAR(sums[i], expected.lse[i], 1e-4);
    }
    ASSERT_TRUE(bitwise_equal(got.narrow(0, rows, batch - rows), untouched.narrow(0, rows, batch - rows)));
    ASSERT_TRUE(
        bitwise_equal(got_lse.narrow(0, rows, batch - rows), untouched_lse.narrow(0, rows, batch - rows)));
  }
  std::vector<int> counters(CudaContext::kNumCounters);
  LADDER_CUDA_CHECK(cudaMemcpy(counters.data(), ctx.cuda->counters(), counters.size() * sizeof(int),
                               cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::count(counters.begin(), counters.end(), 0), CudaContext::kNumCounters);
}

template <class Fn>
void on_every_cuda_rung(Fn&& fn) {
  if (cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  for (const auto& variant : paged_attention_variants())
    if (variant.device == DeviceType::cuda && runs_here(variant, *cuda_context())) fn(variant);
}

TEST(Task1_7_PagedAttention, ACapturedBatchFollowsItsLengthsAndLeavesPaddingRowsAlone) {
  on_every_cuda_rung([](const auto& variant) { check_captured(variant, {4, 2, 128, 128}, 4, true); });
}

TEST(Task1_7_PagedAttention, CapturedBatchesOfManySizes) {
  on_every_cuda_rung([](const auto& variant) {
    check_captured(variant, {16, 8, 128, 128}, 1, false);
    check_captured(variant, {16, 8, 128, 128}, 6, true);
    check_captured(variant, {8, 4, 64, 64}, 300, true);
    check_captured(variant, {2, 1, 256, 256}, 5, true);
  });
}

TEST(Task8_6_PagedAttentionOfCodes, ACapturedBatchFollowsItsLengthsAndLeavesPaddingRowsAlone) {
  if (cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  for (const auto& variant : paged_attention_of_codes_variants())
    for (const KvCacheDType kept_as : kCodes) {
      if (!runs_here(variant, *cuda_context()) || variant.name == "tensor_core")
        continue;  // keys are rounded there
      SCOPED_TRACE(kv_cache_dtype_name(kept_as));
      check_captured(variant, {4, 2, 128, 128}, 4, true, kept_as);
      check_captured(variant, {16, 8, 128, 128}, 1, false, kept_as);
      check_captured(variant, {8, 4, 64, 64}, 300, true, kept_as);
      check_captured(variant, {2, 1, 256, 256}, 5, true, kept_as);
    }
}

#endif

}  // namespace
}  // namespace ladder
