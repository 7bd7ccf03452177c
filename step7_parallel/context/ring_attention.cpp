#include "step7_parallel/context/ring_attention.h"

#include <utility>
#include <vector>

#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/context/lse_merge.h"
#include "step7_parallel/context/zigzag.h"

namespace ladder {
namespace {

void check(const Communicator& group, const RingAttentionArgs& args, const ZigzagShare& share) {
  const int64_t dim = args.q.ndim() == 3 ? args.q.dim(2) : 0;
  LADDER_CHECK(
      args.q.ndim() == 3 && args.k.ndim() == 3 && args.k.dim(1) > 0 && args.q.dim(1) % args.k.dim(1) == 0,
      "ring attention of queries {} and keys {}", args.q.str(), args.k.str());
  LADDER_CHECK(args.q.dim(0) == share.size(), "rank {} of {} holds {} of {} tokens, the queries are {}",
               group.rank(), group.size(), share.size(), args.length, args.q.str());
  LADDER_CHECK(
      args.k.shape() == Shape({share.size(), args.k.dim(1), dim}) && args.v.shape() == args.k.shape(),
      "ring attention of queries {}, keys {} and values {}", args.q.str(), args.k.str(), args.v.str());
  LADDER_CHECK(args.out.shape() == args.q.shape(), "ring attention of {} into {}", args.q.str(),
               args.out.str());
  for (const Tensor* tensor : {&args.q, &args.k, &args.v, &args.out})
    LADDER_CHECK(tensor->dtype() == DType::f32 && tensor->device() == Device{} && tensor->is_contiguous(),
                 "ring attention is there for contiguous f32 on the CPU, this is {}", tensor->str());
}

// The keys and values that a rank has in hand.
struct KeysInHand {
  Tensor k, v;  // [rows, kv_heads, dim]
};

// Queries [rows, heads, dim] against the first `keys` of those in hand: the rows are the last of them where causal, else
// each row sees all. The keys are a paged cache of one block.
void attend(const OpContext& ctx, const Tensor& q, const KeysInHand& hand, int64_t keys, bool causal,
            double scale, const Tensor& out, const Tensor& lse) {
  const int64_t rows = q.dim(0), num_seqs = causal ? 1 : rows;
  std::vector<int32_t> starts, lengths(static_cast<size_t>(num_seqs), static_cast<int32_t>(keys));
  for (int64_t seq = 0; seq <= num_seqs; ++seq)
    starts.push_back(static_cast<int32_t>(causal ? seq * rows : seq));
  AttentionMetadata metadata;
  metadata.query_start_loc = Tensor::from<int32_t>(starts, {num_seqs + 1});
  metadata.seq_lens = Tensor::from<int32_t>(lengths, {num_seqs});
  metadata.block_tables = Tensor::zeros({num_seqs, 1}, DType::i32);
  metadata.num_seqs = num_seqs;
  metadata.num_tokens = rows;
  metadata.max_query_len = causal ? rows : 1;
  metadata.max_seq_len = keys;
  auto one_block = [](const Tensor& t) { return t.view({1, t.dim(0), t.dim(1), t.dim(2)}); };
  paged_attention(ctx, q, {one_block(hand.k), one_block(hand.v)}, metadata, scale, out, lse);
}

}  // namespace

// >>> task 7.10: the ring
namespace {

// Sends `mine` to the next rank and receives the previous one's into `next`. A send ends when it is received, so that in a
// circle in which all send first nobody would receive.
void pass_on(const OpContext& ctx, Communicator& group, const KeysInHand& mine, const KeysInHand& next) {
  const int size = group.size(), rank = group.rank(), to = (rank + 1) % size, from = (rank + size - 1) % size;
  auto send = [&] {
    group.send(ctx, mine.k, to);
    group.send(ctx, mine.v, to);
  };
  auto recv = [&] {
    group.recv(ctx, next.k, from);
    group.recv(ctx, next.v, from);
  };
  if (rank % 2 == 0) {
    send();
    recv();
  } else {
    recv();
    send();
  }
}

}  // namespace

void ring_attention(const OpContext& ctx, Communicator& group, const RingAttentionArgs& args) {
  const int size = group.size(), rank = group.rank();
  const ZigzagShare mine = zigzag_share(args.length, size, rank);
  check(group, args, mine);
  const Tensor lse = Tensor::empty({mine.size(), args.q.dim(1)}, DType::f32);
  KeysInHand hand{args.k, args.v};
  if (mine.size() > 0) attend(ctx, args.q, hand, mine.size(), true, args.scale, args.out, lse);
  for (int step = 1; step < size; ++step) {
    const int from = (rank - step + size) % size;
    const ZigzagShare theirs = zigzag_share(args.length, size, from);
    const Shape shape{theirs.size(), args.k.dim(1), args.k.dim(2)};
    const KeysInHand next{Tensor::empty(shape, DType::f32), Tensor::empty(shape, DType::f32)};
    pass_on(ctx, group, hand, next);
    hand = next;
    const int64_t first = from < rank ? 0 : mine.early.size(), rows = mine.size() - first;
    const int64_t keys = from < rank ? theirs.early.size() : theirs.size();
    if (rows == 0 || keys == 0) continue;
    const Tensor part = Tensor::empty({rows, args.q.dim(1), args.q.dim(2)}, DType::f32);
    const Tensor part_lse = Tensor::empty({rows, args.q.dim(1)}, DType::f32);
    attend(ctx, args.q.narrow(0, first, rows), hand, keys, false, args.scale, part, part_lse);
    merge_by_lse(args.out.narrow(0, first, rows), lse.narrow(0, first, rows), part, part_lse);
  }
}
// <<< task 7.10

}  // namespace ladder
