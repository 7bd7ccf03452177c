// Attention on the ordinary cores, for every type: what f32 runs on, and GPUs without the tensor cores'
// rungs.
#include "step1_layers/attention/paged_attention_prefill_cuda.cuh"
#include "step1_layers/core/packed.h"

namespace ladder {

namespace {

// tiled
// Any type and block size, K and V heads of up to 256 elements in whole 16-byte packs. The naive rung reads
// every key again for every query row and head, and adds up each score by shuffles. Here a block computes up
// to 64 packed query rows of one key/value head (paged_attention_prefill_cuda.cuh) and brings tiles of 64
// keys to shared memory as floats, so that a key is read once for all its rows. Both products are made as a
// tiled matrix product: a thread has the scores of 8 rows and 4 keys in registers, and a sum of 8 rows and
// dim / 16 elements, so that what it reads from shared memory is used 4 to 8 times; a row lies in 16
// neighbouring lanes, which share its softmax. Tiles start at key 0 and a masked key changes nothing, and
// sequences of one row take the same steps with fewer rows to a thread: a row's result depends on its
// position alone.
constexpr int kThreads = 128, kKeys = 64, kLanes = 16;  // lanes that share a row
constexpr int kThreadRows = kThreads / kLanes;          // that the threads have at a time

template <int dim, int per_thread>
constexpr int kShared = (per_thread * kThreadRows * (dim + kKeys) + 2 * kKeys * dim) * 4;

// Where four floats stand in a row of `width` floats, so that neither neighbouring rows nor every fourth row
// meet in the same banks.
template <int width>
__device__ int place(int row, int chunk) {
  return row * width + (chunk ^ ((row ^ row >> 2) & 7)) * 4;
}

__device__ float4 read4(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}
__device__ float dot(const float4& x, const float4& y, float sum) {
  return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

// `width` elements from memory into a row of `dim` floats; what is missing is zero.
template <int dim, class T>
__device__ void bring(float* tile, int row, int pack, const T* from, int width, bool valid) {
  constexpr int kSize = Pack<T>::kSize;
  const bool there = valid && pack * kSize < width;
  const Pack<T> values = there ? load_pack(from + pack * kSize) : zero_pack<T>();
#pragma unroll
  for (int i = 0; i < kSize; i += 4)
    *reinterpret_cast<float4*>(tile + place<dim>(row, (pack * kSize + i) / 4)) =
        float4{to_float(values.value[i]), to_float(values.value[i + 1]), to_float(values.value[i + 2]),
               to_float(values.value[i + 3])};
}

template <int dim, int per_thread, class T>
__device__ void attend_item(const Attention<T>& a, const PrefillLine& line, const PrefillItem& item,
                            float* shared) {
  constexpr int kRows = per_thread * kThreadRows, kPacks = dim / Pack<T>::kSize, kColumns = dim / 64;
  float *queries = shared, *keys = queries + kRows * dim, *values = keys + kKeys * dim,
        *weights = values + kKeys * dim;
  const int lane = threadIdx.x % kLanes, thread_row = threadIdx.x / kLanes;
  const int32_t* table = a.block_tables + item.seq * a.table_stride;
  const T *k = a.k + item.kv_head * a.k_head, *v = a.v + item.kv_head * a.v_head;

  for (int index = threadIdx.x; index < kRows * kPacks; index += kThreads) {
    const int row = index / kPacks, from = row < item.rows ? row : 0;
    bring<dim>(
        queries, row, index % kPacks,
        a.q + (item.first_token + item.token(line, from)) * a.q_token + item.head(line, from) * a.q_head,
        a.k_dim, row < item.rows);
  }

  // Rows thread_row + 8 i, elements 64 c + 4 lane to 64 c + 4 lane + 3.
  float4 out[per_thread][kColumns] = {};
  float largest[per_thread], sum[per_thread] = {};  // the sum is that of this lane's keys
#pragma unroll
  for (int i = 0; i < per_thread; ++i) largest[i] = -INFINITY;

  for (int tile = item.begin; tile < item.end; ++tile) {
    __syncthreads();  // all are done with the tile before
#pragma unroll 4
    for (int step = 0; step < kKeys * kPacks / kThreads; ++step) {
      const int index = step * kThreads + threadIdx.x, row = index / kPacks, pack = index % kPacks;
      const int key = tile * kKeys + row;
      const bool valid = key < item.keys;
      const int page = valid ? line.block_size(key) : 0;
      const int64_t block = table[page], slot = valid ? key - page * a.block_size : 0;
      bring<dim>(keys, row, pack, k + block * a.k_block + slot * a.k_slot, a.k_dim, valid);
      bring<dim>(values, row, pack, v + block * a.v_block + slot * a.v_slot, a.v_dim, valid);
    }
    __syncthreads();

    float scores[per_thread][4] = {};  // of keys 4 lane to 4 lane + 3
#pragma unroll 2
    for (int chunk = 0; chunk < dim / 4; ++chunk) {
      float4 key[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) key[j] = read4(keys + place<dim>(4 * lane + j, chunk));
#pragma unroll
      for (int i = 0; i < per_thread; ++i) {
        const float4 query = read4(queries + place<dim>(thread_row + kThreadRows * i, chunk));
#pragma unroll
        for (int j = 0; j < 4; ++j) scores[i][j] = dot(query, key[j], scores[i][j]);
      }
    }

    const bool whole = (tile + 1) * kKeys <= item.position(line, 0) + 1;  // every row sees every key
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
      const int row = thread_row + kThreadRows * i;
      const int seen = whole ? kKeys : item.position(line, row) + 1 - tile * kKeys;
      float tile_largest = -INFINITY;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[i][j] = 4 * lane + j < seen ? scores[i][j] * a.scale : -INFINITY;
        tile_largest = fmaxf(tile_largest, scores[i][j]);
      }
      // Every row sees key 0, so after the first tile its largest score is finite.
      const float new_largest = fmaxf(largest[i], warp_max<kLanes>(tile_largest));
      const float correction = exp2f(largest[i] - new_largest);
      largest[i] = new_largest;
      float4 weight;
      weight.x = exp2f(scores[i][0] - new_largest);
      weight.y = exp2f(scores[i][1] - new_largest);
      weight.z = exp2f(scores[i][2] - new_largest);
      weight.w = exp2f(scores[i][3] - new_largest);
      sum[i] = fmaf(sum[i], correction, (weight.x + weight.y) + (weight.z + weight.w));
      *reinterpret_cast<float4*>(weights + place<kKeys>(row, lane)) = weight;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        out[i][c].x *= correction;
        out[i][c].y *= correction;
        out[i][c].z *= correction;
        out[i][c].w *= correction;
      }
    }
    __syncwarp();  // the lanes of a row see its weights

#pragma unroll 1
    for (int chunk = 0; chunk < kKeys / 4; ++chunk) {
      float4 weight[per_thread];
#pragma unroll
      for (int i = 0; i < per_thread; ++i)
        weight[i] = read4(weights + place<kKeys>(thread_row + kThreadRows * i, chunk));
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const float4 value = read4(values + place<dim>(chunk * 4 + j, c * 16 + lane));
#pragma unroll
          for (int i = 0; i < per_thread; ++i) {
            const float w = j == 0 ? weight[i].x : j == 1 ? weight[i].y : j == 2 ? weight[i].z : weight[i].w;
            out[i][c].x = fmaf(w, value.x, out[i][c].x);
            out[i][c].y = fmaf(w, value.y, out[i][c].y);
            out[i][c].z = fmaf(w, value.z, out[i][c].z);
            out[i][c].w = fmaf(w, value.w, out[i][c].w);
          }
        }
    }
  }

