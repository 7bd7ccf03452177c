#pragma once
// What the prefill kernels share: which rows a block computes, and how the keys of few rows are cut into
// parts.
//
// The query heads that share a key/value head are packed: the rows of a sequence are counted token after
// token, and within a token head after head, so that 128 rows are 128 / group tokens of a whole group. Keys
// are read once for the group, the mask cuts a smaller triangle, and a chunk of few tokens fills a tile.
#include <algorithm>
#include <limits>

#include "step1_layers/attention/paged_attention_cuda.cuh"

namespace ladder {

// The rungs of the table, and what attention_prefill chooses from.
void attention_prefill_tensor_core(const OpContext& ctx, const PagedAttentionArgs& args, bool with_single);
void attention_prefill_wgmma(const OpContext& ctx, const PagedAttentionArgs& args, bool with_single);

// Whether a block may have so much shared memory on this machine's GPU: 227 KB on the largest, 64 KB on the
// oldest.
bool fits_shared_memory(int64_t bytes);

// n / divisor as one multiplication. Exact for n * divisor < 2^32, and for every n where the divisor is a
// power of two.
struct Divider {
  uint32_t divisor, inverse;
  explicit Divider(int64_t by)
      : divisor(static_cast<uint32_t>(by)),
        inverse(static_cast<uint32_t>(((int64_t{1} << 32) + by - 1) / by)) {}
  __device__ int operator()(int n) const {
    return divisor == 1 ? n : static_cast<int>(__umulhi(static_cast<uint32_t>(n), inverse));
  }
};

// The work of all blocks stands in one line of units: sequence after sequence; its last rows first, since
// they see the most keys and the longest must not start last; key/value heads side by side; then the parts of
// the keys. The host does not know the lengths of the sequences, so it launches as many blocks as it guesses
// to be units, and they take every grid-th unit.
struct PrefillLine {
  int min_rows, max_rows;  // query rows of the sequences that are part of it
  int rows, keys;          // packed rows of a block; keys go through it in tiles of so many, from key 0 on
  int causal;              // 1; 0: every row sees all keys
  int parts;               // that the keys of an item are cut into, between tiles, at most
  int cut_items;           // items that the scratch has room for: those after them stay whole
  Divider group, block_size;

  template <class T>
  PrefillLine(const Attention<T>& a, int rows, int keys, int min_rows, int max_rows)
      : min_rows(min_rows),
        max_rows(max_rows),
        rows(rows),
        keys(keys),
        causal(a.causal),
        parts(1),
        cut_items(0),
        group(a.group),
        block_size(a.block_size) {}
};

// Packed rows of one sequence and key/value head, and a part of the keys that they see.
struct PrefillItem {
  int64_t seq, first_token;  // of the batch's rows: the sequence's first
  int index;                 // of the item in the line
  int kv_head;
  int first_row, rows;          // packed rows, counted from the sequence's first
  int first_position;           // of the sequence's first token, or the last key where there is no mask
  int keys;                     // that the last row sees
  int part, parts, begin, end;  // tiles of keys: [begin, end)

  // Of row `row` of the item: the token, counted from the sequence's first; the last key that it sees; the query head.
  __device__ int token(const PrefillLine& line, int row) const { return line.group(first_row + row); }
  __device__ int position(const PrefillLine& line, int row) const {
    return first_position + line.causal * token(line, row);
  }
  __device__ int head(const PrefillLine& line, int row) const {
    const int group = static_cast<int>(line.group.divisor);
    return kv_head * group + first_row + row - token(line, row) * group;
  }
};

// Unit `unit` of the line; false past its end. Called by whole warps, each for itself.
template <class T>
__device__ bool find_item(const Attention<T>& a, const PrefillLine& line, int unit, PrefillItem& item) {
  const int lane = threadIdx.x % kWarp;
  item.index = unit / line.parts;
  item.part = unit % line.parts;
  int left = item.index;
  for (int64_t first = 0; first < a.num_seqs; first += kWarp) {
    const int64_t seq = first + lane;
    int start = 0, query_len = 0, num_keys = 0;
    if (seq < a.num_seqs) {
      start = a.query_start_loc[seq];
      query_len = a.query_start_loc[seq + 1] - start;
      num_keys = a.seq_lens[seq];
    }
    const bool counts = num_keys > 0 && query_len >= line.min_rows && query_len <= line.max_rows;
    const int items = counts ? ceil_div(query_len * a.group, line.rows) * a.kv_heads : 0;
    int sum = items;  // inclusive
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, offset);
      if (lane >= offset) sum += other;
    }
    const unsigned reaches = __ballot_sync(kAllLanes, sum > left);
    if (reaches == 0) {
      left -= __shfl_sync(kAllLanes, sum, kWarp - 1);
      continue;
    }
    const int found = __ffs(static_cast<int>(reaches)) - 1;
    left -= __shfl_sync(kAllLanes, sum - items, found);
    query_len = __shfl_sync(kAllLanes, query_len, found);
    num_keys = __shfl_sync(kAllLanes, num_keys, found);
    const int packed = query_len * a.group;
    item.seq = first + found;
    item.first_token = __shfl_sync(kAllLanes, start, found);
    item.kv_head = left % a.kv_heads;
    item.first_row = (ceil_div(packed, line.rows) - 1 - left / a.kv_heads) * line.rows;
    item.rows = packed - item.first_row < line.rows ? packed - item.first_row : line.rows;
    item.first_position = num_keys - (line.causal != 0 ? query_len : 1);
    item.keys = item.position(line, item.rows - 1) + 1;
    const int tiles = ceil_div(item.keys, line.keys);
    item.parts = item.index < line.cut_items ? (line.parts < tiles ? line.parts : tiles) : 1;
    item.begin = static_cast<int>(int64_t{tiles} * item.part / item.parts);
    item.end = static_cast<int>(int64_t{tiles} * (item.part + 1) / item.parts);
    return true;
  }
  return false;
}

