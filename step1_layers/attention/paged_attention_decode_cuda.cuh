#pragma once
// What the rungs that cut the keys of a sequence share: a block's part of the keys of one sequence and
// key/value head (a piece), and how partial results are merged.
//
// bf16 or f16, head size 64, 128 or 256, pages of a multiple of 16 slots (sm_80). As in the grouped rung the
// query heads that share a key/value head are packed into one tensor-core tile of eight columns, and both
// products run transposed:
//
//   scores^T [16 keys, 8 heads] = K [16 keys, dim] * q^T [dim, 8 heads]
//   out^T    [dim, 8 heads]    += V^T [dim, 16 keys] * p^T [16 keys, 8 heads]
//
// but each warp has a queue of steps of 16 keys in shared memory, filled by asynchronous copies: several
// steps are in flight while it computes one, and no register waits for them. Rows lie 16 bytes further apart
// than they are long, which keeps load_matrices free of bank conflicts.
#include "step1_layers/attention/paged_attention_cuda.cuh"
#include "step1_layers/core/tensor_core.cuh"

namespace ladder {

inline constexpr int kStepKeys = 16;  // of one warp; the warps of a block take turns
inline constexpr int kTileHeads = 8;
// Steps that a warp has in flight where nothing says otherwise: 8 KB each for a head size of 128.
template <int dim>
inline constexpr int kDecodeStages = dim == 64 ? 6 : 3;

// Keys [first, end) of one head tile of one sequence that has one query row. `first` is a multiple of 16, so
// is `end` where it is not the number of keys.
struct Piece {
  int64_t seq;
  int head_tile;  // kv_head * head tiles per group + which of them
  int num_keys;   // of the sequence
  int first, end;
};

// The state of a softmax over part of the keys, for eight heads. Heads are spread over the banks: lanes write
// eight adjacent elements of every second head.
template <int dim>
struct WarpResult {
  float largest[kTileHeads], sum[kTileHeads];
  float out[kTileHeads][dim + 4];  // not divided by the sum
};

// The queues; where a warp has read all of its own, its result takes the place.
template <int dim, int warps, int stages = kDecodeStages<dim>>
struct alignas(16) DecodeShared {
  static constexpr int kDim = dim, kRowBytes = dim * 2 + 16, kStageBytes = 2 * kStepKeys * kRowBytes;
  unsigned char queue[warps][stages][kStageBytes];  // keys, then values

  __device__ WarpResult<dim>& result(int warp) { return reinterpret_cast<WarpResult<dim>&>(queue[warp]); }
};

template <class T>
__device__ int head_tiles_of(const Attention<T>& a) {
  return a.kv_heads * ceil_div(a.group, kTileHeads);
}
// The first of the tile's query heads, and how many they are.
template <class T>
__device__ int first_head(const Attention<T>& a, int head_tile) {
  const int tiles_per_group = ceil_div(a.group, kTileHeads);
  return head_tile / tiles_per_group * a.group + head_tile % tiles_per_group * kTileHeads;
}
template <class T>
__device__ int heads_in_tile(const Attention<T>& a, int head_tile) {
  const int left = a.group - head_tile % ceil_div(a.group, kTileHeads) * kTileHeads;
  return left < kTileHeads ? left : kTileHeads;
}
// 0 where the sequence is a prompt's chunk, which another kernel takes, or a padding row.
template <class T>
__device__ int num_decode_keys(const Attention<T>& a, int64_t seq) {
  const int keys = a.seq_lens[seq];
  return a.query_len(seq) == 1 ? keys : 0;
}

__device__ inline uint32_t transpose_8x8(uint32_t x) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(x));
  return result;
}

// The softmax of a step. s: the products of keys g (s[0], s[1]) and g + 8 with the heads 2t and 2t + 1, lane
// being 4 g + t; they become the weights. `valid` of the sixteen keys are keys. `sum` is over this lane's
// keys.
__device__ inline void weigh_step(float (&s)[4], int valid, float scale, float (&largest)[2], float (&sum)[2],
                                  float (&correction)[2]) {
  const int g = threadIdx.x % kWarp / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    s[i] = g < valid ? s[i] * scale : -INFINITY;
    s[2 + i] = g + 8 < valid ? s[2 + i] * scale : -INFINITY;
    float step_largest = fmaxf(s[i], s[2 + i]);
#pragma unroll
    for (int offset = 4; offset < kWarp; offset *= 2)
      step_largest = fmaxf(step_largest, __shfl_xor_sync(kAllLanes, step_largest, offset));
    const float new_largest = fmaxf(largest[i], step_largest);
    correction[i] = exp2f(largest[i] - new_largest);
    largest[i] = new_largest;
    s[i] = exp2f(s[i] - new_largest);
    s[2 + i] = exp2f(s[2 + i] - new_largest);
    sum[i] = sum[i] * correction[i] + s[i] + s[2 + i];
  }
}

