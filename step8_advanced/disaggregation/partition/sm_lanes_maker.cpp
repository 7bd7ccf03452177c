#include "step8_advanced/disaggregation/partition/sm_lanes_maker.h"

#include "step1_layers/core/error.h"

#ifdef LADDER_HAS_CUDA
#include "step1_layers/core/sm_partition_cuda.h"
#endif

namespace ladder {

namespace {

// Streams of the whole device.
class PlainContexts final : public LaneContexts {
 public:
  explicit PlainContexts(SharedGpu gpu) : gpu_(std::move(gpu)) {}
  std::vector<OpContext> make(StepPhase phase) override {
    return {phase == StepPhase::decode ? gpu_.decode.whole : gpu_.prefill.whole};
  }

 private:
  SharedGpu gpu_;
};

}  // namespace

std::unique_ptr<LaneContexts> make_plain_lane_contexts(Device device) {
  return std::make_unique<PlainContexts>(device.is_cpu() ? SharedGpu{} : whole_gpu(device));
}

std::vector<int> decode_shares(int num_multiprocessors) {
  const int multiple = num_multiprocessors >= 128 ? 16 : 8;
  std::vector<int> shares;
  for (const int eighths : {1, 2, 3, 4}) {
    const int sms = num_multiprocessors * eighths / 8 / multiple * multiple;
    if (sms > (shares.empty() ? 0 : shares.back())) shares.push_back(sms);
  }
  return shares;
}

#ifdef LADDER_HAS_CUDA

namespace {

// The blocks of answers go first where they share out the GPU. On plain streams they would leave a prompt next to nothing: beside
// steps of 8 answers one behind the other 2,048 tokens take a second on an H200, in place of 0.08.
SharedGpu make_gpu(Device device, bool shared, std::vector<int> decode_sms) {
  struct Contexts {
    std::shared_ptr<CudaContext> prefill, decode;
    std::vector<SmSplit> splits;
  };
  const auto contexts = std::make_shared<Contexts>();
  contexts->prefill = std::make_shared<CudaContext>(device.index);
  contexts->decode = std::make_shared<CudaContext>(device.index);
  if (shared) contexts->decode = with_priority(*contexts->decode);
  if (decode_sms.empty()) decode_sms = decode_shares(contexts->prefill->num_multiprocessors());
  if (shared) contexts->splits = split_multiprocessors(*contexts->decode, *contexts->prefill, decode_sms);
  SharedGpu gpu;
  gpu.num_multiprocessors = contexts->prefill->num_multiprocessors();
  gpu.prefill.whole = contexts->prefill->op_context();
  gpu.decode.whole = contexts->decode->op_context();
  for (const SmSplit& split : contexts->splits) {
    gpu.places.push_back({split.first->num_multiprocessors(), split.second->num_multiprocessors()});
    gpu.decode.at_place.push_back(split.first->op_context());
    gpu.prefill.at_place.push_back(split.second->op_context());
  }
  gpu.owner = contexts;
  return gpu;
}

}  // namespace

SharedGpu share_gpu(Device device, const std::vector<int>& decode_sms) {
  return make_gpu(device, true, decode_sms);
}
SharedGpu whole_gpu(Device device) {
  return make_gpu(device, false, {});
}

#else

SharedGpu share_gpu(Device device, const std::vector<int>& /*decode_sms*/) {
  fail("multiprocessors of {} cannot be shared out: this build of ladder has no CUDA", device_name(device));
}
SharedGpu whole_gpu(Device device) {
  fail("this build of ladder has no {}", device_name(device));
}

#endif

}  // namespace ladder
