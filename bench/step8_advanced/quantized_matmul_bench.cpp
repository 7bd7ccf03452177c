// The product with a quantized weight beside the dense product in bf16: decoding (1, 4, 16 rows) with a weight [4096, 4096],
// which no cache holds as operands rotate, and a prefill of 256 rows with [2048, 2048]. bytes: codes, scales, x and out.
// On a GPU: the weights of Llama-3.1-8B's layers and a square one, at 1 to 2048 rows; and 8-bit integers and FP8 on both
// sides, which take rounding x to them with it, the square one at 8192 rows too. quantize_rows is that rounding alone: what a
// library's product that is given its codes does not do; product_of_codes is the product without it, of few rows.
#include <fmt/format.h>

#include "bench/support/bench_cuda.h"
#include "bench/support/bench_support.h"
#include "step1_layers/core/small_floats.h"
#include "step1_layers/linear/matmul.h"
#include "step8_advanced/quantization/kernels/eight_bit_codes.h"
#include "step8_advanced/quantization/kernels/eight_bit_rows_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul.h"
#ifdef LADDER_HAS_CUDA
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#endif
#include "step8_advanced/quantization/kernels/weight_records.h"

namespace ladder::bench {

namespace {

// With what owns the weight: it travels with x.
QuantizedMatmulArgs owning(QuantizedMatmulArgs args, const std::shared_ptr<QuantizedWeight>& weight) {
  const auto owner = std::make_shared<std::pair<Tensor, std::shared_ptr<QuantizedWeight>>>(args.x, weight);
  args.x = Tensor::wrap(args.x.raw(), args.x.shape(), args.x.dtype(), args.x.device(), owner);
  args.weight = weight.get();
  return args;
}

}  // namespace

// The weight as a GPU keeps it.
template <>
QuantizedMatmulArgs to_gpu(QuantizedMatmulArgs args, Device device) {
  const bool records = !are_multiplied_as_codes(*args.weight, args.activations) && fits_records(*args.weight);
  const auto weight = std::make_shared<QuantizedWeight>(records ? in_records(*args.weight) : *args.weight);
  for (Tensor* tensor :
       {&weight->codes, &weight->scales, &weight->zeros, &weight->records.bytes, &args.x, &args.out})
    if (tensor->defined()) *tensor = tensor->to(device);
  return owning(args, weight);
}

namespace {

struct Format {
  const char* name;
  WeightCodes type;
  int64_t group_size;  // 0: a row has one scale
  bool zeros = false;
  bool rounds_x = false;  // to the weight's type, per token
};
constexpr Format kFormats[] = {
    {"w4_g128", WeightCodes::int4, 128},
    {"w4_g128_zeros", WeightCodes::int4, 128, true},
    {"nvfp4", WeightCodes::fp4_e2m1, 16},
    {"w8", WeightCodes::int8, 0},
    {"fp8", WeightCodes::fp8_e4m3, 0},
    {"w8a8", WeightCodes::int8, 0, false, true},
    {"fp8_w8a8", WeightCodes::fp8_e4m3, 0, false, true},
};

// Codes of numbers that are spread evenly over their range.
QuantizedWeight random_weight(const Format& format, int64_t n, int64_t k) {
  QuantizedWeight weight;
  weight.type = format.type;
  weight.n = n;
  weight.k = k;
  weight.group_size = format.group_size > 0 ? format.group_size : k;
  const Tensor numbers = random_tensor({n, is_nibble(format.type) ? k / 2 : k}, DType::f32);
  weight.codes = Tensor::empty(numbers.shape(), format.type == WeightCodes::int8 ? DType::i8 : DType::u8);
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    auto& code = static_cast<uint8_t*>(weight.codes.raw())[i];
    const float number = numbers.data<float>()[i];
    code = format.type == WeightCodes::fp8_e4m3 ? float_to_e4m3(number * kMaxE4M3)
                                                : static_cast<uint8_t>(static_cast<int>(number * 128));
  }
  weight.scales = random_tensor({n, k / weight.group_size}, DType::bf16).to(DType::f32);
  if (format.zeros) {
    weight.zeros = Tensor::empty(weight.scales.shape(), DType::u8);
    weight.zeros.fill_bytes(7);
  }
  return weight;
}

BenchProblem<QuantizedMatmulArgs> problem(const Format& format, int64_t n, int64_t k, int64_t m) {
  BenchProblem<QuantizedMatmulArgs> result;
  result.name = fmt::format("{}/{}x{}/m:{}", format.name, n, k, m);
  result.dtype = DType::bf16;
  const int64_t groups = format.group_size > 0 ? k / format.group_size : 1;
  const int64_t codes = n * (is_nibble(format.type) ? k / 2 : k);
  result.bytes = static_cast<double>(codes + n * groups * (4 + (format.zeros ? 1 : 0)) + 2 * m * (k + n));
  result.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  result.make = [=] {
    QuantizedMatmulArgs args;
    args.x = random_tensor({m, k}, DType::bf16);
    if (format.rounds_x)
      args.activations = QuantizationArgs{.is_float = format.type == WeightCodes::fp8_e4m3,
                                          .strategy = ScaleStrategy::token,
                                          .dynamic = true};
    args.out = Tensor::zeros({m, n}, DType::bf16);
    return owning(args, std::make_shared<QuantizedWeight>(random_weight(format, n, k)));
  };
  return result;
}

BenchProblem<MatmulArgs> dense_problem(int64_t n, int64_t k, int64_t m) {
  BenchProblem<MatmulArgs> result;
  result.name = fmt::format("bf16/{}x{}/m:{}", n, k, m);
  result.dtype = DType::bf16;
  result.bytes = static_cast<double>(2 * (n * k + m * (k + n)));
  result.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  result.make = [=] {
    return MatmulArgs{random_tensor({m, k}, DType::bf16), random_tensor({n, k}, DType::bf16), Tensor(),
                      Tensor::zeros({m, n}, DType::bf16)};
  };
  return result;
}

#ifdef LADDER_HAS_CUDA
// A product that is given the codes of x.
struct CodesMatmulArgs : QuantizedMatmulArgs {
  RowCodes codes = {};
};

BenchProblem<CodesMatmulArgs> codes_problem(const Format& format, int64_t n, int64_t k, int64_t m) {
  const BenchProblem<QuantizedMatmulArgs> whole = problem(format, n, k, m);
  BenchProblem<CodesMatmulArgs> result;
  result.name = whole.name;
  result.dtype = whole.dtype;
  result.bytes = whole.bytes - static_cast<double>(m * (k - 4));  // a code in place of two bytes, and scales
  result.flops = whole.flops;
  result.make = [=] { return CodesMatmulArgs{whole.make()}; };
  return result;
}
#endif

}  // namespace