// The warp's part of the softmax's state, its lanes' sums added up.
template <int dim>
__device__ void store_state(const float (&largest)[2], float (&sum)[2], WarpResult<dim>& result) {
  const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int offset = 4; offset < kWarp; offset *= 2) sum[i] += __shfl_xor_sync(kAllLanes, sum[i], offset);
    if (g == 0) {
      result.largest[2 * t + i] = largest[i];
      result.sum[2 * t + i] = sum[i];
    }
  }
}

// Which keys of a step are copied. In a batch of single rows the keys before a row's own were written in
// earlier steps, and the lengths and tables were copied before this one (kv_cache.h): they are read while the
// previous kernel, which writes the row's own key, still runs.
enum class Keys : uint8_t { all, earlier, own };

// One warp's queue of steps. Sixteen keys of `dim` elements, then their values, are a step; the warp's steps
// are kTileKeys apart, since the warps of a block take turns.
template <int dim, int warps, int stages, class T>
struct StepQueue {
  static constexpr int kTileKeys = warps * kStepKeys;
  static constexpr int kRowBytes = dim * 2 + 16, kStageBytes = 2 * kStepKeys * kRowBytes;
  static constexpr int kChunks = dim / 8,
                       kCopyRows = kWarp / kChunks;  // of 16 bytes, in a row; copied at a time

  int first, steps;  // the warp's first key, and how many steps it has
  uint32_t queue;    // its address in shared memory
  const int32_t* table;
  const T *k_head, *v_head;  // where this lane copies from, in slot 0 of block 0
  uint32_t copy_to;
  int blocks = 0;  // lane i: the block of step i of 32

  __device__ StepQueue(const Attention<T>& a, const Piece& piece, DecodeShared<dim, warps, stages>& shared) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int kv_head = piece.head_tile / ceil_div(a.group, kTileHeads);
    first = piece.first + warp * kStepKeys;
    steps = first < piece.end ? ceil_div(piece.end - first, kTileKeys) : 0;
    table = a.block_tables + piece.seq * a.table_stride;
    queue = shared_address(shared.queue[warp]);
    const int copy_row = lane / kChunks, copy_chunk = lane % kChunks;
    k_head = a.k + kv_head * a.k_head + copy_row * a.k_slot + copy_chunk * 8;
    v_head = a.v + kv_head * a.v_head + copy_row * a.v_slot + copy_chunk * 8;
    copy_to = queue + copy_row * kRowBytes + copy_chunk * 16;
  }

  __device__ uint32_t keys(int step) const { return queue + step % stages * kStageBytes; }
  __device__ uint32_t values(int step) const { return keys(step) + kStepKeys * kRowBytes; }
  // How many of a step's sixteen keys are keys of the piece, or more.
  __device__ int valid(const Piece& piece, int step) const { return piece.end - (first + step * kTileKeys); }

  // Starts the copies of a step; nothing past the last one.
  __device__ void copy(const Attention<T>& a, const Piece& piece, int step, Keys which) {
    const int lane = threadIdx.x % kWarp, copy_row = lane / kChunks;
    if (step < steps) {
      if (step % kWarp == 0 && which != Keys::own) {
        const int key = first + (step + lane) * kTileKeys;
        blocks = key < piece.end ? table[key >> a.block_shift] : 0;
      }
      const int key = first + step * kTileKeys, valid = piece.end - key;
      const int64_t block = __shfl_sync(kAllLanes, blocks, step), slot = key & (a.block_size - 1);
      const T *k = k_head + block * a.k_block + slot * a.k_slot,
              *v = v_head + block * a.v_block + slot * a.v_slot;
      const uint32_t to = copy_to + step % stages * kStageBytes;
      if (which == Keys::all && valid >= kStepKeys) {
#pragma unroll
        for (int i = 0; i < kStepKeys / kCopyRows; ++i) {
          copy_of_line_async(to + i * kCopyRows * kRowBytes, k + i * kCopyRows * a.k_slot, true);
          copy_of_line_async(to + (kStepKeys + i * kCopyRows) * kRowBytes, v + i * kCopyRows * a.v_slot,
                             true);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kStepKeys / kCopyRows; ++i) {
          const int row = i * kCopyRows + copy_row;
          const bool is_own = key + row == piece.num_keys - 1;
          if (which != Keys::all && is_own != (which == Keys::own)) continue;
          // Zeros past the last key: the weights of these rows are 0, but 0 * NaN is not.
          copy_of_line_async(to + i * kCopyRows * kRowBytes, k + i * kCopyRows * a.k_slot, row < valid);
          copy_of_line_async(to + (kStepKeys + i * kCopyRows) * kRowBytes, v + i * kCopyRows * a.v_slot,
                             row < valid);
        }
      }
    }
    commit_copies();
  }

  // The row's own key, where it is among the steps that were copied without it.
  __device__ void copy_own(const Attention<T>& a, const Piece& piece) {
    const int own = piece.num_keys - 1 - first;
    if (piece.end == piece.num_keys && own >= 0 && own % kTileKeys < kStepKeys && own / kTileKeys < stages)
      copy(a, piece, own / kTileKeys, Keys::own);
  }
};

