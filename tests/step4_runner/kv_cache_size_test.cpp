// Task 4.2: how large the KV cache becomes, and what is refused.
#include "step4_runner/kv_cache_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "tests/step4_runner/fake_model.h"
#include "tests/support/model_devices.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using ladder::testing::fake_spec;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;
constexpr MachineMemory kBigMachine{256 * kGiB, 200 * kGiB};

// The shape of Qwen3-0.6B.
DecoderSpec qwen3_spec() {
  DecoderSpec spec;
  spec.vocab_size = 151936;
  spec.hidden_size = 1024;
  spec.intermediate_size = 3072;
  spec.num_layers = 28;
  spec.num_heads = 16;
  spec.num_kv_heads = 8;
  spec.head_dim = 128;
  spec.max_position_embeddings = 40960;
  spec.qk_norm = true;
  spec.tie_word_embeddings = true;
  spec.rope.rotary_dim = 128;
  return spec;
}

RunnerConfig bf16_config() {
  RunnerConfig config;
  config.dtype = DType::bf16;
  return config;
}

std::string error_of(const DecoderSpec& spec, const RunnerConfig& config,
                     MachineMemory memory = kBigMachine) {
  try {
    resolve_runner_config(spec, config, memory);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Task4_2_Memory, KnowsTheKvBytesOfATokenOnAllRanks) {
  RunnerConfig config = bf16_config();
  EXPECT_EQ(kv_bytes_per_token(qwen3_spec(), config), 114688);
  config.tensor_parallel_size = 8;
  EXPECT_EQ(kv_bytes_per_token(qwen3_spec(), config), 114688);
  config.tensor_parallel_size = 16;  // 8 KV heads on 16 ranks: each is there twice
  EXPECT_EQ(kv_bytes_per_token(qwen3_spec(), config), 2 * 114688);
}

TEST(Task8_6_KvCacheSize, CodesTakeFewerBytes) {
  RunnerConfig config = bf16_config();
  for (const auto& [kept_as, of_head] :
       {std::pair{KvCacheDType::fp8, 128 + 8}, {KvCacheDType::int8, 128 + 8}, {KvCacheDType::int4, 64 + 8}}) {
    config.kv_cache_dtype = kept_as;
    EXPECT_EQ(kv_bytes_per_token(qwen3_spec(), config), 28 * 2 * 8 * of_head);
    config.kv_memory = 300 * kMiB;
    EXPECT_EQ(resolve_runner_config(qwen3_spec(), config, kBigMachine).batch.num_kv_blocks,
              300 * kMiB / (16 * 28 * 2 * 8 * of_head));
  }
}

TEST(Task8_6_KvCacheSize, WhereThereAreNoCodesIsSaid) {
  RunnerConfig config = bf16_config();
  config.kv_cache_dtype = KvCacheDType::int4;
  config.device = Device{};
  config.prefill_context_parallel_size = 2;
  EXPECT_THAT(error_of(qwen3_spec(), config), ::testing::HasSubstr("--kv-cache-dtype int4: expected auto"));
}

TEST(Task4_2_Memory, TheCacheIsWhatWasAskedFor) {
  RunnerConfig config = bf16_config();
  config.batch.max_model_len = 1000;
  config.batch.num_kv_blocks = 77;
  EXPECT_EQ(resolve_runner_config(qwen3_spec(), config, kBigMachine).batch.num_kv_blocks, 77);
  config.batch.num_kv_blocks = 0;
  config.kv_memory = 300 * kMiB;
  const RunnerConfig resolved = resolve_runner_config(qwen3_spec(), config, kBigMachine);
  EXPECT_EQ(resolved.batch.num_kv_blocks, 300 * kMiB / (114688 * 16));
  EXPECT_EQ(predict_memory(qwen3_spec(), resolved).kv, resolved.batch.num_kv_blocks * 114688 * 16);
}

TEST(Task4_2_Memory, AnOpenCacheIsAShareOfTheMachineAndNoMoreThanSequencesCanUse) {
  RunnerConfig config = bf16_config();
  const int64_t block = 114688 * 16;
  EXPECT_EQ(resolve_runner_config(qwen3_spec(), config, kBigMachine).batch.num_kv_blocks, 4 * kGiB / block);
  EXPECT_EQ(resolve_runner_config(qwen3_spec(), config, {8 * kGiB, 8 * kGiB}).batch.num_kv_blocks,
            2 * kGiB / block);
  config.batch.max_num_seqs = 3;
  config.batch.max_model_len = 1000;
  EXPECT_EQ(resolve_runner_config(qwen3_spec(), config, kBigMachine).batch.num_kv_blocks, 3 * 63);
  // Little is free: weights and activations come first.
  config = bf16_config();
  const MachineMemory tight{64 * kGiB, 2 * kGiB};
  const RunnerConfig resolved = resolve_runner_config(qwen3_spec(), config, tight);
  EXPECT_LT(predict_memory(qwen3_spec(), resolved).total(), tight.available);
  EXPECT_GT(resolved.batch.num_kv_blocks, 0);
}

// A GPU's cache is a matter of arithmetic until the warm-up has measured what the rest takes.
RunnerConfig gpu_config() {
  RunnerConfig config = bf16_config();
  config.device = {DeviceType::cuda, 0};
  config.batch.max_num_seqs = 256;
  config.batch.max_num_batched_tokens = 8192;
  return config;
}

// K and V of every layer are allocations of their own, which a GPU rounds up to whole pages.
int64_t allocated_cache(int64_t num_blocks) {
  constexpr int64_t kPage = 2 * kMiB, kTensors = 2 * 28;
  return kTensors * ((num_blocks * 114688 * 16 / kTensors + kPage - 1) / kPage * kPage);
}

TEST(Task4_2_GpuMemory, AnOpenCacheIsWhatUtilizationLeavesBesideTheRest) {
  const MachineMemory gpu{140 * kGiB, 138 * kGiB};  // 2 GiB are another process's
  RunnerConfig config = gpu_config();
  const int64_t block = 114688 * 16;
  for (const double utilization : {0.5, 0.77, 0.9, 1.0}) {
    config.gpu_memory_utilization = utilization;
    const RunnerConfig resolved = resolve_runner_config(qwen3_spec(), config, gpu);
    const MemoryPlan plan = predict_memory(qwen3_spec(), resolved);
    const int64_t rest = plan.total() - plan.kv + 2 * kGiB;
    const auto share = static_cast<int64_t>(utilization * static_cast<double>(gpu.total));
    EXPECT_LE(rest + allocated_cache(resolved.batch.num_kv_blocks), share) << utilization;
    EXPECT_GT(rest + allocated_cache(resolved.batch.num_kv_blocks + 1), share) << utilization;
  }
  config.gpu_memory_utilization = 0.9;
  const RunnerConfig resolved = resolve_runner_config(qwen3_spec(), config, gpu);
  EXPECT_EQ(resolved.batch.max_model_len, 40960);
  config.gpu_memory_utilization = 0.5;
  const RunnerConfig half = resolve_runner_config(qwen3_spec(), config, gpu);
  EXPECT_NEAR(static_cast<double>((resolved.batch.num_kv_blocks - half.batch.num_kv_blocks) * block),
              0.4 * static_cast<double>(gpu.total), static_cast<double>(56 * 2 * kMiB + block));
  // Measured: what is used is given, not predicted.
  const RunnerConfig sized = size_kv_cache(qwen3_spec(), resolved, gpu.total, 10 * kGiB);
  const auto left = static_cast<int64_t>(0.9 * static_cast<double>(gpu.total)) - 10 * kGiB;
  EXPECT_LE(allocated_cache(sized.batch.num_kv_blocks), left);
  EXPECT_GT(allocated_cache(sized.batch.num_kv_blocks + 1), left);
}

TEST(Task4_2_GpuMemory, ACacheThatWasAskedForIsNotSized) {
  RunnerConfig config = gpu_config();
  config.batch.num_kv_blocks = 5000;
  EXPECT_EQ(resolve_runner_config(qwen3_spec(), config, {140 * kGiB, 12 * kGiB}).batch.num_kv_blocks, 5000);
  config.batch.num_kv_blocks = 0;
  config.kv_memory = 9 * kGiB;
  EXPECT_EQ(resolve_runner_config(qwen3_spec(), config, {140 * kGiB, 12 * kGiB}).batch.num_kv_blocks,
            9 * kGiB / (114688 * 16));
}

TEST(Task4_2_GpuMemory, ACacheThatWasAskedForAndDoesNotFitIsRefusedWithAllThatItNeeds) {
  const auto has = [](const std::string& error, const std::string& part) {
    return ::testing::AssertionResult(error.find(part) != std::string::npos) << error;
  };
  RunnerConfig config = gpu_config();
  config.kv_memory = 200 * kGiB;
  const MachineMemory gpu{140 * kGiB, 138 * kGiB};
  const MemoryPlan plan =
      predict_memory(qwen3_spec(), resolve_runner_config(qwen3_spec(), gpu_config(), gpu));
  const int64_t cache = allocated_cache(200 * kGiB / (114688 * 16));
  const auto mib = [](int64_t bytes) {
    return fmt::format("{:.1f}", static_cast<double>(bytes) / static_cast<double>(kMiB));
  };
  std::string error = error_of(qwen3_spec(), config, gpu);
  EXPECT_TRUE(has(error, "the KV cache takes " + mib(cache)));
  EXPECT_TRUE(has(error, "together " + mib(cache + plan.weights + plan.activations)));
  EXPECT_TRUE(has(error, "cuda:0 has " + mib(gpu.available) + " of " + mib(gpu.total) + " MiB free"));
  EXPECT_TRUE(has(error, "expected a lower --kv-memory"));
  config.kv_memory = 0;
  config.batch.num_kv_blocks = 200 * kGiB / (114688 * 16);
  error = error_of(qwen3_spec(), config, gpu);
  EXPECT_TRUE(has(error, "expected a lower --num-kv-blocks"));
  // The cache alone would fit; not beside the model.
  config.batch.num_kv_blocks = 137 * kGiB / (114688 * 16);
  EXPECT_TRUE(has(error_of(qwen3_spec(), config, gpu), "out of GPU memory"));
  // What does not fit whatever the cache is asks for more than a lower flag.
  config.batch.num_kv_blocks = 3000;
  EXPECT_TRUE(has(error_of(qwen3_spec(), config, {140 * kGiB, kGiB}), "a smaller model"));
  config.batch.num_kv_blocks = 130 * kGiB / (114688 * 16);
  EXPECT_EQ(error_of(qwen3_spec(), config, gpu), "no error");
}

TEST(Task4_2_GpuMemory, WhatDoesNotFitSaysHowMuchIsMissingAndWhatHelps) {
  RunnerConfig config = gpu_config();
  config.gpu_memory_utilization = 0.01;
  const std::string error = error_of(qwen3_spec(), config, {140 * kGiB, 138 * kGiB});
  EXPECT_NE(error.find("--gpu-memory-utilization 0.01"), std::string::npos) << error;
  EXPECT_NE(error.find("the model needs"), std::string::npos) << error;
  EXPECT_NE(error.find("what others hold of cuda:0's memory included"), std::string::npos) << error;
  EXPECT_NE(error.find("143360.0 MiB"), std::string::npos) << error;
  config.gpu_memory_utilization = 0.04;  // room for a few thousand tokens
  config.batch.max_model_len = 40960;
  const std::string length = error_of(qwen3_spec(), config, {140 * kGiB, 138 * kGiB});
  EXPECT_NE(length.find("--max-model-len 40960"), std::string::npos) << length;
  EXPECT_NE(length.find("raise --gpu-memory-utilization"), std::string::npos) << length;
}

TEST(Task4_2_Memory, AnOpenLengthIsTheModelsOwnOrWhatTheCacheHolds) {
  RunnerConfig config = bf16_config();
  config.batch.num_kv_blocks = 10000;
  EXPECT_EQ(resolve_runner_config(qwen3_spec(), config, kBigMachine).batch.max_model_len, 40960);
  config.batch.num_kv_blocks = 10;
  EXPECT_EQ(resolve_runner_config(qwen3_spec(), config, kBigMachine).batch.max_model_len, 160);
  DecoderSpec spec = qwen3_spec();
  spec.rope.kind = RopeKind::yarn;
  spec.rope.factor = 4.0;
  spec.rope.original_max_position_embeddings = 32768;
  config.batch.num_kv_blocks = 10000;
  EXPECT_EQ(resolve_runner_config(spec, config, kBigMachine).batch.max_model_len, 131072);
  spec = fake_spec();
  spec.rope.kind = RopeKind::dynamic_ntk;
  spec.rope.factor = 2.0;
  EXPECT_EQ(resolve_runner_config(spec, config, kBigMachine).batch.max_model_len, 128);
  config.batch.max_model_len = 1000;
  EXPECT_EQ(resolve_runner_config(spec, config, kBigMachine).batch.max_model_len, 1000);
}

TEST(Task4_2_Memory, ResolvingTwiceChangesNothing) {
  const RunnerConfig once = resolve_runner_config(qwen3_spec(), bf16_config(), kBigMachine);
  const RunnerConfig twice = resolve_runner_config(qwen3_spec(), once, {4 * kGiB, kGiB});
  EXPECT_EQ(once.batch.num_kv_blocks, twice.batch.num_kv_blocks);
  EXPECT_EQ(once.batch.max_model_len, twice.batch.max_model_len);
  EXPECT_EQ(once.threads, twice.threads);
}

TEST(Task4_2_Memory, ACacheTooSmallForOneSequenceNamesTheFlags) {
  RunnerConfig config = bf16_config();
  config.batch.max_model_len = 200;
  config.batch.num_kv_blocks = 12;  // 192 tokens
  std::string error = error_of(qwen3_spec(), config);
  EXPECT_NE(error.find("--num-kv-blocks"), std::string::npos) << error;
  EXPECT_NE(error.find("--max-model-len 200"), std::string::npos) << error;
  config.batch.num_kv_blocks = 13;
  EXPECT_EQ(error_of(qwen3_spec(), config), "no error");
  config.batch.num_kv_blocks = 0;
  config.kv_memory = kMiB;
  error = error_of(qwen3_spec(), config);
  EXPECT_NE(error.find("--kv-memory"), std::string::npos) << error;
  config.batch.max_model_len = 0;  // not even one block
  EXPECT_NE(error_of(qwen3_spec(), config).find("--kv-memory"), std::string::npos);
}

TEST(Task4_2_Memory, SizesThatMakeNoSenseNameTheirFlag) {
  auto error_with = [](auto change) {
    RunnerConfig config = bf16_config();
    change(config);
    return error_of(qwen3_spec(), config);
  };
  auto names = [](const std::string& error, const char* flag) {
    return ::testing::AssertionResult(error.find(flag) != std::string::npos) << error;
  };
  EXPECT_TRUE(names(error_with([](RunnerConfig& c) { c.batch.max_num_seqs = -1; }), "--max-num-seqs is -1"));
  EXPECT_TRUE(names(error_with([](RunnerConfig& c) { c.batch.max_num_batched_tokens = -1; }),
                    "--max-num-batched-tokens"));
  EXPECT_TRUE(
      names(error_with([](RunnerConfig& c) { c.batch.max_model_len = 40961; }), "--max-model-len is 40961"));
  EXPECT_TRUE(names(error_with([](RunnerConfig& c) { c.batch.block_size = 0; }), "--block-size"));
  EXPECT_TRUE(names(error_with([](RunnerConfig& c) { c.batch.num_kv_blocks = int64_t{1} << 40; }),
                    "--num-kv-blocks"));
  EXPECT_TRUE(names(error_with([](RunnerConfig& c) { c.kv_memory = -5; }), "--kv-memory"));
  EXPECT_TRUE(names(error_with([](RunnerConfig& c) { c.threads = -1; }), "--threads"));
  EXPECT_TRUE(
      names(error_with([](RunnerConfig& c) { c.tensor_parallel_size = 3; }), "--tensor-parallel-size 3"));
}

TEST(Task4_2_Memory, TheMachineHasSome) {
  const MachineMemory memory = machine_memory();
  EXPECT_GT(memory.total, 0);
  EXPECT_GT(memory.available, 0);
  EXPECT_LE(memory.available, memory.total);
}

class Task4_2_Caches : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override { ladder::testing::need_device(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, Task4_2_Caches, ladder::testing::both_devices(),
                         [](const auto& info) { return ladder::testing::device_word(info.param); });

TEST_P(Task4_2_Caches, AreZeroedBlocksOfTheLayersOwnShape) {
  KvCacheSpec a, b;
  a.num_kv_heads = 2;
  a.k_dim = 3;
  a.v_dim = 5;
  b = a;
  b.dtype = DType::bf16;
  const auto caches = allocate_kv_caches(std::vector<KvCacheSpec>{a, b}, 7, 4, Device{GetParam(), 0});
  ASSERT_EQ(caches.size(), 2u);
  EXPECT_EQ(caches[0].k.shape(), (Shape{7, 4, 2, 3}));
  EXPECT_EQ(caches[1].v.shape(), (Shape{7, 4, 2, 5}));
  EXPECT_EQ(caches[1].v.dtype(), DType::bf16);
  EXPECT_TRUE(
      ladder::testing::bitwise_equal(caches[0].v.to(Device{}), Tensor::zeros({7, 4, 2, 5}, DType::f32)));
}

}  // namespace
}  // namespace ladder
