#include "step8_advanced/disaggregation/layout/kv_copier.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/layout/kv_checksum.h"

#ifdef LADDER_HAS_CUDA
#include "step8_advanced/disaggregation/layout/kv_copier_cuda.h"
#endif

namespace ladder {

#ifndef LADDER_HAS_CUDA
class KvCopier::OnGpu {};
#endif

KvCopier::KvCopier() = default;
KvCopier::~KvCopier() = default;

Device device_of(const RankKvCaches& caches) {
  LADDER_CHECK(!caches.caches.empty(), "a rank without caches");
  return caches.caches.front().k.device();
}

std::vector<uint32_t> KvCopier::pack(const KvLayout& layout, const RankKvCaches& caches,
                                     std::span<const int32_t> block_table, const KvPart& part,
                                     int64_t num_layers, const KvBody& body) {
#ifdef LADDER_HAS_CUDA
  if (const Device device = device_of(caches); device.type == DeviceType::cuda)
    return on_gpu(device).pack(
        kv_move_args(layout, caches, block_table, part, num_layers, body, layout.dtype, "pack_kv"), body,
        num_layers);
#endif
  pack_kv(layout, caches, block_table, part, body.on_host(), num_layers);
  return kv_checksums_on_host(body, num_layers);
}

bool KvCopier::unpack(const KvLayout& layout, const RankKvCaches& caches,
                      std::span<const int32_t> block_table, const KvPart& part, int64_t num_layers,
                      const KvBody& body, DType packed_dtype, std::span<const uint32_t> expected) {
  LADDER_CHECK(std::ssize(expected) == num_layers, "{} checksums of {} layers", expected.size(), num_layers);
#ifdef LADDER_HAS_CUDA
  if (const Device device = device_of(caches); device.type == DeviceType::cuda)
    return on_gpu(device).unpack(
        kv_move_args(layout, caches, block_table, part, num_layers, body, packed_dtype, "unpack_kv"), body,
        expected);
#endif
  if (!std::ranges::equal(kv_checksums_on_host(body, num_layers), expected)) return false;
  unpack_kv(layout, caches, block_table, part, body.on_host(), packed_dtype, num_layers);
  return true;
}

std::vector<uint32_t> KvCopier::checksums(const KvBody& body, int64_t count) {
#ifdef LADDER_HAS_CUDA
  if (body.device.type == DeviceType::cuda) return on_gpu(body.device).checksums(body, count);
#endif
  return kv_checksums_on_host(body, count);
}

#ifdef LADDER_HAS_CUDA
KvCopier::OnGpu& KvCopier::on_gpu(Device device) {
  for (const auto& gpu : gpus_)
    if (gpu->device() == device) return *gpu;
  return *gpus_.emplace_back(std::make_unique<OnGpu>(device));
}
#endif

}  // namespace ladder