// One warp's softmax over its keys so far, of eight heads, as the accumulators of mma have it
// (tensor_core.cuh): lane 4 g + t has heads 2t and 2t + 1, and of the output dims 16 i + g and 16 i + 8 + g.
template <int dim>
struct DecodeState {
  static constexpr int kParts = dim / 16;

  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  float out[kParts][4] = {};  // not divided by the sum

  // Sixteen keys and values from shared memory, the first `valid` of them; q: the B operands of q^T.
  template <int row_bytes, class T>
  __device__ void attend_step(uint32_t keys, uint32_t values, const uint32_t (&q)[kParts][2], int valid,
                              float scale) {
    const int lane = threadIdx.x % kWarp;
    float s[4] = {}, odd[4] = {};  // two sums, so that an mma need not wait for the one before it
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      uint32_t k[4];
      load_matrices(k, keys + (lane % 16) * row_bytes + (2 * i + lane / 16) * 16);
      mma_16x8x16<T>(i % 2 == 0 ? s : odd, k, q[i]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) s[e] += odd[e];
    float correction[2];
    weigh_step(s, valid, scale, largest, sum, correction);
    const uint32_t p[2] = {transpose_8x8(pack_pair<T>(s[0], s[1])), transpose_8x8(pack_pair<T>(s[2], s[3]))};
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      uint32_t v[4];
      load_matrices<true>(v, values + (lane / 16 * 8 + lane % 8) * row_bytes + (2 * i + lane / 8 % 2) * 16);
      out[i][0] *= correction[0];
      out[i][1] *= correction[1];
      out[i][2] *= correction[0];
      out[i][3] *= correction[1];
      mma_16x8x16<T>(out[i], v, p);
    }
  }

  __device__ void store(WarpResult<dim>& result) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    store_state(largest, sum, result);
#pragma unroll
    for (int i = 0; i < kParts; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) result.out[2 * t + e % 2][i * 16 + e / 2 * 8 + g] = out[i][e];
  }
};

struct WaitForKernel {
  __device__ bool operator()() const {
    wait_for_previous_kernel();
    return false;
  }
};
// Whether the previous kernel has been waited for, and how that is done. `wait` is called once, after the
// first copies; its result says whether it has put the row's own key and value into the queue itself, as a
// kernel does that computes them too (paged_attention_cluster_decode_cuda.cu).
template <class Wait = WaitForKernel>
struct PreviousKernel {
  bool has_ended = false;
  Wait wait = {};
};