// Packed rows of a block, where keys may be cut into parts.
inline constexpr int kPrefillRows = 128;

// One instruction; results below the smallest normal number become 0.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The state of a softmax over a part of the keys; part p of item i stands at [i * line.parts + p].
template <int dim>
struct PrefillPart {
  float largest[kPrefillRows], sum[kPrefillRows];
  float out[kPrefillRows][dim];  // not divided by the sum
};

// How many items the host guesses the line to have. The longest sequence is known. The others have a row
// each, and what is left is spread among them; where single rows do not count, it takes a further row for one
// to count.
template <class T>
int64_t guess_items(const Attention<T>& a, const PrefillLine& line) {
  const int64_t longest = std::min<int64_t>(a.max_query_len, line.max_rows);
  const int64_t others = a.num_seqs - 1, rest = a.num_tokens - a.max_query_len;
  const int64_t spread = std::clamp<int64_t>(line.min_rows > 1 ? rest - others : others, 0, others);
  int64_t row_blocks = ceil_div<int64_t>(longest * a.group, line.rows);
  if (spread > 0) row_blocks += spread + std::min(rest, others * line.max_rows) * a.group / line.rows;
  return row_blocks * a.kv_heads;
}

// Cuts the keys of `items` into parts, `room` parts in all, where that keeps more of the blocks at work of
// which `resident` run at a time.
inline void cut_keys(PrefillLine& line, int64_t items, int64_t max_seq_len, int64_t resident, int64_t room) {
  if (items >= resident) return;
  constexpr int64_t kMinKeys = 512;
  constexpr double kCost = 0.02;  // of a part, which must be merged
  double best = 0;
  for (int parts = 1; parts <= max_seq_len / kMinKeys && items * parts <= room && parts <= 16; ++parts) {
    const int64_t units = items * parts;
    const double fill =
        static_cast<double>(units) / static_cast<double>(ceil_div(units, resident) * resident);
    const double worth = fill / (1 + kCost * (parts - 1));
    if (worth <= best) continue;
    best = worth;
    line.parts = parts;
  }
  if (line.parts > 1) line.cut_items = static_cast<int>(items);
}

// Merges the parts of every item that was cut, and writes its rows. A warp takes a row.
template <int dim, class T>
__global__ void __launch_bounds__(128)
    prefill_merge(Attention<T> a, PrefillLine line, const PrefillPart<dim>* parts) {
  constexpr int kRowsPerBlock = 16, kSlices = kPrefillRows / kRowsPerBlock, kPerLane = dim / kWarp;
  allow_next_kernel();
  wait_for_previous_kernel();
  PrefillItem item;
  if (!find_item(a, line, static_cast<int>(blockIdx.x) / kSlices * line.parts, item) || item.parts == 1)
    return;
  const PrefillPart<dim>* from = parts + int64_t{item.index} * line.parts;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first = static_cast<int>(blockIdx.x) % kSlices * kRowsPerBlock + warp * (kRowsPerBlock / 4);
  for (int row = first; row < first + kRowsPerBlock / 4 && row < item.rows; ++row) {
    float largest = -INFINITY, sum = 0, value[kPerLane] = {};
    for (int p = 0; p < item.parts; ++p) largest = fmaxf(largest, from[p].largest[row]);
    for (int p = 0; p < item.parts; ++p) {
      const float factor =
          exp2f(from[p].largest[row] - largest);  // 0 for a part of which the row sees no key
      sum += from[p].sum[row] * factor;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) value[i] += from[p].out[row][i * kWarp + lane] * factor;
    }
    const int64_t token = item.first_token + item.token(line, row);
    const int head = item.head(line, row);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      a.out[token * a.out_token + head * a.out_head + i * kWarp + lane] = from_float<T>(value[i] / sum);
    if (lane == 0) a.store_lse(token, head, largest, sum);
  }
}

// Calls launch(line, blocks, scratch for parts), and merges the parts. `with_single`: sequences of one query
// row take part.
template <int dim, class T, class Launch>
void run_prefill(const OpContext& ctx, const Attention<T>& a, int tile_keys, bool with_single, bool may_cut,
                 int64_t max_seq_len, int64_t blocks_per_multiprocessor, Launch&& launch) {
  PrefillLine line(a, kPrefillRows, tile_keys, with_single ? 1 : 2, std::numeric_limits<int>::max());
  const int64_t items = guess_items(a, line);
  if (may_cut)
    cut_keys(line, items, max_seq_len, blocks_per_multiprocessor * ctx.cuda->num_multiprocessors(),
             CudaContext::kWorkspaceBytes / static_cast<int64_t>(sizeof(PrefillPart<dim>)));
  auto* parts = static_cast<PrefillPart<dim>*>(ctx.cuda->workspace());
  launch(line, items * line.parts, parts);
  if (line.parts > 1)
    launch_kernel(ctx, prefill_merge<dim, T>, static_cast<unsigned>(items * 8), 128, 0, a, line, parts);
}

}  // namespace ladder
