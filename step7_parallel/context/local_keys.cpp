#include "step7_parallel/context/local_keys.h"

#include <algorithm>
#include <vector>

namespace ladder {

LocalRound::LocalRound(int ranks, int64_t run, int of_rank, Device device)
    : kv{ranks, run, ranks * run}, rank(of_rank) {
  std::vector<int32_t> slot_of, count_of;
  for (int64_t offset = 0; offset < kv.block; ++offset) {
    slot_of.push_back(static_cast<int32_t>(local_kv_slot(kv, offset, rank)));
    count_of.push_back(static_cast<int32_t>(local_kv_length(kv, offset, rank)));
  }
  slots = Tensor::from<int32_t>(slot_of, {kv.block}).to(device);
  counts = Tensor::from<int32_t>(count_of, {kv.block}).to(device);
}

namespace {

void find_one_by_one(const OpContext&, const LocalKeysArgs& args) {
  const LocalRound& round = *args.round;
  const int64_t whole = round.kv.block, part = round.kv.run, num_seqs = args.seq_lens.dim(0);
  const int32_t *slot_of = round.slots.data<int32_t>(), *count_of = round.counts.data<int32_t>();
  const int32_t *starts = args.query_start_loc.data<int32_t>(), *seq_lens = args.seq_lens.data<int32_t>();
  const int64_t* mapping = args.slot_mapping.data<int64_t>();
  const auto local_slot = [&](int64_t slot) {
    if (slot < 0 || slot_of[slot % whole] < 0) return int64_t{-1};
    return slot / whole * part + slot_of[slot % whole];
  };
  const bool has_fresh = args.fresh_slots.defined();
  int64_t* slots = args.slots.data<int64_t>();
  if (has_fresh) {
    std::fill_n(slots, args.slots.numel(), -1);
    std::fill_n(args.fresh_slots.data<int64_t>(), args.fresh_slots.numel(), -1);
  } else {
    std::transform(mapping, mapping + args.slots.numel(), slots, local_slot);
  }
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const int64_t rows = starts[seq + 1] - starts[seq],
                  length = std::max<int64_t>(seq_lens[seq] - (has_fresh ? rows : 0), 0);
    args.lengths.data<int32_t>()[seq] =
        static_cast<int32_t>(length / whole * part + count_of[length % whole]);
    if (!has_fresh) continue;
    const int64_t first_block = starts[seq] / kFreshSlots + seq;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t fresh = first_block * kFreshSlots + row;
      args.fresh_slots.data<int64_t>()[starts[seq] + row] = fresh;
      slots[fresh] = local_slot(mapping[starts[seq] + row]);
    }
    args.fresh_lengths.data<int32_t>()[seq] = static_cast<int32_t>(std::min<int64_t>(rows, seq_lens[seq]));
    int32_t* table = args.fresh_tables.data<int32_t>() + seq * args.fresh_tables.stride(0);
    for (int64_t i = 0; i < args.fresh_tables.dim(1); ++i) table[i] = static_cast<int32_t>(first_block + i);
  }
}

constexpr Variant<LocalKeysArgs> kVariants[] = {
    {.name = "loop", .idea = "sequence by sequence", .run = find_one_by_one},
#ifdef LADDER_HAS_CUDA
    {.name = "one_kernel",
     .device = DeviceType::cuda,
     .idea = "a thread per row, slot, sequence and table entry; a row looks its sequence up",
     .run = find_local_keys_cuda},
#endif
};

}  // namespace

std::span<const Variant<LocalKeysArgs>> local_keys_variants() {
  return kVariants;
}

void find_local_keys(const OpContext& ctx, const LocalKeysArgs& args) {
  run_variant("local_keys", local_keys_variants(), ctx, args);
}

LocalStep local_step(const OpContext& ctx, const LocalRound& round, const AttentionMetadata& metadata,
                     const Tensor& slot_mapping, const KvCacheView& cache) {
  const int64_t num_seqs = metadata.num_seqs, rows = slot_mapping.dim(0);
  const auto ints = [&](const Shape& shape) { return ctx.arena->take(shape, DType::i32); };
  LocalStep step;
  step.local = metadata;
  step.local.seq_lens = ints({num_seqs});
  step.local.max_seq_len = local_kv_length(round.kv, metadata.max_seq_len, 0);  // no rank has more
  LocalKeysArgs args;
  args.round = &round;
  args.slot_mapping = slot_mapping;
  args.query_start_loc = metadata.query_start_loc;
  args.seq_lens = metadata.seq_lens;
  args.lengths = step.local.seq_lens;
  if (metadata.max_query_len <= 1) {
    args.slots = step.slots = ctx.arena->take({rows}, DType::i64);
    find_local_keys(ctx, args);
    return step;
  }
  const int64_t blocks = fresh_blocks(metadata.num_tokens, num_seqs), heads = cache.k.dim(2);
  const auto keys = [&](const Tensor& like) {
    return ctx.arena->take({blocks, kFreshSlots, heads, like.dim(3)}, like.dtype());
  };
  step.fresh = {keys(cache.k), keys(cache.v)};
  args.slots = step.slots = ctx.arena->take({blocks * kFreshSlots}, DType::i64);
  args.fresh_slots = step.fresh_slots = ctx.arena->take({rows}, DType::i64);
  step.fresh_keys = metadata;
  args.fresh_lengths = step.fresh_keys.seq_lens = ints({num_seqs});
  args.fresh_tables = step.fresh_keys.block_tables =
      ints({num_seqs, (metadata.max_query_len - 1) / kFreshSlots + 1});
  step.fresh_keys.max_seq_len = metadata.max_query_len;
  find_local_keys(ctx, args);
  return step;
}

}  // namespace ladder
