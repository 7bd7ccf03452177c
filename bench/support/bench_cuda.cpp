#include "bench/support/bench_cuda.h"

#ifdef LADDER_CUDA
#include "step1_layers/core/device_cuda.h"
#endif
#include "step1_layers/core/error.h"

namespace ladder::bench {

#ifdef LADDER_CUDA

namespace {

double last_seconds = 0;

struct Graph {
  cudaGraphExec_t executable = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;

  explicit Graph(int calls, const std::function<void(int)>& call) {
    const cudaStream_t stream = stream_of(*cuda_bench_context());
    for (int i = 0; i < calls; ++i) call(i);  // loads modules, grows scratch, finds the library's plans
    LADDER_CUDA_CHECK(cudaStreamSynchronize(stream));
    cudaGraph_t graph = nullptr;
    LADDER_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) call(i);
    LADDER_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    LADDER_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    LADDER_CUDA_CHECK(cudaGraphDestroy(graph));
    LADDER_CUDA_CHECK(cudaEventCreate(&start));
    LADDER_CUDA_CHECK(cudaEventCreate(&stop));
    replay();
  }
  ~Graph() {
    cudaGraphExecDestroy(executable);
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  double replay() const {  // seconds
    const cudaStream_t stream = stream_of(*cuda_bench_context());
    LADDER_CUDA_CHECK(cudaEventRecord(start, stream));
    LADDER_CUDA_CHECK(cudaGraphLaunch(executable, stream));
    LADDER_CUDA_CHECK(cudaEventRecord(stop, stream));
    LADDER_CUDA_CHECK(cudaEventSynchronize(stop));
    float milliseconds = 0;
    LADDER_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    return milliseconds * 1e-3;
  }
};

double median_seconds(int calls, const std::function<void(int)>& call) {
  const Graph graph(calls, call);
  std::vector<double> times;
  for (int i = 0; i < 11; ++i) times.push_back(graph.replay() / calls);
  std::nth_element(times.begin(), times.begin() + 5, times.end());
  return times[5];
}

}  // namespace

const OpContext* cuda_bench_context() {
  struct Gpu {
    CudaContext cuda{0};
    Arena arena{{DeviceType::cuda, 0}};
    OpContext ctx = cuda.op_context();
  };
  static Gpu* gpu = [] {
    if (cuda_device_count() == 0) return static_cast<Gpu*>(nullptr);
    auto* made = new Gpu;
    made->ctx.arena = &made->arena;
    return made;
  }();
  return gpu ? &gpu->ctx : nullptr;
}

double cuda_copy_bandwidth() {
  static const double measured = [] {
    constexpr int64_t kBytes = int64_t{4} << 30;
    const OpContext& ctx = *cuda_bench_context();
    const Tensor from = Tensor::zeros({kBytes}, DType::u8, ctx.device);
    const Tensor to = Tensor::zeros({kBytes}, DType::u8, ctx.device);
    // Launched plainly: as a node of a graph the same copy took half as long again.
    cudaEvent_t start = nullptr, stop = nullptr;
    LADDER_CUDA_CHECK(cudaEventCreate(&start));
    LADDER_CUDA_CHECK(cudaEventCreate(&stop));
    std::vector<float> times;
    for (int i = 0; i < 11; ++i) {
      LADDER_CUDA_CHECK(cudaEventRecord(start, stream_of(ctx)));
      to.copy_from(from, ctx.stream);
      LADDER_CUDA_CHECK(cudaEventRecord(stop, stream_of(ctx)));
      LADDER_CUDA_CHECK(cudaEventSynchronize(stop));
      LADDER_CUDA_CHECK(cudaEventElapsedTime(&times.emplace_back(), start, stop));
    }
    LADDER_CUDA_CHECK(cudaEventDestroy(start));
    LADDER_CUDA_CHECK(cudaEventDestroy(stop));
    std::nth_element(times.begin(), times.begin() + 5, times.end());
    return 2.0 * kBytes / (times[5] * 1e-3);
  }();
  return measured;
}

double cuda_matmul_rate() {
  static const double measured = [] {
    constexpr int64_t kSize = 8192;
    const OpContext& ctx = *cuda_bench_context();
    const Tensor x = random_tensor({kSize, kSize}, DType::bf16).to(ctx.device);
    const MatmulArgs args{x, random_tensor({kSize, kSize}, DType::bf16, 2).to(ctx.device), Tensor(),
                          Tensor::empty({kSize, kSize}, DType::bf16, ctx.device)};
    for (const auto& variant : matmul_variants())
      if (variant.name == "cublaslt")
        return 2.0 * kSize * kSize * kSize / median_seconds(1, [&](int) { variant.run(ctx, args); });
    return 0.0;
  }();
  return measured;
}

void time_cuda_graph(benchmark::State& state, int calls, const std::function<void(int)>& call) {
  const auto first = std::chrono::steady_clock::now();
  call(0);
  device_synchronize(cuda_bench_context()->device, cuda_bench_context()->stream);
  if (std::chrono::steady_clock::now() - first > std::chrono::milliseconds(100)) {
    state.SkipWithError("more than 100 ms a call");
    return;
  }
  const Graph graph(calls, call);
  std::vector<double> times;
  for (auto _ : state) {
    const double seconds = graph.replay() / calls;
    times.push_back(seconds);
    state.SetIterationTime(seconds);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
  last_seconds = times[times.size() / 2];
  state.counters["median_us"] = last_seconds * 1e6;
}

void set_cuda_counters(benchmark::State& state, double bytes, double flops) {
  if (bytes > 0) {
    state.counters["bytes_per_second"] = bytes / last_seconds;
    state.counters["copy_bandwidth"] = cuda_copy_bandwidth();
    state.counters["of_copy_bandwidth"] = bytes / last_seconds / cuda_copy_bandwidth();
  }
  if (flops > 0) {
    state.counters["flops"] = flops / last_seconds;
    state.counters["of_matmul_rate"] = flops / last_seconds / cuda_matmul_rate();
  }
}

#else

const OpContext* cuda_bench_context() {
  return nullptr;
}
double cuda_copy_bandwidth() {
  return 0;
}
double cuda_matmul_rate() {
  return 0;
}
void time_cuda_graph(benchmark::State&, int, const std::function<void(int)>&) {}
void set_cuda_counters(benchmark::State&, double, double) {}

#endif

}  // namespace ladder::bench
