#include "step7_parallel/communicators/gpu/nccl_pair.h"

#include <cstring>

#include "step1_layers/core/device_cuda.h"
#include "step1_layers/core/error.h"
#ifdef LADDER_HAS_NCCL
#include "step7_parallel/communicators/gpu/nccl_library.h"
#endif

namespace ladder {

#ifdef LADDER_HAS_NCCL

namespace {

class Pair final : public NcclPair {
 public:
  Pair(const NcclId& id, int rank, int device_index)
      : nccl_(nccl_library()), device_index_(device_index), other_(1 - rank) {
    ncclUniqueId unique;
    static_assert(sizeof unique == sizeof id);
    std::memcpy(&unique, id.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    LADDER_CUDA_CHECK(cudaSetDevice(device_index));
    check_nccl(nccl_.comm_init_rank_config(&comm_, 2, unique, rank, &config), "making a pair");
  }
  ~Pair() override {
    cudaSetDevice(device_index_);
    if (comm_ != nullptr) nccl_.comm_abort(comm_);
    cudaGetLastError();
  }

  bool is_ready() override {
    ncclResult_t status = ncclSuccess;
    check_nccl(nccl_.comm_get_async_error(comm_, &status), "the state of a pair");
    check_nccl(status, "what a pair has begun");
    return status == ncclSuccess;
  }
  void send(const void* from, size_t size, void* stream) override {
    check_nccl(nccl_.send(from, size, ncclUint8, other_, comm_, static_cast<cudaStream_t>(stream)), "send");
  }
  void recv(void* to, size_t size, void* stream) override {
    check_nccl(nccl_.recv(to, size, ncclUint8, other_, comm_, static_cast<cudaStream_t>(stream)), "recv");
  }

 private:
  const NcclLibrary& nccl_;
  const int device_index_, other_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<NcclPair> begin_nccl_pair(const NcclId& id, int rank, int device_index) {
  return std::make_unique<Pair>(id, rank, device_index);
}

#else

std::unique_ptr<NcclPair> begin_nccl_pair(const NcclId&, int, int) {
  fail("{}", nccl_obstacle());
}

#endif

}  // namespace ladder
