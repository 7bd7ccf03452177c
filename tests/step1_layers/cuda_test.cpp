// What only a GPU can show: memory and copies, sizes past 2^31 elements, and shapes that the fast kernels are
// made for. Everything else about the CUDA rungs is in the operators' own tests.
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "tests/step1_layers/attention_scene.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

#define SKIP_WITHOUT_GPU()                                            \
  std::string reason;                                                 \
  if (cuda_device_count(&reason) == 0) {                              \
    GTEST_SKIP() << "the CUDA rungs are not tested here: " << reason; \
  }

TEST(Task1_1_Cuda, MemoryAndCopies) {
  SKIP_WITHOUT_GPU();
  const OpContext& ctx = *cuda_context();
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor host = random.normal({37, 91}, DType::bf16);
  for (void* stream : {static_cast<void*>(nullptr), ctx.stream}) {
    const Tensor there = host.to(ctx.device, stream), twice = there.to(ctx.device, stream);
    const Tensor back = twice.to(Device{}, stream);
    device_synchronize(ctx.device, ctx.stream);
    EXPECT_TRUE(bitwise_equal(host, back));
  }
  const Tensor zeros = Tensor::zeros({1000}, DType::f32, ctx.device).to(Device{});
  EXPECT_EQ(to_double(zeros), std::vector<double>(1000, 0.0));
  EXPECT_THROW(device_allocate(ctx.device, int64_t{1} << 50), Error);
  EXPECT_THROW(device_allocate({DeviceType::cuda, cuda_device_count()}, 16), Error);
}

TEST(Task1_1_Cuda, SaysWhyAGpuCannotBeUsed) {
  std::string reason;
  if (cuda_device_count(&reason) == 0) {
    EXPECT_NE(reason, "");
    EXPECT_EQ(reason.find("insufficient"), std::string::npos) << "what the runtime says without a driver";
  } else {
    EXPECT_TRUE(usable(cuda_device_info(0)));
  }
  const auto message = [](const CudaDeviceInfo& info) -> std::string {
    try {
      check_usable(info, "--device cuda");
    } catch (const Error& error) {
      EXPECT_FALSE(usable(info));
      return error.what();
    }
    EXPECT_TRUE(usable(info));
    return "";
  };
  CudaDeviceInfo info;
  info.name = "a GPU";
  info.arch = 70;
  EXPECT_EQ(message(info), "--device cuda: a GPU has compute capability 7.0, expected 7.5 or newer");
  info.arch = 90;
  EXPECT_EQ(message(info),
            "--device cuda: this build has no kernels for a GPU, expected one with "
            "-DCMAKE_CUDA_ARCHITECTURES=90");
  info.has_kernels = true;
  EXPECT_EQ(message(info), "");
}

TEST(Task1_1_Cuda, TheRungsOfHopperAreForNoLaterGpu) {
  CudaDeviceInfo info;
  for (const auto& [arch, rungs] : {std::pair{75, 75}, {86, 86}, {89, 89}, {90, 90}, {100, 89}, {120, 89}}) {
    info.arch = arch;
    EXPECT_EQ(kernel_arch(info), rungs);
    struct Args {};
    const Variant<Args> table[] = {
        {.name = "naive", .device = DeviceType::cuda, .idea = ""},
        {.name = "tensor_core", .device = DeviceType::cuda, .idea = "", .min_arch = 80},
        {.name = "wgmma", .device = DeviceType::cuda, .idea = "", .min_arch = 90},
    };
    OpContext ctx;
    ctx.device = {DeviceType::cuda, 0};
    ctx.device_arch = kernel_arch(info);
    const auto chosen = [&] { return select_variant<Args>("op", table, ctx, {}).name; };
    EXPECT_EQ(chosen(), arch == 90 ? "wgmma" : arch >= 80 ? "tensor_core" : "naive") << arch;
    ctx.kernels["op"] = "wgmma";
    if (arch != 90) EXPECT_THROW(chosen(), Error) << arch;
  }
  if (cuda_device_count() > 0) {
    EXPECT_EQ(cuda_context()->device_arch, kernel_arch(cuda_device_info(0)));
  }
}

TEST(Task1_1_Cuda, ATableWithoutARungForTheDeviceSaysSo) {
  SKIP_WITHOUT_GPU();
  OpContext ctx = *cuda_context();
  ctx.kernels["silu_and_mul"] = "avx2";
  const Tensor x = Tensor::zeros({2, 8}, DType::f32, ctx.device);
  EXPECT_THROW(silu_and_mul(ctx, x, x.narrow(1, 0, 4)), Error);
}

