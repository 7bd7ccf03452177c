// The rung for many rows of rounded activations on a GPU: codes of 8 bits on both sides, multiplied by tensor cores that take
// them as they are, twice as many a clock as of 16 bits.
//
//   FP8    cuBLASLt applies both sides' scales to its sums and rounds them to out. With a bias the sums come out in f32.
//   INT8   sums of 32 bits, exact in any order; scales and bias in a kernel of our own. So much memory for sums would be
//          written and read again that the rows come in pieces, whose sums stay in the L2 cache.
//
// The vendor's heuristic names a kernel for a class of row counts, once, as for matmul's rung (matmul_cublaslt_cuda.cpp), and
// the first call of a class must come before a graph is captured.
#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "step1_layers/core/device_cuda.h"
#include "step1_layers/core/packed.h"
#include "step1_layers/linear/matmul.h"
#include "step8_advanced/quantization/kernels/eight_bit_codes.h"
#include "step8_advanced/quantization/kernels/eight_bit_rows_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"

namespace ladder {

namespace {

// Of sums at a time: half of an H200's L2 cache, in whole tiles of the library's kernels.
constexpr int64_t kSumsInCache = int64_t{1} << 23;
constexpr int64_t kTileRows = 256;

void check_cublas(cublasStatus_t status, const char* call) {
  LADDER_CHECK(status == CUBLAS_STATUS_SUCCESS, "{} failed: {}", call, cublasLtGetStatusString(status));
}
#define LADDER_CUBLAS_CHECK(call) check_cublas((call), #call)

// out [rows, n] = x [rows, k] * weight [n, k]^T, of codes; times their scales where there are some.
struct CodesProduct {
  bool is_float = false;
  Tensor x, weight;                          // u8 or i8: bits of codes
  Tensor x_scales = {}, weight_scales = {};  // f32 [rows], [n]; undefined: sums of codes
  Tensor out = {};                           // i32 of integers

  cudaDataType_t out_type() const {
    switch (out.dtype()) {
      case DType::i32:
        return CUDA_R_32I;
      case DType::f32:
        return CUDA_R_32F;
      case DType::f16:
        return CUDA_R_16F;
      default:
        return CUDA_R_16BF;
    }
  }
};

// What the library is told about a product. It sees row-major matrices as transposed column-major ones: out^T [n, m] =
// weight [n, k] * x^T [k, m].
struct Description {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight, x, out;

  Description(const CodesProduct& product, int64_t rows) {
    LADDER_CUBLAS_CHECK(product.is_float
                            ? cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F)
                            : cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32I, CUDA_R_32I));
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (product.x_scales.defined()) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F});
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F});
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.weight_scales.raw());
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.x_scales.raw());
    }
    const cudaDataType_t codes = product.is_float ? CUDA_R_8F_E4M3 : CUDA_R_8I;
    layout(weight, codes, product.weight, product.weight.dim(0));
    layout(x, codes, product.x, rows);
    layout(out, product.out_type(), product.out, rows);
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    LADDER_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof(value)));
  }
  static void layout(cublasLtMatrixLayoutOpaque_t& matrix, cudaDataType_t type, const Tensor& tensor,
                     int64_t rows) {
    // The stride of a single row is free; the library wants one of at least its length.
    LADDER_CUBLAS_CHECK(cublasLtMatrixLayoutInit(&matrix, type, static_cast<uint64_t>(tensor.dim(1)),
                                                 static_cast<uint64_t>(rows),
                                                 std::max(tensor.stride(0), tensor.dim(1))));
  }
};

cublasLtMatmulAlgo_t asked_for(const OpContext& ctx, const CodesProduct& product) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  LADDER_CUDA_CHECK(cudaStreamIsCapturing(stream_of(ctx), &capturing));
  LADDER_CHECK(capturing == cudaStreamCaptureStatusNone,
               "{} times {} meets cuBLASLt for the first time while a graph is captured; run it once before",
               product.x.str(), product.weight.str());
  Description description(product, last_of_row_class(product.x.dim(0)));
  cublasLtMatmulPreferenceOpaque_t preference;
  LADDER_CUBLAS_CHECK(cublasLtMatmulPreferenceInit(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    LADDER_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{CudaContext::kWorkspaceBytes});
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, uint32_t{kCodesAlignment});
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      static_cast<cublasLtHandle_t>(ctx.cuda->cublaslt()), &description.operation, &description.weight,
      &description.x, &description.out, &description.out, &preference, 1, &result, &found);
  LADDER_CHECK(status == CUBLAS_STATUS_SUCCESS && found > 0, "cuBLASLt has no kernel for {} times {} to {}",
               product.x.str(), product.weight.str(), product.out.str());
  return result.algo;
}

