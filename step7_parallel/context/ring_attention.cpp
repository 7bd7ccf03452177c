#include "step7_parallel/context/ring_attention.h"

#include <functional>
#include <future>
#include <utility>

#include "step1_layers/core/error.h"
#include "step7_parallel/context/lse_merge.h"
#include "step7_parallel/context/partial_attention.h"

namespace ladder {
namespace {

// A rank's keys and values, its own or those that it has in hand.
struct RingKeys {
  Tensor k, v;  // [keys, kv_heads, dim]
};

// What this rank has of its result so far.
struct RingResult {
  Tensor out, lse;  // [rows, heads, dim], [rows, heads]
};

// Runs fn on a thread beside what follows, as a GPU would on a second stream. wait() throws what fn threw; without it the
// end of the object waits.
class Beside {
 public:
  explicit Beside(std::function<void()> fn) : done_(std::async(std::launch::async, std::move(fn))) {}
  void wait() { done_.get(); }

 private:
  std::future<void> done_;
};

}  // namespace

// >>> task 7.10: the ring
namespace {

// Sends `mine` to the next rank and receives the previous one's into `next`. A send may end only when it is received, so
// that in a circle in which all send first nobody would.
void pass_on(const OpContext& ctx, Communicator& group, const RingKeys& mine, const RingKeys& next) {
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

// All of these queries to the first `keys` of those in hand, into the result's rows.
void merge_attention(const OpContext& ctx, const Tensor& q, const RingKeys& hand, int64_t keys, double scale,
                     const RingResult& result) {
  if (q.dim(0) == 0 || keys == 0) return;
  const Tensor part = Tensor::empty(q.shape(), DType::f32),
               lse = Tensor::empty({q.dim(0), q.dim(1)}, DType::f32);
  unmasked_attention(ctx, q, hand.k.rows(keys), hand.v.rows(keys), scale, part, lse);
  merge_by_lse(result.out, result.lse, part, lse);
}

// One step: this rank's queries against the keys of rank `from`, prompt after prompt.
void attend_to(const OpContext& ctx, const ContextAttentionArgs& args, const RingKeys& hand, int from,
               const RingResult& result) {
  const int size = args.group->size(), rank = args.group->rank();
  int64_t row = 0, key = 0;
  for (const ContextPrompt& prompt : args.prompts) {
    const ZigzagShare mine = zigzag_share(prompt.length, size, rank),
                      theirs = zigzag_share(prompt.length, size, from);
    const int64_t cached = prompt.cached_of(from), keys = cached + theirs.size();
    const RingKeys here{hand.k.narrow(0, key, keys), hand.v.narrow(0, key, keys)};
    auto rows = [&](int64_t first, int64_t count) {
      return RingResult{result.out.narrow(0, row + first, count), result.lse.narrow(0, row + first, count)};
    };
    auto queries = [&](int64_t first, int64_t count) { return args.q.narrow(0, row + first, count); };
    const int64_t early = mine.early.size();
    if (from == rank && mine.size() > 0) {
      const RingResult all = rows(0, mine.size());
      causal_attention_of_last(ctx, queries(0, mine.size()), here.k, here.v, args.scale, all.out, all.lse);
    } else if (from < rank) {
      merge_attention(ctx, queries(0, mine.size()), here, cached + theirs.early.size(), args.scale,
                      rows(0, mine.size()));
    } else if (from > rank) {
      merge_attention(ctx, queries(0, early), here, cached, args.scale, rows(0, early));
      merge_attention(ctx, queries(early, mine.late.size()), here, keys, args.scale,
                      rows(early, mine.late.size()));
    }
    row += mine.size();
    key += keys;
  }
}

}  // namespace

void ring_attention(const OpContext& ctx, const ContextAttentionArgs& args) {
  check_context_attention(args);
  Communicator& group = *args.group;
  const int size = group.size(), rank = group.rank();
  const RingResult result{args.out, Tensor::empty({args.q.dim(0), args.q.dim(1)}, DType::f32)};
  RingKeys hand{args.k, args.v};
  for (int step = 0; step < size; ++step) {
    const int from = (rank - step + size) % size;
    if (step + 1 == size) {
      attend_to(ctx, args, hand, from, result);
      break;
    }
    const int64_t keys = context_keys(args.prompts, size, (from - 1 + size) % size);
    const Shape shape{keys, args.k.dim(1), args.k.dim(2)};
    const RingKeys next{Tensor::empty(shape, DType::f32), Tensor::empty(shape, DType::f32)};
    Beside passing([&] { pass_on(ctx, group, hand, next); });
    attend_to(ctx, args, hand, from, result);
    passing.wait();
    hand = next;
  }
}
// <<< task 7.10

}  // namespace ladder
