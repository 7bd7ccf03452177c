// SideStream: events between two streams, none of which the host waits for.
#include "step1_layers/core/device_cuda.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/gpu/nccl_communicator.h"
#include "step7_parallel/context/beside.h"

namespace ladder {
namespace {

cudaEvent_t event_of(void* event) {
  return static_cast<cudaEvent_t>(event);
}

void* make_event() {
  cudaEvent_t event = nullptr;
  LADDER_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

}  // namespace

SideStream::SideStream(Device device) : device_(device) {
  LADDER_CHECK(device.type == DeviceType::cuda, "a second stream of {}: it has none", device_name(device));
  LADDER_CUDA_CHECK(cudaSetDevice(device.index));
  int least = 0, greatest = 0;
  LADDER_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  LADDER_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  stream_ = stream;
  for (void** event : {&ready_, &about_to_, &done_}) *event = make_event();
}

SideStream::~SideStream() {
  for (void* event : {ready_, about_to_, done_}) cudaEventDestroy(event_of(event));
  cudaStreamDestroy(static_cast<cudaStream_t>(stream_));  // when its work is done
}

// A kernel of attention takes every multiprocessor until it ends: communication that comes a microsecond later starts when
// attention is over, and nothing overlaps. So attention waits until the other stream has come to the place where
// communication is next.
void SideStream::begin(const OpContext& ctx, const std::function<void(const OpContext&)>& fn) {
  const auto side = static_cast<cudaStream_t>(stream_);
  LADDER_CUDA_CHECK(cudaEventRecord(event_of(ready_), stream_of(ctx)));
  LADDER_CUDA_CHECK(cudaStreamWaitEvent(side, event_of(ready_), 0));
  LADDER_CUDA_CHECK(cudaEventRecord(event_of(about_to_), side));
  OpContext beside = ctx;
  beside.stream = side;
  beside.arena = nullptr;
  in_one_nccl_launch([&] { fn(beside); });
  LADDER_CUDA_CHECK(cudaEventRecord(event_of(done_), side));
  LADDER_CUDA_CHECK(cudaStreamWaitEvent(stream_of(ctx), event_of(about_to_), 0));
}

void SideStream::join(const OpContext& ctx) {
  LADDER_CUDA_CHECK(cudaStreamWaitEvent(stream_of(ctx), event_of(done_), 0));
}

}  // namespace ladder