// Elements past 2^31: an index held in 32 bits would wrap.
TEST(Task1_2_SiluAndMul, MoreThanTwoToThe31Elements) {
  SKIP_WITHOUT_GPU();
  const int64_t width = 8192, rows = (int64_t{1} << 31) / width + 1001;
  if (cuda_device_info(0).free_bytes < 3 * rows * width * 2 + (int64_t{1} << 30))
    GTEST_SKIP() << "not enough GPU memory";
  Random random;
  SCOPED_TRACE(random.describe());
  for (const auto& variant : silu_and_mul_variants()) {
    if (variant.device != DeviceType::cuda) continue;
    const OpContext& ctx = *cuda_context();
    const Tensor x = Tensor::zeros({rows, 2 * width}, DType::bf16, ctx.device);
    const Tensor out = Tensor::empty({rows, width}, DType::bf16, ctx.device);
    out.fill_bytes(0xff);
    const Tensor last = random.normal({3, 2 * width}, DType::bf16);
    x.narrow(0, rows - 3, 3).copy_from(last);
    variant.run(ctx, {x, out});
    device_synchronize(ctx.device, ctx.stream);
    std::vector<double> values = to_double(last), expected;
    for (int64_t row = 0; row < 3; ++row)
      for (int64_t i = 0; i < width; ++i) {
        const double gate = values[static_cast<size_t>(row * 2 * width + i)];
        expected.push_back(gate / (1 + std::exp(-gate)) *
                           values[static_cast<size_t>(row * 2 * width + width + i)]);
      }
    EXPECT_TRUE(close_to(out.narrow(0, rows - 3, 3).to(Device{}), expected)) << variant.name;
    const std::vector<double> zeros(static_cast<size_t>(width), 0.0);
    for (int64_t row : {int64_t{0}, rows / 2, rows - 4})
      EXPECT_EQ(to_double(out.narrow(0, row, 1).to(Device{})), zeros) << variant.name << " row " << row;
  }
}

TEST(Task1_5_Embedding, RowsOfWholePacks) {
  Random random;
  SCOPED_TRACE(random.describe());
  OpContext ctx;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const auto& variant : embedding_variants()) {
      const Tensor weight = random.normal({50, 64}, dtype);
      const Tensor ids = i32_tensor({7, 3, 59, 12, 10, 8}, {6}), out = poisoned({6, 64}, dtype);
      const EmbeddingArgs args{ids, weight, 8, out};
      if (!can_run_rung(variant, ctx, args)) continue;
      run_rung(variant, ctx, args);
      for (int64_t i = 0; i < 6; ++i) {
        const int64_t row = ids.at<int32_t>({i}) - 8;
        const Tensor expected =
            row >= 0 && row < 50 ? weight.narrow(0, row, 1).clone() : Tensor::zeros({1, 64}, dtype);
        EXPECT_TRUE(bitwise_equal(out.narrow(0, i, 1), expected)) << variant.name << " token " << i;
      }
    }
}

TEST(Task1_4_Matmul, FewRowsOfTheShapesOfAModel) {
  Random random;
  SCOPED_TRACE(random.describe());
  OpContext ctx;
  for (auto [n, k] : {std::pair<int64_t, int64_t>{1024, 3072}, {4096, 1024}, {100, 4104}})
    for (int64_t m : {1, 3, 8, 9, 16, 130}) {
      const MatmulArgs args{random.exact({m, k}, DType::bf16), random.exact({n, k}, DType::bf16),
                            random.exact({n}, DType::bf16), poisoned({m, n}, DType::f32)};
      Tensor expected;  // exact: the first rung's, whose own test is matmul_test.cpp
      for (const auto& variant : matmul_variants()) {
        if (!can_run_rung(variant, ctx, args)) continue;
        if (expected.defined() && variant.device == DeviceType::cpu) continue;
        args.out.fill_bytes(0xff);
        run_rung(variant, ctx, args);
        if (!expected.defined()) expected = args.out.clone();
        EXPECT_TRUE(bitwise_equal(args.out, expected)) << variant.name << " " << m << "x" << n << "x" << k;
      }
    }
}

// Head sizes, groups and page sizes of the tensor-core rungs, with lengths around their tiles.
// (The rungs of the CPU have their own tests.)
RUNG_TEST(Task1_7_PagedAttention, DecodeBatchesAndMixedBatchesOfRealHeads, "paged_attention",
          rungs_where(paged_attention_variants(),
                      [](const auto& rung) { return rung.device == DeviceType::cuda; })) {
  for (const HeadShape& shape : {HeadShape{8, 8, 64, 64},
                                 {8, 2, 128, 128},
                                 {5, 1, 128, 128},
                                 {10, 1, 128, 128},
                                 {16, 1, 64, 64},
                                 {4, 2, 256, 256}})
    for (DType dtype : {DType::bf16, DType::f16})
      for (bool mixed : {false, true}) {
        Random random;
        SCOPED_TRACE(random.describe() + " heads " + std::to_string(shape.heads) + " dim " +
                     std::to_string(shape.k_dim));
        std::vector<SequenceData> data;
        std::vector<Part> parts;
        for (int64_t length : {1, 15, 16, 17, 64, 65, 128, 200, 500})
          data.push_back(random_sequence(random, length, shape, dtype));
        for (const SequenceData& d : data) parts.push_back({&d, d.length() - 1, d.length()});
        if (mixed) {
          parts[4] = {&data[4], 0, 64};
          parts[7] = {&data[7], 3, 200};
          parts[6] = {&data[6], 127, 128};
        }
        const double scale = 1 / std::sqrt(static_cast<double>(shape.k_dim));
        const int64_t block_size = std::array{16, 32, 64, 256}[random.integer(0, 3)];
        const Attended result = attend(ctx, random, parts, block_size, scale, 2);
        int64_t row = 0;
        for (const Part& part : parts) {
          const Reference expected = attention_reference(*part.data, part.begin, part.end, scale);
          const int64_t length = part.end - part.begin;
          ASSERT_TRUE(close_to(result.out.narrow(0, row, length), expected.out))
              << "rows " << part.begin << ".." << part.end << " block size " << block_size;
          const auto lse = to_double(result.lse.narrow(0, row, length));
          for (size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(lse[i], expected.lse[i], 1e-4);
          row += length;
        }
      }
}

}  // namespace
}  // namespace ladder
