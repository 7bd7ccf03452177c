#include "step8_advanced/disaggregation/layout/kv_copier_cuda.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/layout/kv_checksum.h"
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

void KvCopier::OnGpu::expect_here(const KvBody& body) const {
  LADDER_CHECK(body.device == device() || body.device.is_cpu(),
               "keys and values on {} and a body on {}: expected them on one GPU, or the body on the host",
               device_name(device()), device_name(body.device));
}

const uint32_t* KvCopier::OnGpu::upload(KvMoveArgs& args, std::span<const uint32_t> words) {
  LADDER_CUDA_CHECK(cudaSetDevice(device().index));
  const size_t at = (kv_tables_size(args) + sizeof(uint32_t) - 1) / sizeof(uint32_t) * sizeof(uint32_t),
               size = at + words.size_bytes();
  std::byte* const on_host = room_on_host(tables_on_host_, size);
  std::byte* const on_gpu = room_on_gpu(tables_, size);
  write_kv_tables(args, on_host);
  std::ranges::copy(std::as_bytes(words), on_host + at);
  cuda::copy(on_gpu, on_host, static_cast<int64_t>(size), stream());
  args.tables = on_gpu;
  return reinterpret_cast<const uint32_t*>(on_gpu + at);
}

void KvCopier::OnGpu::begin_checksums(const KvBody& body, int64_t count) {
  if (checksum_tables_ == nullptr) checksum_tables_ = upload_kv_checksum_tables(stream());
  const size_t size = static_cast<size_t>(count) * sizeof(uint32_t);
  auto* const remainders = reinterpret_cast<uint32_t*>(room_on_gpu(remainders_, size));
  std::byte* const on_host = room_on_host(remainders_on_host_, size);
  kv_checksums_on_gpu(body.data, static_cast<int64_t>(part_size(body, count)), count, checksum_tables_.get(),
                      remainders, stream());
  cuda::copy(on_host, remainders, static_cast<int64_t>(size), stream());
}

std::vector<uint32_t> KvCopier::OnGpu::end_checksums(int64_t count) const {
  const auto* const remainders = static_cast<const uint32_t*>(remainders_on_host_.memory.get());
  std::vector<uint32_t> checksums(remainders, remainders + count);
  for (uint32_t& checksum : checksums) checksum = ~checksum;
  return checksums;
}

std::vector<uint32_t> KvCopier::OnGpu::pack(KvMoveArgs args, const KvBody& body, int64_t count) {
  expect_here(body);
  upload(args, {});
  if (body.device.is_cpu()) {
    args.packed = room_on_gpu(body_, body.size);
    kv_move(context_, args);
    cuda::copy(body.data, args.packed, static_cast<int64_t>(body.size), stream());
    wait();
    return kv_checksums_on_host(body, count);
  }
  kv_move(context_, args);
  begin_checksums(body, count);
  wait();
  return end_checksums(count);
}

bool KvCopier::OnGpu::unpack(KvMoveArgs args, const KvBody& body, std::span<const uint32_t> expected) {
  expect_here(body);
  const auto count = std::ssize(expected);
  if (body.device.is_cpu()) {
    if (!std::ranges::equal(kv_checksums_on_host(body, count), expected)) return false;
    upload(args, {});
    args.packed = room_on_gpu(body_, body.size);
    cuda::copy(args.packed, body.data, static_cast<int64_t>(body.size), stream());
    kv_move(context_, args);
    wait();
    return true;
  }
  std::vector<uint32_t> remainders(expected.begin(), expected.end());
  for (uint32_t& word : remainders) word = ~word;
  args.only_if.expected = upload(args, remainders);
  begin_checksums(body, count);
  args.only_if.found = static_cast<const uint32_t*>(remainders_.memory.get());
  args.only_if.count = static_cast<int>(count);
  kv_move(context_, args);
  wait();
  return std::ranges::equal(end_checksums(count), expected);
}

std::vector<uint32_t> KvCopier::OnGpu::checksums(const KvBody& body, int64_t count) {
  LADDER_CUDA_CHECK(cudaSetDevice(device().index));
  begin_checksums(body, count);
  wait();
  return end_checksums(count);
}

}  // namespace ladder