// Computes a piece; each warp's share is in shared.result(), until a barrier of the block frees it for the
// next piece. previous.has_ended is true afterwards. Every warp calls on_last_copy once, when it has nothing
// more to copy: what takes a trip to L2 (drawing the next piece) then passes while the last steps are
// computed.
template <int dim, int warps, int stages, class T, class OnLastCopy, class Wait>
__device__ void attend_piece(const Attention<T>& a, const Piece& piece, PreviousKernel<Wait>& previous,
                             DecodeShared<dim, warps, stages>& shared, OnLastCopy&& on_last_copy) {
  using Queue = StepQueue<dim, warps, stages, T>;
  const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
  Queue queue(a, piece, shared);
#pragma unroll 1
  for (int step = 0; step < stages; ++step)
    queue.copy(a, piece, step, previous.has_ended ? Keys::all : Keys::earlier);
  if (!previous.has_ended) {
    const bool has_own = previous.wait();
    previous.has_ended = true;
    if (!has_own) queue.copy_own(a, piece);
  }

  uint32_t q[dim / 16][2];  // dims 16 i + 2t, 16 i + 2t + 1 of head g, then the same of the second eight
  const T* q_row =
      a.q + a.query_start_loc[piece.seq] * a.q_token + (first_head(a, piece.head_tile) + g) * a.q_head;
  const bool has_head = g < heads_in_tile(a, piece.head_tile);
#pragma unroll
  for (int i = 0; i < dim / 16; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      q[i][half] = has_head ? *reinterpret_cast<const uint32_t*>(q_row + i * 16 + half * 8 + t * 2) : 0;

  DecodeState<dim> state;
  for (int step = 0; step < queue.steps; ++step) {
    if (step + 1 == queue.steps)
      wait_copies<0>();  // the row's own key too
    else
      wait_copies<stages - 1>();
    __syncwarp();
    state.template attend_step<Queue::kRowBytes, T>(queue.keys(step), queue.values(step), q,
                                                    queue.valid(piece, step), a.scale);
    __syncwarp();  // all lanes have read the step
    queue.copy(a, piece, step + stages, Keys::all);
    if (step + stages == queue.steps) on_last_copy();
  }
  if (queue.steps < stages) on_last_copy();
  state.store(shared.result(warp));
  __syncthreads();
}

// Four output elements of a partial result, and of several merged.
struct PartialQuad {
  float largest, sum;
  float4 value;
};

// part(i), i from 0 to count - 1, is a PartialQuad. Parts without keys may be among them.
template <class Part>
__device__ PartialQuad merge_parts(int count, Part&& part) {
  PartialQuad merged{-INFINITY, 0, {0, 0, 0, 0}};
#pragma unroll 4
  for (int i = 0; i < count; ++i) merged.largest = fmaxf(merged.largest, part(i).largest);
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const PartialQuad x = part(i);
    const float factor = x.largest == -INFINITY ? 0.0f : exp2f(x.largest - merged.largest);
    merged.sum += x.sum * factor;
    merged.value.x += x.value.x * factor;
    merged.value.y += x.value.y * factor;
    merged.value.z += x.value.z * factor;
    merged.value.w += x.value.w * factor;
  }
  return merged;
}

// The block's result for elements [element, element + 4) of a head of its tile, from its warps' results.
template <int warps, class ResultOf>
__device__ PartialQuad merge_warps(ResultOf&& result_of, int head, int element) {
  return merge_parts(warps, [&](int i) {
    auto& result = result_of(i);
    return PartialQuad{result.largest[head], result.sum[head],
                       *reinterpret_cast<float4*>(&result.out[head][element])};
  });
}

template <class T>
__device__ void store_result(const Attention<T>& a, int64_t row, int head, int element,
                             const PartialQuad& merged) {
  T* to = a.out + row * a.out_token + head * a.out_head + element;
  const float factor = 1 / merged.sum;
  to[0] = from_float<T>(merged.value.x * factor);
  to[1] = from_float<T>(merged.value.y * factor);
  to[2] = from_float<T>(merged.value.z * factor);
  to[3] = from_float<T>(merged.value.w * factor);
  if (element == 0) a.store_lse(row, head, merged.largest, merged.sum);
}

// Calls fn(head, element) for every fourth element of the tile's heads, over the block's threads.
template <int dim, int warps, class Fn>
__device__ void for_each_quad(int heads, Fn&& fn) {
  for (int index = threadIdx.x * 4; index < heads * dim; index += warps * kWarp * 4)
    fn(index / dim, index % dim);
}

// fn<head size>(the call's pointers and strides), for what paged_attention_takes_decode.
template <class Fn>
void with_decode_call(const PagedAttentionArgs& args, Fn&& fn) {
  auto call = [&](auto tag) {
    const auto a = attention_call<decltype(tag)>(args);
    if (a.k_dim == 64)
      fn.template operator()<64, decltype(tag)>(a);
    else if (a.k_dim == 128)
      fn.template operator()<128, decltype(tag)>(a);
    else
      fn.template operator()<256, decltype(tag)>(a);
  };
  if (args.q.dtype() == DType::f16)
    call(__half{});
  else
    call(__nv_bfloat16{});
}
bool paged_attention_takes_decode(const PagedAttentionArgs& args);

}  // namespace ladder
