#include "step1_layers/attention/qk_norm_rope_store_cuda.h"

#include "step1_layers/attention/norm_rotate_cuda.cuh"
#include "step1_layers/attention/store_kv_codes_cuda.h"
#include "step1_layers/attention/store_kv_cuda.cuh"
#include "step1_layers/attention/store_kv_cuda.h"
#include "step1_layers/core/packed.h"

namespace ladder {

namespace {

constexpr int kThreads = 128;

template <class T>
struct Fused {
  Store<T> store;  // of `tokens` rows; those past num_slots are padding
  T* q;
  int64_t q_token, q_head, tokens, heads, num_slots;
  const T *q_weight, *k_weight;  // nullptr: no norm
  const int32_t* positions;
  const float* table;
  int64_t table_stride;
  float eps;
};

// fused
// head_dim = rotary_dim = v_dim of 64, 128 or 256, everything in whole 16-byte packs. The rung below runs
// four kernels and takes q and k through memory three times; here every head is read once and written once,
// keys straight into the cache. A group of neighbouring lanes owns a head at a time (norm_rotate_cuda.cuh).
// With few tokens a group takes one head, which spreads the work over the chip.
// With many (batch 2) a warp takes two rows of neighbouring heads, all of q, of k or of v: the angles, times
// the weights, are made half as often, since instructions count here, and 64 bytes per lane are in
// flight. More of either costs: what is in flight at one time should lie close together. Positions, slots,
// angles and weights are read before the wait for the previous kernel (kv_cache.h).
template <int head_dim, int batch, class T>
__global__ void __launch_bounds__(kThreads, batch > 1 ? 7 : 6) qk_norm_rope_store_kernel(Fused<T> f) {
  constexpr int kSize = Pack<T>::kSize, kHalf = head_dim / 2, kLanes = NormRotate<head_dim, T>::kLanes;
  constexpr uint32_t kNeighbours = batch > 1 ? kWarp / kLanes : 1, kHeads = batch * kNeighbours;
  allow_next_kernel();
  const uint32_t group = (blockIdx.x * kThreads + threadIdx.x) / kLanes, unit = group / kNeighbours;
  const int first = threadIdx.x % kLanes * kSize;
  const auto q_units = static_cast<uint32_t>(f.heads) / kHeads,
             kv_units = static_cast<uint32_t>(f.store.heads) / kHeads;
  const uint32_t token = unit / (q_units + 2 * kv_units), in_token = unit % (q_units + 2 * kv_units);
  const bool inside = token < f.tokens, is_query = in_token < q_units,
             is_value = in_token >= q_units + kv_units;
  const int64_t slot = inside && !is_query && token < f.num_slots ? f.store.slots[token] : -1;
  const int32_t position = inside ? f.positions[token] : 0;
  const bool stores = inside && (is_query || slot >= 0);
  const T* weight = is_query ? f.q_weight : f.k_weight;

  NormRotate<head_dim, T> rotation;
  if (!is_value)
    rotation.load(f.table + position * f.table_stride + first, weight == nullptr ? nullptr : weight + first);

  const Side<T>& side = is_value ? f.store.v : f.store.k;
  const uint32_t head =
      (in_token - (is_query ? 0 : q_units) - (is_value ? kv_units : 0)) * kHeads + group % kNeighbours;
  const T* from = (is_query ? f.q + token * f.q_token + head * f.q_head : side.source(token, head)) + first;
  const int64_t from_stride = kNeighbours * (is_query ? f.q_head : side.head);  // between a lane's heads
  wait_for_previous_kernel();
  Pack<T> packs[batch][2];
  if (stores) {
#pragma unroll
    for (int i = 0; i < batch; ++i)
#pragma unroll
      for (int part = 0; part < 2; ++part)
        packs[i][part] = load_pack_once(from + i * from_stride + part * kHalf);
  }
  T* to = const_cast<T*>(from);  // q in place
  int64_t to_stride = from_stride;
  if (!is_query) {
    to = side.target(slot, f.store.block_size, head) + first;
    to_stride = kNeighbours * side.cache_head;
  }
#pragma unroll
  for (int i = 0; i < batch; ++i) {
    rotation.apply(packs[i], stores && !is_value, weight != nullptr, f.eps);
    if (!stores) continue;
#pragma unroll
    for (int part = 0; part < 2; ++part) store_pack_once(to + i * to_stride + part * kHalf, packs[i][part]);
  }
}

}  // namespace

void qk_norm_rope_store_cuda_fused(const OpContext& ctx, const QkNormRopeStoreArgs& args) {
  const Tensor& q = args.q;
  if (q.dim(0) == 0) return;
  if (args.cache.kept_as != KvCacheDType::automatic) return qk_norm_rope_store_codes_cuda(ctx, args);
  check_slots(args.cache);
  with_cuda_type(q.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const Fused<T> f{.store = store<T>({args.k, args.v, args.slot_mapping, args.cache}),
                     .q = cuda_data<T>(q),
                     .q_token = q.stride(0),
                     .q_head = q.stride(1),
                     .tokens = q.dim(0),
                     .heads = q.dim(1),
                     .num_slots = args.slot_mapping.dim(0),
                     .q_weight = cuda_data<T>(args.q_norm_weight),
                     .k_weight = cuda_data<T>(args.k_norm_weight),
                     .positions = cuda_data<int32_t>(args.positions),
                     .table = cuda_data<float>(args.table),
                     .table_stride = args.table.stride(0),
                     .eps = static_cast<float>(args.eps)};
    auto launch = [&]<int head_dim, int batch>() {
      const int64_t groups = q.dim(0) * ((q.dim(1) + 2 * args.k.dim(1)) / batch);
      const int64_t threads = groups * (head_dim / 2 / Pack<T>::kSize);
      const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(threads, kThreads));
      launch_kernel(ctx, qk_norm_rope_store_kernel<head_dim, batch, T>, blocks, kThreads, 0, f);
    };
    auto launch_dim = [&]<int head_dim>() {
      constexpr int kBatch = 2, kHeads = kBatch * kWarp / (head_dim / 2 / Pack<T>::kSize);
      // Whether batches fit, and still give every multiprocessor a few blocks.
      const int64_t threads = q.numel() / (2 * Pack<T>::kSize * kBatch);
      if (q.dim(1) % kHeads == 0 && args.k.dim(1) % kHeads == 0 &&
          threads > 3 * kThreads * ctx.cuda->num_multiprocessors())
        launch.template operator()<head_dim, kBatch>();
      else
        launch.template operator()<head_dim, 1>();
    };
    if (q.dim(2) == 64)
      launch_dim.template operator()<64>();
    else if (q.dim(2) == 128)
      launch_dim.template operator()<128>();
    else if constexpr (sizeof(T) == 2)
      launch_dim.template operator()<256>();
  });
}

bool qk_norm_rope_store_can_fuse(const QkNormRopeStoreArgs& args) {
  if (args.cache.kept_as != KvCacheDType::automatic) return qk_norm_rope_store_codes_can_fuse(args);
  const int64_t head_dim = args.q.dim(2);
  const int64_t lanes = head_dim / 2 * dtype_size(args.q.dtype()) / 16;
  auto packed_or_absent = [](const Tensor& weight) { return !weight.defined() || is_packed(weight); };
  return (head_dim == 64 || head_dim == 128 || head_dim == 256) && lanes < kWarp &&
         args.q.numel() < int64_t{1} << 31 && args.table.dim(1) == head_dim && args.v.dim(2) == head_dim &&
         is_packed(args.q) && is_packed(args.table) &&
         store_kv_is_packed({args.k, args.v, args.slot_mapping, args.cache}) &&
         packed_or_absent(args.q_norm_weight) && packed_or_absent(args.k_norm_weight);
}

}  // namespace ladder
