#include "step1_layers/core/device_graph.h"

#include <utility>

#include "step1_layers/core/error.h"

#ifdef LADDER_HAS_CUDA
#include "step1_layers/core/device_cuda.h"
#endif

namespace ladder {

DeviceEvent& DeviceEvent::operator=(DeviceEvent&& other) noexcept {
  std::swap(event_, other.event_);
  std::swap(gpu_, other.gpu_);
  std::swap(fake_, other.fake_);
  std::swap(fake_event_, other.fake_event_);
  return *this;
}

DeviceGraph& DeviceGraph::operator=(DeviceGraph&& other) noexcept {
  std::swap(graph_, other.graph_);
  std::swap(launches_, other.launches_);
  return *this;
}

void DeviceEvent::record(const OpContext& ctx) {
  gpu_ = ctx.device.index;
  if (ctx.device.type == DeviceType::cuda) return record_cuda(ctx.stream);
  if (ctx.device.is_cpu()) return;
  fake_ = &fake_stream(ctx);
  fake_event_ = fake_->record();
}

void DeviceEvent::wait() const {
  if (event_) {
    use_gpu();
    wait_cuda();
  }
  if (fake_) fake_->wait(fake_event_);
}

double DeviceEvent::seconds_since(const DeviceEvent& earlier) const {
  return event_ && earlier.event_ ? seconds_since_cuda(earlier) : 0.0;
}

void DeviceGraph::capture(const OpContext& ctx, const std::function<void()>& work) {
  if (ctx.device.type != DeviceType::fake) return capture_cuda(ctx.stream, work);
  launches_ = fake_stream(ctx).capture(work);
}

void DeviceGraph::replay(const OpContext& ctx) const {
  LADDER_CHECK(graph_ != nullptr || !launches_.empty(), "a graph that was never captured is replayed");
  if (graph_ != nullptr) return replay_cuda(ctx.stream);
  fake_stream(ctx).replay(launches_);
}

#ifdef LADDER_HAS_CUDA

DeviceEvent::~DeviceEvent() {
  if (event_) cudaEventDestroy(static_cast<cudaEvent_t>(event_));
}

// Whoever waits may do nothing else with GPUs: CUDA would set up GPU 0 for such a thread, and take that GPU's memory.
void DeviceEvent::use_gpu() const {
  LADDER_CUDA_CHECK(cudaSetDevice(gpu_));
}

DeviceGraph::~DeviceGraph() {
  if (graph_) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
}

// >>> task 4.6.cuda: events of a stream, and graphs of what was launched on it
void DeviceEvent::record_cuda(void* stream) {
  if (!event_) {
    cudaEvent_t event = nullptr;
    LADDER_CUDA_CHECK(cudaEventCreate(&event));
    event_ = event;
  }
  LADDER_CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(event_), static_cast<cudaStream_t>(stream)));
}

void DeviceEvent::wait_cuda() const {
  LADDER_CUDA_CHECK(cudaEventSynchronize(static_cast<cudaEvent_t>(event_)));
}

double DeviceEvent::seconds_since_cuda(const DeviceEvent& earlier) const {
  float milliseconds = 0.0f;
  LADDER_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(earlier.event_),
                                         static_cast<cudaEvent_t>(event_)));
  return milliseconds * 1e-3;
}

void DeviceGraph::capture_cuda(void* stream, const std::function<void()>& work) {
  const auto on = static_cast<cudaStream_t>(stream);
  LADDER_CUDA_CHECK(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t recorded = nullptr;
  try {
    work();
  } catch (...) {  // the stream must leave the capture, or nothing works on it any more
    if (cudaStreamEndCapture(on, &recorded) == cudaSuccess) cudaGraphDestroy(recorded);
    cudaGetLastError();
    throw;
  }
  LADDER_CUDA_CHECK(cudaStreamEndCapture(on, &recorded));
  cudaGraphExec_t graph = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&graph, recorded, 0);
  cudaGraphDestroy(recorded);
  LADDER_CUDA_CHECK(status);
  if (graph_) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
  graph_ = graph;
  // It goes to the GPU with its first replay. With cudaGraphUpload() here, and more graphs captured afterwards,
  // replays were seen to lose the overlap of dependent kernels: 256 rows of Qwen3-0.6B's shape took 2.35 ms
  // instead of 2.25 on an H200.
}

void DeviceGraph::replay_cuda(void* stream) const {
  LADDER_CUDA_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), static_cast<cudaStream_t>(stream)));
}
// <<< task 4.6.cuda

#else

DeviceEvent::~DeviceEvent() = default;
void DeviceEvent::record_cuda(void*) {}
void DeviceEvent::wait_cuda() const {}
void DeviceEvent::use_gpu() const {}
double DeviceEvent::seconds_since_cuda(const DeviceEvent&) const {
  return 0.0;
}

DeviceGraph::~DeviceGraph() = default;
void DeviceGraph::capture_cuda(void*, const std::function<void()>&) {
  fail("this build of ladder has no CUDA");
}
void DeviceGraph::replay_cuda(void*) const {}

#endif

}  // namespace ladder
