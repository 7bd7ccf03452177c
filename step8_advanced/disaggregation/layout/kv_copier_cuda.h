#pragma once
// What a KvCopier has on a GPU. Internal to this folder.
#include "step1_layers/core/device_cuda.h"
#include "step8_advanced/disaggregation/layout/kv_copier.h"
#include "step8_advanced/disaggregation/layout/kv_move.h"

namespace ladder {

class KvCopier::OnGpu {
 public:
  explicit OnGpu(Device device);
  ~OnGpu();
  OnGpu(const OnGpu&) = delete;

  Device device() const { return context_.device; }
  // Between the caches and the body that the arguments name, which is on this GPU or the host's.
  void move(KvMoveArgs args, const KvBody& body);
  std::vector<uint32_t> checksums(const KvBody& body, int64_t count);

 private:
  // Memory that is made anew where it is too small.
  struct Buffer {
    std::shared_ptr<void> memory;
    size_t size = 0;
  };
  std::byte* room_on_gpu(Buffer& buffer, size_t size) const;
  static std::byte* room_on_host(Buffer& buffer, size_t size);
  cudaStream_t stream() const { return stream_of(context_); }
  void wait() const;

  OpContext context_;
  Buffer tables_, tables_on_host_;  // of the move under way
  Buffer body_;                     // of one that is the host's
  std::shared_ptr<void> checksum_tables_;
  Buffer remainders_, remainders_on_host_;
};

}  // namespace ladder
