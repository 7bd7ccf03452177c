// The vendor's matrix product, which our own are measured against.
//
// cublaslt: f32 (never TF32), bf16 or f16; with a bias only where out has x's type. The library's heuristic
// names a kernel for a shape; asking it takes longer than many products, so its answer is kept in the context
// and serves a class of row counts (matmul.h). The first call of a class, which also loads the kernel, must
// come before a graph is captured. (Timing eight of its answers instead of taking the first won 0 to 7 % for
// the layers of Qwen3-0.6B and 8B at 16 to 256 rows on an H200, and 3 to 10 % for their LM heads: not enough
// to be worth a search.) Different numbers of rows get different kernels, which sum in different orders: not
// batch invariant.
//
// On some of the multiprocessors (a green context, 8.7.border) it is worth one. The library asks the GPU how many there are,
// not the stream. Told of a share (SM_COUNT_TARGET), it answers many rows with small tiles: four products of Llama-3.1-8B's layer
// with 4,096 rows take 4.4 ms on 84 multiprocessors of an H200. Not told, its first answers take 3.3 ms, the fastest of eight 3.1.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <span>
#include <tuple>

#include "step1_layers/core/device_cuda.h"
#include "step1_layers/core/device_graph.h"
#include "step1_layers/core/error.h"
#include "step1_layers/linear/matmul_cuda.h"

namespace ladder {

namespace {

void check_cublas(cublasStatus_t status, const char* call) {
  LADDER_CHECK(status == CUBLAS_STATUS_SUCCESS, "{} failed: {}", call, cublasLtGetStatusString(status));
}
#define LADDER_CUBLAS_CHECK(call) check_cublas((call), #call)

cudaDataType_t cuda_type(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::f16 ? CUDA_R_16F : CUDA_R_16BF;
}

// The largest power of two up to 256 that divides the address.
uint32_t alignment(const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.raw()) | 256;
  return static_cast<uint32_t>(address & (~address + 1));
}

constexpr int64_t kFewRows = 256;  // up to which what it answers for a share is taken
constexpr int kMaxAnswers = 8;

// What the library needs to know about one class of shapes. It sees row-major matrices as transposed
// column-major ones: out^T [n, m] = weight [n, k] * x^T [k, m]. The kernel is the one for the largest number
// of rows of the class; any other number of rows takes it too.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  int64_t rows = 0;  // that x and out are described with