// The library's answers, for the life of the process: an answer is a number of parameters that belong to no handle.
cublasLtMatmulAlgo_t algorithm_for(const OpContext& ctx, const CodesProduct& product) {
  using Key = std::tuple<int, int64_t, int64_t, int64_t, int64_t, bool, DType, bool>;
  static std::mutex mutex;
  static std::map<Key, cublasLtMatmulAlgo_t> answers;
  const Key key{ctx.device.index,      last_of_row_class(product.x.dim(0)),
                product.weight.dim(0), product.x.dim(1),
                product.out.stride(0), product.is_float,
                product.out.dtype(),   product.x_scales.defined()};
  const std::lock_guard lock(mutex);
  const auto known = answers.find(key);
  if (known != answers.end()) return known->second;
  return answers.emplace(key, asked_for(ctx, product)).first->second;
}

void multiply(const OpContext& ctx, const CodesProduct& product) {
  const cublasLtMatmulAlgo_t algorithm = algorithm_for(ctx, product);
  Description description(product, product.x.dim(0));
  const float one = 1.0f, zero = 0.0f;
  const int32_t integer_one = 1, integer_zero = 0;
  const void* alpha = product.is_float ? static_cast<const void*>(&one) : &integer_one;
  const void* beta = product.is_float ? static_cast<const void*>(&zero) : &integer_zero;
  LADDER_CUBLAS_CHECK(cublasLtMatmul(static_cast<cublasLtHandle_t>(ctx.cuda->cublaslt()),
                                     &description.operation, alpha, product.weight.raw(), &description.weight,
                                     product.x.raw(), &description.x, beta, product.out.raw(),
                                     &description.out, product.out.raw(), &description.out, &algorithm,
                                     ctx.cuda->workspace(), CudaContext::kWorkspaceBytes, stream_of(ctx)));
}

bool library_scales(const QuantizedMatmulArgs& args) {
  return args.activations->is_float && !args.bias.defined();
}

int64_t rows_of_sums(const QuantizedMatmulArgs& args) {
  return std::min(std::max<int64_t>(kSumsInCache / args.weight->n / kTileRows, 1) * kTileRows, args.x.dim(0));
}

}  // namespace

bool quantized_matmul_takes_cublaslt_8bit(const QuantizedMatmulArgs& args) {
  return takes_eight_bit_codes(*args.weight, args.activations, args.x) &&
         args.weight->n % kCodesAlignment == 0 && is_packed(args.out) &&
         reinterpret_cast<uintptr_t>(args.weight->scales.raw()) % kCodesAlignment == 0;
}

int64_t quantized_matmul_cublaslt_8bit_workspace(const QuantizedMatmulArgs& args) {
  const int64_t m = args.x.dim(0);
  return m * args.weight->k + 4 * m + (library_scales(args) ? 0 : 4 * rows_of_sums(args) * args.weight->n);
}

void quantized_matmul_cublaslt_8bit(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  const int64_t m = args.x.dim(0);
  std::optional<Arena> own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own.emplace(ctx.device);
  ArenaScope scope(arena);
  const auto [codes, scales] = quantized_rows(ctx, arena, args.x, *args.activations, args.input_scale);
  CodesProduct product{.is_float = args.activations->is_float, .x = codes, .weight = weight.codes};
  if (library_scales(args)) {
    product.x_scales = scales;
    product.weight_scales = weight.scales;
    product.out = args.out;
    return multiply(ctx, product);
  }
  const int64_t piece = rows_of_sums(args);
  const Tensor sums = arena.take({piece, weight.n}, product.is_float ? DType::f32 : DType::i32);
  for (int64_t first = 0; first < m; first += piece) {
    const int64_t rows = std::min(piece, m - first);
    product.x = codes.narrow(0, first, rows);
    product.out = sums.rows(rows);
    multiply(ctx, product);
    scale_sums_cuda(ctx, product.out, scales.narrow(0, first, rows), weight.scales, args.bias,
                    args.out.narrow(0, first, rows));
  }
}

}  // namespace ladder
