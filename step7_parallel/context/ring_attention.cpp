#include "step7_parallel/context/ring_attention.h"

#include <algorithm>
#include <optional>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/context/beside.h"
#include "step7_parallel/context/lse_merge.h"
#include "step7_parallel/context/partial_attention.h"

namespace ladder {
namespace {

// A rank's keys and values, its own or those that it has in hand.
struct RingKeys {
  Tensor k, v;  // [keys, kv_heads, dim]
};

// What one step makes of this rank's rows.
struct RingPart {
  Tensor out, lse;  // [rows, heads, dim], [rows, heads]
};

// What a call needs besides its arguments, from ctx.arena.
struct RingRoom {
  RingRoom(const OpContext& ctx, const ContextAttentionArgs& args) {
    const auto take = [&](const Shape& shape, DType dtype) { return ctx.arena->take(shape, dtype); };
    const int64_t rows = args.q.dim(0), heads = args.q.dim(1), dim = args.q.dim(2);
    const int size = args.group->size();
    parts = take({2, rows, heads, dim}, args.q.dtype());
    part_lse = take({2, rows, heads}, DType::f32);
    if (size > 2) {
      out = take(args.q.shape(), DType::f32);
      lse = take({rows, heads}, DType::f32);
    }
    int64_t keys = 0;
    for (int rank = 0; rank < size; ++rank) keys = std::max(keys, context_keys(args.prompts, size, rank));
    const Shape shape{keys, args.k.dim(1), dim};
    for (int i = 0; i < std::min(size - 1, 2); ++i)
      arriving[i] = {take(shape, args.k.dtype()), take(shape, args.k.dtype())};
  }

  // Those that are in hand and those that arrive take turns.
  RingKeys keys_of(int step, int64_t keys) const {
    const RingKeys& one = arriving[step % 2];
    return {one.k.rows(keys), one.v.rows(keys)};
  }
  // Of a row that sees nothing the part's lse stays NaN, which is no weight (lse_merge.h).
  RingPart part_of(const OpContext& ctx, int step) const {
    const RingPart part{parts.select(0, step % 2), part_lse.select(0, step % 2)};
    device_fill(part.lse.raw(), part.lse.device(), 0xff, part.lse.nbytes(), ctx.stream);
    return part;
  }

  Tensor parts, part_lse;  // of this step and the one before it: [2, rows, heads, dim], [2, rows, heads]
  Tensor out, lse;         // f32, of the steps before them; of two ranks there are none
  RingKeys arriving[2];
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

// One step: this rank's queries against the keys of rank `from`, prompt after prompt.
void attend_to(const OpContext& ctx, const ContextAttentionArgs& args, const RingKeys& hand, int from,
               const RingPart& part) {
  const int size = args.group->size(), rank = args.group->rank();
  int64_t row = 0, key = 0;
  for (const ContextPrompt& prompt : args.prompts) {
    const ZigzagShare mine = zigzag_share(prompt.length, size, rank),
                      theirs = zigzag_share(prompt.length, size, from);
    const int64_t cached = prompt.cached_of(from), keys = cached + theirs.size(), early = mine.early.size();
    auto attend = [&](auto attention, int64_t first, int64_t rows, int64_t seen) {
      if (rows == 0 || seen == 0) return;
      attention(ctx, args.q.narrow(0, row + first, rows), hand.k.narrow(0, key, seen),
                hand.v.narrow(0, key, seen), args.scale, part.out.narrow(0, row + first, rows),
                part.lse.narrow(0, row + first, rows));
    };
    if (from == rank) {
      attend(causal_attention_of_last, 0, mine.size(), keys);
    } else if (from < rank) {
      attend(unmasked_attention, 0, mine.size(), cached + theirs.early.size());
    } else {
      attend(unmasked_attention, 0, early, cached);
      attend(unmasked_attention, early, mine.late.size(), keys);
    }
    row += mine.size();
    key += keys;
  }
}

}  // namespace

void ring_attention(const OpContext& ctx, const ContextAttentionArgs& args) {
  check_context_attention(ctx, args);
  Communicator& group = *args.group;
  const int size = group.size(), rank = group.rank();
  const ArenaScope scope(*ctx.arena);
  RingKeys hand{args.k, args.v};
  if (size == 1) {
    const Tensor lse = ctx.arena->take({args.q.dim(0), args.q.dim(1)}, DType::f32);
    return attend_to(ctx, args, hand, 0, {args.out, lse});
  }
  const RingRoom room(ctx, args);
  for (int step = 0; step < size; ++step) {
    const int from = (rank - step + size) % size;
    const bool last = step + 1 == size;
    RingKeys next;
    std::optional<Beside> passing;
    if (!last) {
      next = room.keys_of(step, context_keys(args.prompts, size, (from - 1 + size) % size));
      passing.emplace(ctx, args.side, [&](const OpContext& beside) { pass_on(beside, group, hand, next); });
    }
    attend_to(ctx, args, hand, from, room.part_of(ctx, step));
    // Two parts at a time: the result so far, which is twice as wide, is read and written half as often.
    const int64_t parts = step % 2 + 1;
    if (parts == 2 || last)
      merge_parts(ctx, {.parts = room.parts.rows(parts),
                        .part_lse = room.part_lse.rows(parts),
                        .out = last ? args.out : room.out,
                        .lse = last ? Tensor() : room.lse,
                        .onto = step > 1 ? room.out : Tensor(),
                        .onto_lse = step > 1 ? room.lse : Tensor()});
    if (passing) passing->wait();
    hand = next;
  }
}
// <<< task 7.10

}  // namespace ladder
