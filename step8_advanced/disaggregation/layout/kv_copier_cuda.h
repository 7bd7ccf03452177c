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
  // Between the caches and the body that the arguments name, which is on this GPU or the host's, of `count` parts.
  std::vector<uint32_t> pack(KvMoveArgs args, const KvBody& body, int64_t count);
  bool unpack(KvMoveArgs args, const KvBody& body, std::span<const uint32_t> expected);
  std::vector<uint32_t> checksums(const KvBody& body, int64_t count);

 private:
  // Memory that is made anew where it is too small.
  struct Buffer {
    std::shared_ptr<void> memory;
    size_t size = 0;
  };
  std::byte* room_on_gpu(Buffer& buffer, size_t size) const;
  static std::byte* room_on_host(Buffer& buffer, size_t size);
  // The move's tables, and behind them these words, are on their way to the GPU. Returns where the words will be.
  const uint32_t* upload(KvMoveArgs& args, std::span<const uint32_t> words);
  // Of the body's parts, into remainders_ and on to the host; what they are when that has been waited for.
  void begin_checksums(const KvBody& body, int64_t count);
  std::vector<uint32_t> end_checksums(int64_t count) const;
  void expect_here(const KvBody& body) const;  // or in the host's memory
  cudaStream_t stream() const { return stream_of(context_); }
  void wait() const;

  OpContext context_;
  Buffer tables_, tables_on_host_;  // of the move under way
  Buffer body_;                     // of one that is the host's
  std::shared_ptr<void> checksum_tables_;
  Buffer remainders_, remainders_on_host_;
};

}  // namespace ladder
