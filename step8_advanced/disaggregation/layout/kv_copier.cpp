#include "step8_advanced/disaggregation/layout/kv_copier.h"

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

void KvCopier::pack(const KvLayout& layout, const RankKvCaches& caches, std::span<const int32_t> block_table,
                    const KvPart& part, int64_t num_layers, const KvBody& body) {
#ifdef LADDER_HAS_CUDA
  if (const Device device = device_of(caches); device.type == DeviceType::cuda)
    return on_gpu(device).move(
        kv_move_args(layout, caches, block_table, part, num_layers, body, layout.dtype, "pack_kv"), body);
#endif
  pack_kv(layout, caches, block_table, part, body.on_host(), num_layers);
}

void KvCopier::unpack(const KvLayout& layout, const RankKvCaches& caches,
                      std::span<const int32_t> block_table, const KvPart& part, int64_t num_layers,
                      const KvBody& body, DType packed_dtype) {
#ifdef LADDER_HAS_CUDA
  if (const Device device = device_of(caches); device.type == DeviceType::cuda)
    return on_gpu(device).move(
        kv_move_args(layout, caches, block_table, part, num_layers, body, packed_dtype, "unpack_kv"), body);
#endif
  unpack_kv(layout, caches, block_table, part, body.on_host(), packed_dtype, num_layers);
}

std::vector<uint32_t> KvCopier::checksums(const KvBody& body, int64_t count) {
  const size_t size = body.size / static_cast<size_t>(count);
  LADDER_CHECK(size * static_cast<size_t>(count) == body.size, "a body of {} bytes is none of {} equal parts",
               body.size, count);
#ifdef LADDER_HAS_CUDA
  if (body.device.type == DeviceType::cuda) return on_gpu(body.device).checksums(body, count);
#endif
  std::vector<uint32_t> checksums;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i)
    checksums.push_back(kv_checksum(body.part(i * size, size).on_host()));
  return checksums;
}

#ifdef LADDER_HAS_CUDA
KvCopier::OnGpu& KvCopier::on_gpu(Device device) {
  for (const auto& gpu : gpus_)
    if (gpu->device() == device) return *gpu;
  return *gpus_.emplace_back(std::make_unique<OnGpu>(device));
}
#endif

}  // namespace ladder
