// CRC-32C on a GPU, of several parts at once.
//
// A remainder is linear in the bytes (over bits): that of a whole is the sum (exclusive or) of the remainders of its pieces,
// each multiplied by x^(8 n) for the n bytes behind it, modulo the polynomial. So a thread has a piece of its own, and nobody
// waits for anybody:
//
//   | piece 2 | piece 1 | piece 0 |       pieces are counted from the end: behind piece p there are p * 256 bytes, whatever the
//                                         part's size, and the first piece is what is left; only it begins with ~0
//
// A piece is read 16 bytes at a time, 4 bytes are four look-ups (tables of a byte with 3, 2, 1 and 0 bytes behind it), and what
// limits it is look-ups in shared memory: lanes that want different words of one bank wait for each other. Each table is there
// four times, side by side, so that a lane has only seven others to meet. x^(8 n) is two factors from tables: that of the thread's
// piece in its block, and that of the block.
#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/layout/kv_checksum.h"
#include "step8_advanced/disaggregation/layout/kv_checksum_cuda.h"

namespace ladder {

namespace {

constexpr int kThreads = 512;
constexpr int kPiece = 256;  // bytes of a thread
constexpr int kCopies = 4;
constexpr int kWords = 4 * 256;  // of the byte tables
constexpr int kMaxBlocks = static_cast<int>(kMaxChecksumBytes / (kThreads * kPiece));

struct Tables {
  uint32_t bytes[kWords];       // [i][b]: the remainder of byte b with i bytes of 0 behind it
  uint32_t pieces[kThreads];    // [p]: x^(8 * kPiece * p)
  uint32_t blocks[kMaxBlocks];  // [b]: x^(8 * kPiece * kThreads * b)
};

// Polynomials of degree 31 at the most, the highest bit being that of x^0.
__host__ __device__ uint32_t times_x(uint32_t value) {
  return value >> 1 ^ (kKvChecksumPolynomial & (0u - (value & 1)));
}
__host__ __device__ uint32_t product(uint32_t a, uint32_t b) {
  uint32_t sum = 0;
  for (int bit = 0; bit < 32; ++bit) {
    sum ^= b & (0u - (a >> 31));
    a <<= 1;
    b = times_x(b);
  }
  return sum;
}

void fill_powers(uint32_t* to, int count, uint32_t factor) {
  to[0] = 0x80000000u;
  for (int i = 1; i < count; ++i) to[i] = product(to[i - 1], factor);
}

Tables make_tables() {
  Tables tables;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int i = 0; i < 4; ++i) {
      for (int bit = 0; bit < 8; ++bit) remainder = times_x(remainder);
      tables.bytes[i * 256 + static_cast<int>(byte)] = remainder;
    }
  }
  uint32_t of_piece = 0x80000000u;
  for (int bit = 0; bit < 8 * kPiece; ++bit) of_piece = times_x(of_piece);
  fill_powers(tables.pieces, kThreads, of_piece);
  fill_powers(tables.blocks, kMaxBlocks, product(tables.pieces[kThreads - 1], of_piece));
  return tables;
}

struct Lookup {
  const uint32_t* table;  // the lane's copy

  __device__ uint32_t of(int bytes_behind, uint32_t byte) const {
    return table[(bytes_behind * 256 + byte) * kCopies];
  }
  __device__ uint32_t add_word(uint32_t remainder, uint32_t word) const {
    word ^= remainder;
    return of(3, word & 255) ^ of(2, word >> 8 & 255) ^ of(1, word >> 16 & 255) ^ of(0, word >> 24);
  }
  __device__ uint32_t add_16(uint32_t remainder, uint4 words) const {
    remainder = add_word(remainder, words.x);
    remainder = add_word(remainder, words.y);
    remainder = add_word(remainder, words.z);
    return add_word(remainder, words.w);
  }
};

constexpr int kAtOnce = 8;  // loads under way: a line of memory

template <bool is_aligned>
__device__ uint32_t remainder_of(const Lookup& lookup, const std::byte* bytes, int64_t size,
                                 uint32_t remainder) {
  if constexpr (is_aligned) {
    const uint4* from = reinterpret_cast<const uint4*>(bytes);
    const int count = static_cast<int>(size / 16);
    if (count == kPiece / 16) {
#pragma unroll 1
      for (int first = 0; first < kPiece / 16; first += kAtOnce) {
        uint4 words[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) words[i] = from[first + i];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) remainder = lookup.add_16(remainder, words[i]);
      }
    } else {
      for (int i = 0; i < count; ++i) remainder = lookup.add_16(remainder, from[i]);
    }
  } else {
    for (int64_t i = 0; i < size; ++i)
      remainder = remainder >> 8 ^ lookup.of(0, (remainder ^ static_cast<uint32_t>(bytes[i])) & 255);
  }
  return remainder;
}

template <bool is_aligned>
__global__ void __launch_bounds__(kThreads)
    add_remainders(const std::byte* bytes, int64_t size, const Tables* tables, uint32_t* remainders) {
  __shared__ uint32_t table[kWords * kCopies];
  __shared__ uint32_t of_warp[kThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kWords * kCopies; i += kThreads) table[i] = tables->bytes[i / kCopies];
  __syncthreads();

  const int64_t end = size - (int64_t{blockIdx.x} * kThreads + thread) * kPiece;
  uint32_t sum = 0;
  if (end > 0) {
    const int64_t begin = end > kPiece ? end - kPiece : 0;
    const std::byte* const part = bytes + int64_t{blockIdx.y} * size;
    const uint32_t remainder = remainder_of<is_aligned>(Lookup{table + thread % kCopies}, part + begin,
                                                        end - begin, begin == 0 ? ~0u : 0u);
    sum = product(remainder, tables->pieces[thread]);
  }
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) sum ^= __shfl_xor_sync(kAllLanes, sum, lanes);
  if (thread % kWarp == 0) of_warp[thread / kWarp] = sum;
  __syncthreads();
  if (thread > 0) return;
  for (int warp = 1; warp < kThreads / kWarp; ++warp) sum ^= of_warp[warp];
  atomicXor(remainders + blockIdx.y, product(sum, tables->blocks[blockIdx.x]));
}

}  // namespace

std::shared_ptr<void> upload_kv_checksum_tables(void* stream) {
  static const Tables tables = make_tables();
  int device = 0;
  LADDER_CUDA_CHECK(cudaGetDevice(&device));
  auto memory = cuda::allocate(device, sizeof tables);
  cuda::copy(memory.get(), &tables, sizeof tables, stream);
  return memory;
}

void kv_checksums_on_gpu(const std::byte* bytes, int64_t size, int64_t count, const void* tables,
                         uint32_t* remainders, void* stream) {
  LADDER_CHECK(size > 0 && size <= kMaxChecksumBytes && count > 0 && count <= 65535,
               "checksums of {} parts of {} bytes on a GPU: at most 65535 of 1 to {} are possible", count,
               size, kMaxChecksumBytes);
  const auto on = static_cast<cudaStream_t>(stream);
  LADDER_CUDA_CHECK(cudaMemsetAsync(remainders, 0, static_cast<size_t>(count) * sizeof(uint32_t), on));
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(size, kThreads * kPiece)),
                  static_cast<unsigned>(count));
  const bool is_aligned = reinterpret_cast<uintptr_t>(bytes) % 16 == 0 && size % 16 == 0;
  const auto kernel = is_aligned ? add_remainders<true> : add_remainders<false>;
  kernel<<<grid, kThreads, 0, on>>>(bytes, size, static_cast<const Tables*>(tables), remainders);
  LADDER_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ladder
