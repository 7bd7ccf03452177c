#include "bench/support/bench_cuda.h"

#ifdef LADDER_HAS_CUDA
#include <map>

#include "bench/support/copy_cuda.h"
#include "step1_layers/core/device_cuda.h"
#endif
#include "step1_layers/core/error.h"

namespace ladder::bench {

#ifdef LADDER_HAS_CUDA

namespace {

double last_seconds = 0;

struct Graph {
  cudaGraphExec_t executable = nullptr;
  cudaEvent_t start = nullptr, stop = nullptr;
  int calls;

  Graph(int calls, const std::function<void(int)>& call) : calls(calls) {
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

double median(std::vector<double>& times) {
  const auto middle = times.begin() + static_cast<int64_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// How often to go over the operands in one graph, so that its start, 2 us, is not what a call is charged
// with: a replay takes a millisecond, where one turn of so many seconds does not.
int turns_of(double seconds) {
  return static_cast<int>(std::ceil(std::clamp(1e-3 / seconds, 1.0, 100.0)));
}

// Calls of call(0), ..., call(calls - 1), and over again.
Graph graph_of(int calls, const std::function<void(int)>& call) {
  const int turns = turns_of(Graph(calls, call).replay());
  return Graph(calls * turns, [&](int i) { call(i % calls); });
}

double median_seconds(int calls, const std::function<void(int)>& call) {
  const Graph graph = graph_of(calls, call);
  std::vector<double> times;
  for (int i = 0; i < 11; ++i) times.push_back(graph.replay() / graph.calls);
  return median(times);
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

namespace {

// Seconds of call(0), ..., call(calls - 1) one after the other, launched plainly: the median of several
// turns. (As nodes of a graph the driver's own copies took half as long again.)
double plain_seconds(int calls, const std::function<void(int)>& call) {
  const cudaStream_t stream = stream_of(*cuda_bench_context());
  cudaEvent_t start = nullptr, stop = nullptr;
  LADDER_CUDA_CHECK(cudaEventCreate(&start));
  LADDER_CUDA_CHECK(cudaEventCreate(&stop));
  std::vector<double> times;
  for (int turn = 0; turn < 11; ++turn) {
    LADDER_CUDA_CHECK(cudaEventRecord(start, stream));
    for (int i = 0; i < calls; ++i) call(i);
    LADDER_CUDA_CHECK(cudaEventRecord(stop, stream));
    LADDER_CUDA_CHECK(cudaEventSynchronize(stop));
    float milliseconds = 0;
    LADDER_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    times.push_back(milliseconds * 1e-3 / calls);
  }
  LADDER_CUDA_CHECK(cudaEventDestroy(start));
  LADDER_CUDA_CHECK(cudaEventDestroy(stop));
  return median(times);
}

// A tensor of random bytes on the GPU.
Tensor random_bytes(int64_t bytes) {
  static const Tensor some = random_tensor({int64_t{4} << 20}, DType::f32).to(cuda_bench_context()->device);
  const Tensor result = Tensor::empty({bytes}, DType::u8, cuda_bench_context()->device);
  const Tensor source = Tensor::wrap(some.raw(), {some.nbytes()}, DType::u8, some.device());
  for (int64_t at = 0; at < bytes; at += some.nbytes()) {
    const int64_t count = std::min(some.nbytes(), bytes - at);
    result.narrow(0, at, count).copy_from(source.narrow(0, 0, count), cuda_bench_context()->stream);
  }
  return result;
}

}  // namespace

int rotating_sets(double bytes) {
  const auto l2 = static_cast<double>(cuda_device_info(0).l2_bytes);
  return static_cast<int>(std::clamp(1 + 2 * l2 / std::max(bytes, 1.0), 2.0, 200.0));
}

double cuda_copy_bandwidth(double bytes) {
  static std::map<int64_t, double> measured;
  constexpr int64_t kPack = 16;
  const int64_t half = std::max(kPack, static_cast<int64_t>(bytes / 2) / kPack * kPack);
  if (const auto found = measured.find(half); found != measured.end()) return found->second;
  const OpContext& ctx = *cuda_bench_context();
  std::vector<std::pair<Tensor, Tensor>> sets;
  // A copy far larger than the L2 cache leaves nothing of itself there, and two would not fit a small GPU.
  const bool large =
      2.0 * static_cast<double>(half) > 16.0 * static_cast<double>(cuda_device_info(0).l2_bytes);
  for (int i = 0; i < (large ? 1 : rotating_sets(2.0 * static_cast<double>(half))); ++i)
    sets.emplace_back(random_bytes(half), Tensor::empty({half}, DType::u8, ctx.device));
  const int calls = static_cast<int>(sets.size());
  const auto set = [&](int i) -> const auto& {
    return sets[static_cast<size_t>(i)];
  };
  const double by_kernel = median_seconds(
      calls, [&](int i) { copy_by_kernel(ctx, set(i).first.raw(), set(i).second.raw(), half); });
  const double by_driver = plain_seconds(calls * turns_of(by_kernel * calls), [&](int i) {
    set(i % calls).second.copy_from(set(i % calls).first, ctx.stream);
  });
  return measured[half] = 2.0 * static_cast<double>(half) / std::min(by_kernel, by_driver);
}

double cuda_copy_bandwidth() {
  constexpr double kLarge = 8.0 * (int64_t{1} << 30);
  return cuda_copy_bandwidth(kLarge);
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

void time_cuda_graph(benchmark::State& state, int calls, const std::function<void(int)>& call,
                     const std::function<void(int)>& prepare) {
  const auto seconds_of_call = [&] {
    const auto start = std::chrono::steady_clock::now();
    call(0);
    device_synchronize(cuda_bench_context()->device, cuda_bench_context()->stream);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  // The first call may load a library; a second one shows it, where that is not far too slow anyway.
  const double first = seconds_of_call();
  if (first > 0.1 && (first > 0.8 || seconds_of_call() > 0.1)) {
    state.SkipWithError("more than 100 ms a call");
    return;
  }
  const Graph graph = graph_of(calls, [&](int i) {
    if (prepare) prepare(i);
    call(i);
  });
  const double preparation = prepare ? median_seconds(calls, prepare) : 0;
  for (auto _ : state) {
    std::vector<double> times{graph.replay() / graph.calls};
    const double replays = std::clamp(0.1 / (times[0] * graph.calls), 3.0, 15.0);
    while (static_cast<double>(times.size()) < replays) times.push_back(graph.replay() / graph.calls);
    last_seconds = median(times) - preparation;
    state.SetIterationTime(last_seconds);
  }
  state.counters["median_us"] = last_seconds * 1e6;
}

void set_cuda_counters(benchmark::State& state, double bytes, double flops, double operations) {
  if (bytes > 0) {
    const double rate = bytes / last_seconds;
    state.counters["bytes_per_second"] = rate;
    state.counters["copy_bandwidth"] = cuda_copy_bandwidth(bytes);
    state.counters["of_copy_bandwidth"] = rate / cuda_copy_bandwidth(bytes);
    state.counters["of_large_copy"] = rate / cuda_copy_bandwidth();
  }
  if (flops > 0) {
    state.counters["flops"] = flops / last_seconds;
    state.counters["of_matmul_rate"] = flops / last_seconds / cuda_matmul_rate();
  }
  if (operations > 0) state.counters["operations"] = operations / last_seconds;
}

#else

const OpContext* cuda_bench_context() {
  return nullptr;
}
int rotating_sets(double) {
  return 1;
}
double cuda_copy_bandwidth(double) {
  return 0;
}
double cuda_copy_bandwidth() {
  return 0;
}
double cuda_matmul_rate() {
  return 0;
}
void time_cuda_graph(benchmark::State&, int, const std::function<void(int)>&,
                     const std::function<void(int)>&) {}
void set_cuda_counters(benchmark::State&, double, double, double) {}

#endif

}  // namespace ladder::bench
