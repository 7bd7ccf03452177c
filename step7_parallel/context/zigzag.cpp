#include "step7_parallel/context/zigzag.h"

#include "step1_layers/core/error.h"

namespace ladder {

// >>> task 7.10.merge: the two chunks of a rank, and their work
ZigzagShare zigzag_share(int64_t length, int ranks, int rank) {
  LADDER_CHECK(length >= 0, "a prompt of {} tokens", length);
  LADDER_CHECK(ranks >= 1, "a context-parallel group of {} ranks", ranks);
  LADDER_CHECK(rank >= 0 && rank < ranks, "rank {} of {}", rank, ranks);
  const int64_t chunks = 2 * static_cast<int64_t>(ranks);
  // The quotient first: length * chunks need not fit.
  auto start = [&](int64_t chunk) { return length / chunks * chunk + length % chunks * chunk / chunks; };
  const int64_t late = chunks - 1 - rank;
  return {{start(rank), start(rank + 1)}, {start(late), start(late + 1)}};
}

int64_t causal_pairs(const ZigzagShare& share) {
  // The query at position p sees p + 1 keys.
  auto pairs = [](const TokenSpan& span) {
    return (span.end * (span.end + 1) - span.begin * (span.begin + 1)) / 2;
  };
  return pairs(share.early) + pairs(share.late);
}
// <<< task 7.10.merge

}  // namespace ladder