  explicit Plan(const OpContext& ctx, const MatmulArgs& args) {
    LADDER_CUBLAS_CHECK(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (args.bias.defined()) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias.raw());
    }
    rows = last_of_row_class(args.x.dim(0));
    const bool by_time = ctx.cuda->is_partition() && rows > kFewRows;
    if (ctx.cuda->is_partition() && !by_time)
      set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, int32_t{ctx.cuda->num_multiprocessors()});
    layout(weight, args.weight, args.weight.dim(0));
    layout(x, args.x, rows);
    layout(out, args.out, rows);

    cublasLtMatmulPreference_t preference = nullptr;
    LADDER_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      LADDER_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{CudaContext::kWorkspaceBytes});
    // Where k is split among blocks the library rounds their sum before it adds the bias, also with sums of parts in f32.
    if (args.bias.defined())
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(args.weight));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(args.x));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(args.out));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(args.out));
    std::array<cublasLtMatmulHeuristicResult_t, kMaxAnswers> answers{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        static_cast<cublasLtHandle_t>(ctx.cuda->cublaslt()), operation, weight, x, out, out, preference,
        by_time ? kMaxAnswers : 1, answers.data(), &found);
    cublasLtMatmulPreferenceDestroy(preference);
    LADDER_CHECK(status == CUBLAS_STATUS_SUCCESS && found > 0, "cuBLASLt has no kernel for {} times {} to {}",
                 args.x.str(), args.weight.str(), args.out.str());
    algorithm = answers[0].algo;
    if (by_time) choose_fastest(ctx, args, std::span(answers).first(static_cast<size_t>(found)));
  }
  ~Plan() {
    if (operation) cublasLtMatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t matrix : {weight, x, out})
      if (matrix) cublasLtMatrixLayoutDestroy(matrix);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    LADDER_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
  }
  // Each once, so that it is loaded, and three times by the clock. What it writes into args.out nobody has asked for. It waits for the
  // GPU: the warm-up meets the shapes that serving does. Which one is the fastest may differ from one start to the next, and with
  // it the last bits in 16 bits.
  void choose_fastest(const OpContext& ctx, const MatmulArgs& args,
                      std::span<const cublasLtMatmulHeuristicResult_t> answers) {
    set_rows(args.x.dim(0));
    double least = std::numeric_limits<double>::infinity();
    for (const cublasLtMatmulHeuristicResult_t& answer : answers) {
      if (answer.state != CUBLAS_STATUS_SUCCESS) continue;
      run(ctx, args, answer.algo);
      DeviceEvent begun, done;
      begun.record(ctx);
      for (int i = 0; i < 3; ++i) run(ctx, args, answer.algo);
      done.record(ctx);
      done.wait();
      const double seconds = done.seconds_since(begun);
      if (seconds >= least) continue;
      least = seconds;
      algorithm = answer.algo;
    }
  }

  // After set_rows().
  void run(const OpContext& ctx, const MatmulArgs& args, const cublasLtMatmulAlgo_t& with) const {
    const float one = 1.0f, zero = 0.0f;
    LADDER_CUBLAS_CHECK(cublasLtMatmul(static_cast<cublasLtHandle_t>(ctx.cuda->cublaslt()), operation, &one,
                                       args.weight.raw(), weight, args.x.raw(), x, &zero, args.out.raw(), out,
                                       args.out.raw(), out, &with, ctx.cuda->workspace(),
                                       CudaContext::kWorkspaceBytes, stream_of(ctx)));
  }

  static void layout(cublasLtMatrixLayout_t& matrix, const Tensor& tensor, int64_t rows) {
    // The stride of a single row is free; the library wants one of at least its length.
    const int64_t stride = std::max(tensor.stride(0), tensor.dim(1));
    LADDER_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&matrix, cuda_type(tensor.dtype()),
                                                   static_cast<uint64_t>(tensor.dim(1)),
                                                   static_cast<uint64_t>(rows), stride));
  }
  void set_rows(int64_t count) {
    if (rows == count) return;
    rows = count;
    for (cublasLtMatrixLayout_t matrix : {x, out})
      LADDER_CUBLAS_CHECK(
          cublasLtMatrixLayoutSetAttribute(matrix, CUBLASLT_MATRIX_LAYOUT_COLS, &rows, sizeof(rows)));
  }
};

struct Plans {
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, DType, DType, bool, uint32_t,
                         uint32_t, uint32_t>;
  std::map<Key, std::unique_ptr<Plan>> plans;
};

Plan& plan_for(const OpContext& ctx, const MatmulArgs& args) {
  std::shared_ptr<void>& kept = ctx.cuda->matmul_plans();
  if (!kept) kept = std::make_shared<Plans>();
  const Tensor &x = args.x, &weight = args.weight, &out = args.out;
  const Plans::Key key{last_of_row_class(x.dim(0)),
                       weight.dim(0),
                       x.dim(1),
                       x.stride(0),
                       weight.stride(0),
                       out.stride(0),
                       x.dtype(),
                       out.dtype(),
                       args.bias.defined(),
                       alignment(weight),
                       alignment(x),
                       alignment(out)};
  std::unique_ptr<Plan>& plan = static_cast<Plans*>(kept.get())->plans[key];
  if (!plan) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    LADDER_CUDA_CHECK(cudaStreamIsCapturing(stream_of(ctx), &capturing));
    LADDER_CHECK(
        capturing == cudaStreamCaptureStatusNone,
        "{} times {} meets cuBLASLt for the first time while a graph is captured; run it once before",
        args.x.str(), args.weight.str());
    plan = std::make_unique<Plan>(ctx, args);
  }
  return *plan;
}

}  // namespace

void matmul_cublaslt(const OpContext& ctx, const MatmulArgs& args) {
  Plan& plan = plan_for(ctx, args);
  plan.set_rows(args.x.dim(0));
  if (args.bias.defined()) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias.raw());
  plan.run(ctx, args, plan.algorithm);
}

bool matmul_takes_cublaslt(const MatmulArgs& args) {
  // Rows of 16-bit types that start at odd elements have no kernel in the library.
  auto even = [](const Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0 &&
           tensor.stride(0) * dtype_size(tensor.dtype()) % 16 == 0;
  };
  return args.x.dim(1) > 0 && even(args.x) && even(args.weight) && even(args.out) &&
         (!args.bias.defined() ||
          (args.out.dtype() == args.x.dtype() && reinterpret_cast<uintptr_t>(args.bias.raw()) % 16 == 0));
}

}  // namespace ladder
