#include "step8_advanced/disaggregation/layout/kv_copier_cuda.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/layout/kv_checksum_cuda.h"

namespace ladder {

namespace {

// A longer sequence seldom needs another buffer: the whole GPU waits where memory is given back.
size_t with_more(size_t size) {
  return std::max<size_t>(size + size / 4, size_t{1} << 16);
}

}  // namespace

KvCopier::OnGpu::OnGpu(Device device) {
  context_.device = device;
  context_.device_arch = kernel_arch(cuda_device_info(device.index));
  LADDER_CUDA_CHECK(cudaSetDevice(device.index));
  int least = 0, greatest = 0;
  LADDER_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  LADDER_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  context_.stream = stream;
}

KvCopier::OnGpu::~OnGpu() {
  // Nothing can be reported from here; whatever ran on the stream was waited for, or has failed.
  cudaSetDevice(device().index);
  cudaStreamSynchronize(stream());
  cudaStreamDestroy(stream());
  cudaGetLastError();
}

std::byte* KvCopier::OnGpu::room_on_gpu(Buffer& buffer, size_t size) const {
  if (buffer.size < size) {
    buffer = {};  // first: both need not be there at once
    const size_t room = with_more(size);
    buffer = {cuda::allocate(device().index, static_cast<int64_t>(room)), room};
  }
  return static_cast<std::byte*>(buffer.memory.get());
}

std::byte* KvCopier::OnGpu::room_on_host(Buffer& buffer, size_t size) {
  if (buffer.size < size) {
    const size_t room = with_more(size);
    buffer = {cuda::allocate_pinned(static_cast<int64_t>(room)), room};
  }
  return static_cast<std::byte*>(buffer.memory.get());
}

void KvCopier::OnGpu::wait() const {
  LADDER_CUDA_CHECK(cudaStreamSynchronize(stream()));
}

void KvCopier::OnGpu::move(KvMoveArgs args, const KvBody& body) {
  LADDER_CHECK(body.device == device() || body.device.is_cpu(),
               "keys and values on {} and a body on {}: expected them on one GPU, or the body on the host",
               device_name(device()), device_name(body.device));
  LADDER_CUDA_CHECK(cudaSetDevice(device().index));
  const size_t size = kv_tables_size(args);
  std::byte* const tables = room_on_host(tables_on_host_, size);
  std::byte* const on_gpu = room_on_gpu(tables_, size);
  write_kv_tables(args, tables);
  cuda::copy(on_gpu, tables, static_cast<int64_t>(size), stream());
  args.tables = on_gpu;
  const auto body_size = static_cast<int64_t>(body.size);
  if (body.device.is_cpu()) {
    args.packed = room_on_gpu(body_, body.size);
    if (!args.packs) cuda::copy(args.packed, body.data, body_size, stream());
  }
  kv_move(context_, args);
  if (body.device.is_cpu() && args.packs) cuda::copy(body.data, args.packed, body_size, stream());
  wait();
}

std::vector<uint32_t> KvCopier::OnGpu::checksums(const KvBody& body, int64_t count) {
  LADDER_CUDA_CHECK(cudaSetDevice(device().index));
  if (checksum_tables_ == nullptr) checksum_tables_ = upload_kv_checksum_tables(stream());
  const size_t size = static_cast<size_t>(count) * sizeof(uint32_t);
  auto* const remainders = reinterpret_cast<uint32_t*>(room_on_gpu(remainders_, size));
  auto* const on_host = reinterpret_cast<uint32_t*>(room_on_host(remainders_on_host_, size));
  kv_checksums_on_gpu(body.data, static_cast<int64_t>(body.size) / count, count, checksum_tables_.get(),
                      remainders, stream());
  cuda::copy(on_host, remainders, static_cast<int64_t>(size), stream());
  wait();
  std::vector<uint32_t> checksums(on_host, on_host + count);
  for (uint32_t& checksum : checksums) checksum = ~checksum;
  return checksums;
}

}  // namespace ladder
