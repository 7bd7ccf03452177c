#pragma once
// What the kernels over peer memory share: their places in it, accesses that another GPU takes part in, meetings.
//
// Every access to memory that a peer writes or reads during the kernel names its scope (.sys). No ld.nc, and no plain
// load that a cache of this multiprocessor could answer with what was there before.
#include "step1_layers/core/packs.cuh"
#include "step7_parallel/communicators/gpu/peer_group.h"

namespace ladder {

__device__ inline void store_for_peer(void* to, uint4 words) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ inline uint4 load_of_peer(const void* from) {
  uint4 words;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from)
               : "memory");
  return words;
}
__device__ inline void store_word_for_peer(uint32_t* to, uint32_t word) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
__device__ inline uint32_t load_word_of_peer(const uint32_t* from) {
  uint32_t word;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
__device__ inline void store_release(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ inline uint32_t load_acquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Of a thread that waits for another GPU. The flag lies in the host's memory, a microsecond away: it is looked at
// rarely.
class PeerWait {
 public:
  __device__ explicit PeerWait(const PeerView& view) : stop_(view.stop) {}
  __device__ bool is_given_up() {
    return ++looks_ % 4096 == 0 && *static_cast<const volatile int*>(stop_) != 0;
  }

 private:
  const int* stop_;
  uint32_t looks_ = 0;
};

__device__ inline PeerCounters& peer_counters(const PeerGroup& group) {
  return reinterpret_cast<PeerCounters*>(group.memory[group.rank] + PeerLayout::kCounters)[blockIdx.x];
}

// Where this block's data lies at rank `at`: what it stages to be read by the others; the slices and their sums that
// `from` sent; what `from` pushed, and what it exchanged.
__device__ inline char* pull_buffer(const PeerGroup& group, int at, uint32_t half) {
  return group.memory[at] + PeerLayout::kPull +
         (int64_t{half} * kMaxPeerBlocks + blockIdx.x) * group.layout.pull_bytes;
}
__device__ inline char* slice_buffer(const PeerGroup& group, int at, int from, int sums) {
  const int64_t index = (int64_t{sums} * kMaxPeerBlocks + blockIdx.x) * group.layout.size + from;
  return group.memory[at] + group.layout.slices + index * group.layout.slice_bytes;
}
__device__ inline char* push_buffer(const PeerGroup& group, int at, int from, uint32_t half) {
  const int64_t index = (int64_t{half} * kMaxPeerBlocks + blockIdx.x) * group.layout.size + from;
  return group.memory[at] + group.layout.push + index * group.layout.push_bytes;
}
__device__ inline char* exchange_buffer(const PeerGroup& group, int at, int from, uint32_t half) {
  const int64_t index = (int64_t{half} * kMaxPeerBlocks + blockIdx.x) * group.layout.size + from;
  return group.memory[at] + group.layout.exchange + index * group.layout.exchange_bytes;
}

// Returns when this block's partners on all ranks have come to the same meeting. What any thread of theirs wrote before
// is visible to every thread of this block after. Meetings are numbered by a count that only grows: a partner that is
// already at the next one has passed this one.
__device__ inline void meet(const PeerGroup& group, uint32_t number) {
  const auto flags = [&](int at) {
    return reinterpret_cast<uint32_t*>(group.memory[at] + PeerLayout::kFlags) + blockIdx.x * kMaxPeers;
  };
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < group.layout.size) {
    store_release(flags(peer) + group.rank, number);
    PeerWait wait(group);
    while (static_cast<int32_t>(load_acquire(flags(group.rank) + peer) - number) < 0 && !wait.is_given_up()) {
    }
  }
  __syncthreads();
}

// The elements of a call as packs of sixteen bytes, whatever their number and alignment. What a last pack lacks is zero.
template <class T>
struct PeerElements {
  T* data;
  int64_t count;
  bool is_aligned;  // to sixteen bytes

  __device__ uint4 load(int64_t pack) const {
    constexpr int kSize = Pack<T>::kSize;
    const int64_t first = pack * kSize;
    if (is_aligned && first + kSize <= count) return *reinterpret_cast<const uint4*>(data + first);
    Pack<T> values = zero_pack<T>();
    for (int k = 0; k < kSize; ++k)
      if (first + k < count) values.value[k] = data[first + k];
    return *reinterpret_cast<const uint4*>(&values);
  }
  __device__ void store(int64_t pack, const Pack<T>& values) const {
    constexpr int kSize = Pack<T>::kSize;
    const int64_t first = pack * kSize;
    if (is_aligned && first + kSize <= count) return store_pack(data + first, values);
    for (int k = 0; k < kSize; ++k)
      if (first + k < count) data[first + k] = values.value[k];
  }
};

// This block's share of `packs`: neighbours, the same on all ranks.
struct PackRange {
  int64_t begin, count;
};
__device__ inline PackRange packs_of_block(int64_t packs) {
  const int64_t each = ceil_div<int64_t>(packs, gridDim.x), begin = min(each * blockIdx.x, packs);
  return {begin, min(each, packs - begin)};
}

// sum += words. A sum begins with +0, as on the CPU: then a -0 adds nothing, whatever its sign.
template <class T>
__device__ void add_pack(float (&sum)[Pack<T>::kSize], const uint4& words) {
  float values[Pack<T>::kSize];
  to_floats(*reinterpret_cast<const Pack<T>*>(&words), values);
#pragma unroll
  for (int k = 0; k < Pack<T>::kSize; ++k) sum[k] += values[k];
}

// Pushed data says by itself that it has arrived: the buffer held a poison before, one in every 32-bit word. A word of
// the data that looks like it is replaced: 0x80000000 is -0 in f32, and (+0, -0) as two 16-bit floats, and adds as
// much as zeros do (add_pack).
inline constexpr uint32_t kPeerPoison = 0x80000000u;

__device__ inline uint32_t without_poison(uint32_t word) {
  return word == kPeerPoison ? 0 : word;
}
__device__ inline uint4 without_poison(uint4 words) {
  return {without_poison(words.x), without_poison(words.y), without_poison(words.z), without_poison(words.w)};
}
__device__ inline bool has_arrived(const uint4& words) {
  return words.x != kPeerPoison && words.y != kPeerPoison && words.z != kPeerPoison && words.w != kPeerPoison;
}
__device__ inline void poison_again(void* slot) {
  *static_cast<uint4*>(slot) = {kPeerPoison, kPeerPoison, kPeerPoison, kPeerPoison};
}

// Pack `slot` as each rank pushed it, added in rank order; the buffer is poisoned again for the call after the next.
// `mine` is this rank's own.
template <class T, int max_size>
__device__ void sum_pushed(const PeerGroup& group, uint32_t half, int64_t slot, const uint4& mine,
                           float (&sum)[Pack<T>::kSize]) {
  uint4 words[max_size];
  char* from[max_size];
#pragma unroll
  for (int r = 0; r < max_size; ++r)
    if (r < group.layout.size) from[r] = push_buffer(group, group.rank, r, half) + slot * 16;
  PeerWait wait(group);
  bool all_here;
  do {
    all_here = true;
#pragma unroll
    for (int r = 0; r < max_size; ++r)
      if (r < group.layout.size) {
        words[r] = r == group.rank ? mine : load_of_peer(from[r]);
        all_here = all_here && (r == group.rank || has_arrived(words[r]));
      }
  } while (!all_here && !wait.is_given_up());
#pragma unroll
  for (int k = 0; k < Pack<T>::kSize; ++k) sum[k] = 0;
#pragma unroll
  for (int r = 0; r < max_size; ++r)
    if (r < group.layout.size) {
      add_pack<T>(sum, words[r]);
      if (r != group.rank) poison_again(from[r]);
    }
}

// Sends a pack to every other rank's buffer.
template <int max_size>
__device__ void push_to_all(const PeerGroup& group, uint32_t half, int64_t slot, const uint4& mine) {
  const uint4 words = without_poison(mine);
#pragma unroll
  for (int r = 0; r < max_size; ++r)
    if (r < group.layout.size && r != group.rank)
      store_for_peer(push_buffer(group, r, group.rank, half) + slot * 16, words);
}

// Calls fn with a constant of 2, 4 or 8 that the group's size does not exceed: loops over ranks are unrolled that far.
template <class Fn>
void with_max_peers(int size, Fn&& fn) {
  if (size <= 2) return fn(std::integral_constant<int, 2>{});
  if (size <= 4) return fn(std::integral_constant<int, 4>{});
  fn(std::integral_constant<int, kMaxPeers>{});
}

}  // namespace ladder
