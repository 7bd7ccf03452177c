#pragma once
// Keys and values as codes, on their way into a warp's shared memory: the sizes of the decode kernel over codes for each kind of
// codes, and the queue of steps of 16 keys. paged_attention_of_codes_decode_cuda.cu has the kernel.
#include "step1_layers/attention/paged_attention_of_codes_cuda.cuh"
#include "step1_layers/attention/paged_attention_split_decode_cuda.cuh"

namespace ladder {

template <KvCacheDType kept_as, int dim>
struct CodesShape {
  static constexpr bool kIsFloat = kept_as == KvCacheDType::fp8, kIsNibble = kept_as == KvCacheDType::int4,
                        kIsByte = kept_as == KvCacheDType::int8;
  static constexpr int kBlocks = dim == 256 ? 1 : 2;           // of a multiprocessor
  static constexpr int kRowBytes = kIsNibble ? dim / 2 : dim;  // of a key or value
  static constexpr int kWordDims = kIsNibble ? 8 : 4;          // codes in a word
  static constexpr int kChunks = kRowBytes / 16;               // of 16 bytes, in a row
  static constexpr int kCopyRows = kWarp / kChunks;            // copied at a time
  static constexpr int kTileBytes = kStepKeys * kRowBytes, kScaleBytes = kStepKeys * 8;
  static constexpr int kStageBytes =
      2 * (kTileBytes + kScaleBytes);  // keys, values, scales of keys, of values
  static constexpr int kRoom = (208 << 10) / kBlocks / kSplitWarps;  // of a warp, in bytes
  static constexpr int kStages = kRoom / kStageBytes < 8 ? kRoom / kStageBytes : 8;
  // As many bytes as the gap of the rung for numbers.
  static constexpr int kGap = (kGapTiles * 4 * kStepKeys * dim + kStageBytes / 2) / kStageBytes;
  // What a code is times as an operand: a power of two, of odd codes in nibbles another one.
  static constexpr float kUnit = kIsFloat ? 1.0f : 0x1p24f, kOddUnit = kIsNibble ? kUnit / 16 : kUnit;
  // An int8 code is an operand without sign.
  static constexpr float kZero = kIsByte ? 128.0f : 0.0f;

  // Where the row's bytes from `offset` on are: with these exchanges the loads of keys (four lanes in a row, eight rows) and
  // of values (eight lanes in a row, every second of eight rows) find different banks.
  __device__ static int key_at(int row, int offset) {
    return (row * kRowBytes + offset) ^ (kRowBytes >= 128 ? (row & 1) << 6 : 0);
  }
  __device__ static int value_at(int row, int offset) {
    return (row * kRowBytes + offset) ^ ((row >> 1 & 3) << 5);
  }
  // Of the words of a row's codes that lane t of four has: where word w begins.
  __device__ static int key_offset(int t, int w) {
    return kRowBytes >= 64 ? (t + w / 4 * 4) * 16 + w % 4 * 4 : t * 8 + w * 4;
  }
  // Of those that lane g of eight has.
  __device__ static int value_offset(int g, int w) {
    return kRowBytes == 256 ? w / 4 * 128 + g * 16 + w % 4 * 4 : g * (kRowBytes / 8) + w * 4;
  }
};

template <KvCacheDType kept_as, int dim>
struct alignas(16) CodesShared {
  using Shape = CodesShape<kept_as, dim>;
  static constexpr int kDim = dim;
  unsigned char queue[kSplitWarps][Shape::kStages][Shape::kStageBytes];

  __device__ WarpResult<dim>& result(int warp) { return reinterpret_cast<WarpResult<dim>&>(queue[warp]); }
  static_assert(sizeof(WarpResult<dim>) <= sizeof(queue[0]));
};

__device__ inline void copy_scale_async(uint32_t shared_address, const float2* from, bool valid) {
  LADDER_SM80_ASM("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address), "l"(from),
                  "r"(valid ? 8 : 0)
                  : "memory");
}

// One warp's queue of steps of 16 keys; the warp's steps are kSplitTileKeys apart, since the warps of a block take turns.
template <KvCacheDType kept_as, int dim>
struct CodesQueue {
  using Shape = CodesShape<kept_as, dim>;