#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int row = thread_row + kThreadRows * i;
    const float total = warp_sum<kLanes>(sum[i]);
    if (row >= item.rows) continue;
    const int64_t token = item.first_token + item.token(line, row);
    const int head = item.head(line, row);
    T* to = a.out + token * a.out_token + head * a.out_head;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float values_of[4] = {out[i][c].x, out[i][c].y, out[i][c].z, out[i][c].w};
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (64 * c + 4 * lane + e < a.v_dim) to[64 * c + 4 * lane + e] = from_float<T>(values_of[e] / total);
    }
    if (lane == 0) a.store_lse(token, head, largest[i], total);
  }
}

template <int dim, int per_thread, class T>
__global__ void __launch_bounds__(kThreads, dim == 256 ? 1 : 2)
    attention_tiled(Attention<T> a, PrefillLine line) {
  extern __shared__ __align__(16) float tiles[];
  allow_next_kernel();
  wait_for_previous_kernel();
  PrefillItem item;
  for (int unit = static_cast<int>(blockIdx.x); find_item(a, line, unit, item);
       unit += static_cast<int>(gridDim.x)) {
    attend_item<dim, per_thread>(a, line, item, tiles);
    __syncthreads();  // the queries' place is free again
  }
}

template <int dim, int per_thread, class T>
void launch(const OpContext& ctx, const Attention<T>& a, int min_rows, int max_rows) {
  auto kernel = attention_tiled<dim, per_thread, T>;
  constexpr int kBytes = kShared<dim, per_thread>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), kBytes);
  const PrefillLine line(a, per_thread * kThreadRows, kKeys, min_rows, max_rows);
  launch_kernel(ctx, kernel, static_cast<unsigned>(guess_items(a, line)), kThreads, kBytes, a, line);
}

template <int dim, class T>
void launch_both(const OpContext& ctx, const Attention<T>& a) {
  if (may_have_single_rows(a)) launch<dim, 1>(ctx, a, 1, 1);
  if (a.max_query_len > 1) launch<dim, 8>(ctx, a, 2, std::numeric_limits<int>::max());
}

}  // namespace

void paged_attention_cuda_tiled(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens == 0) return;
  with_cuda_type(args.q.dtype(), [&](auto tag) {
    const auto a = attention_call<decltype(tag)>(args);
    const int dim = std::max(a.k_dim, a.v_dim);
    if (dim <= 64)
      launch_both<64>(ctx, a);
    else if (dim <= 128)
      launch_both<128>(ctx, a);
    else
      launch_both<256>(ctx, a);
  });
}

bool paged_attention_takes_tiled(const PagedAttentionArgs& args) {
  const int64_t dim = std::max(args.q.dim(2), args.cache.v.dim(3));
  const int shared = dim <= 64 ? kShared<64, 8> : dim <= 128 ? kShared<128, 8> : kShared<256, 8>;
  return dim <= 256 && fits_shared_memory(shared) && is_packed(args.q) && is_packed(args.cache.k) &&
         is_packed(args.cache.v);
}

}  // namespace ladder