#ifdef LADDER_HAS_CUDA
template <>
CodesMatmulArgs to_gpu(CodesMatmulArgs args, Device device) {
  const QuantizedMatmulArgs there = to_gpu<QuantizedMatmulArgs>(args, device);
  const int64_t m = there.x.dim(0);
  const RowCodes codes{Tensor::empty({m, there.x.dim(1)}, DType::u8, device),
                       Tensor::empty({m}, DType::f32, device)};
  quantize_rows_cuda(*cuda_bench_context(), there.x, *there.activations, there.input_scale, codes);
  return {there, codes};
}
#endif

namespace {

#ifdef LADDER_HAS_CUDA
void round_x(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  ArenaScope scope(*ctx.arena);
  const int64_t m = args.x.dim(0), k = args.x.dim(1);
  quantize_rows_cuda(ctx, args.x, *args.activations, args.input_scale,
                     {ctx.arena->take({m, k}, DType::u8), ctx.arena->take({m}, DType::f32)});
}
constexpr Variant<QuantizedMatmulArgs> kRounding[] = {{.name = "rows",
                                                       .device = DeviceType::cuda,
                                                       .idea = "x to codes and scales, no product",
                                                       .run = round_x}};

constexpr Variant<CodesMatmulArgs> kOfCodes[] = {
    {.name = "wgmma_8bit",
     .device = DeviceType::cuda,
     .idea = "tile by tile on wgmma",
     .min_arch = 90,
     .supports = [](const CodesMatmulArgs& args) { return quantized_matmul_takes_wgmma_8bit(args); },
     .run = [](const OpContext& ctx,
               const CodesMatmulArgs& args) { wgmma_8bit_of_codes(ctx, args, args.codes); }},
    {.name = "rows_stream_8bit",
     .device = DeviceType::cuda,
     .idea = "few rows, folded, through a ring",
     .min_arch = 90,
     .supports = [](const CodesMatmulArgs& args) { return quantized_matmul_takes_rows_stream_8bit(args); },
     .run = [](const OpContext& ctx,
               const CodesMatmulArgs& args) { rows_stream_8bit_of_codes(ctx, args, args.codes); }},
};

// Bytes are x and its codes.
std::vector<BenchProblem<QuantizedMatmulArgs>> roundings() {
  std::vector<BenchProblem<QuantizedMatmulArgs>> result;
  for (const Format& format : kFormats)
    for (const int64_t m : {1, 32, 512, 8192}) {
      if (!format.rounds_x) continue;
      constexpr int64_t kColumns = 8192;
      result.push_back(problem(format, 16, kColumns, m));
      result.back().bytes = static_cast<double>(m * (3 * kColumns + 4));
      result.back().flops = 0;
    }
  return result;
}
#endif

struct Size {
  int64_t n, k, m = 0;
};
constexpr Size kSizes[] = {{4096, 4096, 1}, {4096, 4096, 4}, {4096, 4096, 16}, {2048, 2048, 256}};

const bool kRegistered = [] {
  std::vector<BenchProblem<QuantizedMatmulArgs>> problems;
  std::vector<BenchProblem<MatmulArgs>> dense;
  for (const Size& size : kSizes) {
    dense.push_back(dense_problem(size.n, size.k, size.m));
    for (const Format& format : kFormats) problems.push_back(problem(format, size.n, size.k, size.m));
  }
  register_ladder("matmul", matmul_variants(), dense);
  register_ladder("quantized_matmul", quantized_matmul_variants(), problems);

  problems.clear();
  dense.clear();
#ifdef LADDER_HAS_CUDA
  std::vector<BenchProblem<CodesMatmulArgs>> of_codes;
#endif
  for (const Size& size : {Size{8192, 8192}, {28672, 4096}, {4096, 14336}, {6144, 4096}, {4096, 4096}})
    for (const int64_t m : {1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192}) {
      if (m == 8192 && (size.n != m || size.k != m)) continue;
      dense.push_back(dense_problem(size.n, size.k, m));
      for (const Format& format : kFormats)
        if (format.rounds_x || m <= 64 || m == 1024 || format.type == WeightCodes::int4)
          problems.push_back(problem(format, size.n, size.k, m));
#ifdef LADDER_HAS_CUDA
      for (const Format& format : kFormats)
        if (format.rounds_x && m <= 64) of_codes.push_back(codes_problem(format, size.n, size.k, m));
#endif
    }
  register_cuda_ladder("matmul", matmul_variants(), dense);
  register_cuda_ladder("quantized_matmul", quantized_matmul_variants(), problems);
#ifdef LADDER_HAS_CUDA
  register_cuda_ladder<QuantizedMatmulArgs>("quantize_rows", kRounding, roundings());
  register_cuda_ladder<CodesMatmulArgs>("product_of_codes", kOfCodes, of_codes);
#endif
  return true;
}();

}  // namespace
}  // namespace ladder::bench