  int first, steps;  // the warp's first key, and how many steps it has
  unsigned char* queue;
  const int32_t* table;
  const uint8_t *k_head, *v_head;  // where this lane copies from, in slot 0 of block 0
  const float2* scales_head;       // of keys or of values
  int blocks = 0;                  // lane i: the block of step i of 32

  template <class T>
  __device__ CodesQueue(const AttentionOfCodes<T>& a, const Piece& piece, CodesShared<kept_as, dim>& shared) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int kv_head = piece.head_tile / ceil_div(a.group, kTileHeads);
    first = piece.first + warp * kStepKeys;
    steps = first < piece.end ? ceil_div(piece.end - first, kSplitTileKeys) : 0;
    table = a.block_tables + piece.seq * a.table_stride;
    queue = shared.queue[warp][0];
    const int copy_row = lane / Shape::kChunks, chunk = lane % Shape::kChunks;
    k_head = a.k_codes + kv_head * a.k_head + copy_row * a.k_slot + chunk * 16;
    v_head = a.v_codes + kv_head * a.v_head + copy_row * a.v_slot + chunk * 16;
    scales_head =
        (lane < kStepKeys ? a.k_scales : a.v_scales) + int64_t{lane % kStepKeys} * a.kv_heads + kv_head;
  }

  __device__ unsigned char* keys(int step) const {
    return queue + step % Shape::kStages * Shape::kStageBytes;
  }
  // How many of a step's sixteen keys are keys of the piece, or more.
  __device__ int valid(const Piece& piece, int step) const {
    return piece.end - (first + step * kSplitTileKeys);
  }

  // Starts the copies of a step; nothing past the last one. Zeros past the last key: its codes may be NaN.
  template <class T>
  __device__ void copy(const AttentionOfCodes<T>& a, const Piece& piece, int step, Keys which) {
    const int lane = threadIdx.x % kWarp, copy_row = lane / Shape::kChunks, chunk = lane % Shape::kChunks;
    if (step < steps) {
      if (step % kWarp == 0 && which != Keys::own) {
        const int key = first + (step + lane) * kSplitTileKeys;
        blocks = key < piece.end ? table[key >> a.block_shift] : 0;
      }
      const int key = first + step * kSplitTileKeys, valid = piece.end - key;
      const int64_t block = __shfl_sync(kAllLanes, blocks, step), slot = key & (a.block_size - 1);
      const uint8_t *k = k_head + block * a.k_block + slot * a.k_slot,
                    *v = v_head + block * a.v_block + slot * a.v_slot;
      const uint32_t to = shared_address(keys(step));
      const auto is_wanted = [&](int row) {
        return which == Keys::all || (key + row == piece.num_keys - 1) == (which == Keys::own);
      };
#pragma unroll
      for (int i = 0; i < kStepKeys / Shape::kCopyRows; ++i) {
        const int row = i * Shape::kCopyRows + copy_row;
        if (!is_wanted(row)) continue;
        copy_of_line_async(to + Shape::key_at(row, chunk * 16), k + i * Shape::kCopyRows * a.k_slot,
                           row < valid);
        copy_of_line_async(to + Shape::kTileBytes + Shape::value_at(row, chunk * 16),
                           v + i * Shape::kCopyRows * a.v_slot, row < valid);
      }
      const int row = lane % kStepKeys;
      if (is_wanted(row))
        copy_scale_async(to + 2 * Shape::kTileBytes + lane * 8,
                         scales_head + (block * a.block_size + slot) * a.kv_heads, row < valid);
    }
    commit_copies();
  }

  // The row's own key, where it is among the steps that were copied without it.
  template <class T>
  __device__ void copy_own(const AttentionOfCodes<T>& a, const Piece& piece) {
    const int own = piece.num_keys - 1 - first;
    if (piece.end == piece.num_keys && own >= 0 && own % kSplitTileKeys < kStepKeys &&
        own / kSplitTileKeys < Shape::kStages)
      copy(a, piece, own / kSplitTileKeys, Keys::own);
  }
};

}  // namespace ladder
