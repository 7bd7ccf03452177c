// What peer memory holds at first, and the pattern that tells whether a peer's is what it seems to be.
#include "step7_parallel/communicators/gpu/peer_kernel.cuh"
#include "step7_parallel/communicators/gpu/peer_memory.h"

namespace ladder {

namespace {

__host__ __device__ int word_of_pattern(int from, int at, int index) {
  return (from * kMaxPeers + at + 1) * 0x01000193 + index * 0x00010001;
}

__global__ void write_pattern(int* to, int from, int at) {
  for (int i = static_cast<int>(threadIdx.x); i < kPatternWords; i += static_cast<int>(blockDim.x))
    to[from * kPatternWords + i] = word_of_pattern(from, at, i);
}

__global__ void clear_words(uint32_t* words, int64_t first_poison, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    words[i] = i < first_poison ? 0 : kPeerPoison;
}

}  // namespace

int pattern_word(int from, int at, int index) {
  return word_of_pattern(from, at, index);
}

void write_peer_pattern(const PeerView& view, int at) {
  write_pattern<<<1, 256>>>(reinterpret_cast<int*>(view.memory[at]), view.rank, at);
  LADDER_CUDA_CHECK(cudaGetLastError());
  LADDER_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

void clear_peer_memory(const PeerView& view, PeerBytes bytes) {
  clear_words<<<256, 256>>>(reinterpret_cast<uint32_t*>(view.memory[view.rank]), bytes.first_poison / 4,
                            bytes.total / 4);
  LADDER_CUDA_CHECK(cudaGetLastError());
  LADDER_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

}  // namespace ladder
