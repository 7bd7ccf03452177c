#pragma once
// Between the caches of an engine's ranks, wherever they lie, and the packed bytes of a message, wherever these lie.
//
//   caches on      body on        way
//   the host       the host       rows
//   a GPU          that GPU       one kernel, and one for the checksums
//   a GPU          the host       one kernel, into or out of a buffer on the GPU, and one copy (the body is pinned memory)
//
// One thread's at a time. On each GPU that an engine has ranks on it has a stream of its own, which goes before the engine's where
// both want multiprocessors, and buffers that grow to what a message has. Everything is done when a call returns: the work on the
// stream has ended. Each call waits for the GPU once: where somebody else's kernels take turns with these (an engine whose ranks are
// processes copies beside them), a turn is a hundred times as long as the kernel.
//
// What stores into the caches must have ended before. It has: tokens are told as computed (KvConnector::on_computed) when the
// step's output was collected, which waits for the event behind the step's last kernel (LaunchedStep::tokens); a step stores
// keys and values before it draws. Layer by layer an event behind each layer was waited for (step4_runner/kv_layer_events_cuda.h). In the other direction a load is over when the kernel that filled the blocks has ended, and the
// step that reads them is launched after that.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "step8_advanced/disaggregation/layout/kv_layout.h"
#include "step8_advanced/disaggregation/transport/kv_body.h"

namespace ladder {

class KvCopier {
 public:
  KvCopier();
  ~KvCopier();
  KvCopier(const KvCopier&) = delete;

  // As pack_kv() and unpack_kv(): of `num_layers` layers from the part's on. Error: also a body on another GPU than the caches.
  // Returns kv_checksum() of each layer's part.
  std::vector<uint32_t> pack(const KvLayout& layout, const RankKvCaches& caches,
                             std::span<const int32_t> block_table, const KvPart& part, int64_t num_layers,
                             const KvBody& body);
  // False, and no block is touched: a part has another checksum than the one of `checksums`.
  bool unpack(const KvLayout& layout, const RankKvCaches& caches, std::span<const int32_t> block_table,
              const KvPart& part, int64_t num_layers, const KvBody& body, DType packed_dtype,
              std::span<const uint32_t> checksums);
  // kv_checksum() of each of `count` parts of equal size, one behind the other.
  std::vector<uint32_t> checksums(const KvBody& body, int64_t count);

 private:
  class OnGpu;
  OnGpu& on_gpu(Device device);

  std::vector<std::unique_ptr<OnGpu>> gpus_;  // those that were needed
};

// Where a rank's keys and values lie.
Device device_of(const RankKvCaches& caches);

}  // namespace ladder
