#pragma once
// Task 8.7.worker: keys and values from the caches of one engine's ranks to those of another's, part by part.
//
//   for each window of tokens, as they get ready
//     for the read that is the furthest behind (who takes which heads and layers from whom), until all are through
//       for some layers, so that a message is of a good size
//         the producer copies the parts out of its blocks, with a checksum each; the reader checks and copies them in
//
// Where a body lies is the channel's business, and how parts get there the copier's: both loops are the same between GPUs.
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "step4_runner/kv_cache_registry.h"
#include "step5_scheduler/kv_connector.h"
#include "step8_advanced/disaggregation/connector/kv_leases.h"
#include "step8_advanced/disaggregation/connector/messages.h"
#include "step8_advanced/disaggregation/layout/kv_copier.h"
#include "step8_advanced/disaggregation/layout/kv_layout.h"
#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder {

// A message's body has about as many bytes as its channel likes (KvChannel::body_bytes); a part that is larger by itself travels
// alone, and one of a layer of a long chunk that is still being computed is so many times as large at the most.
inline constexpr int64_t kMostWindowsOfAChunk = 16;

// One engine's side of a transfer.
struct KvRanks {
  KvLayout layout;
  std::vector<RankKvCaches> ranks;  // numbered as in KvRead

  KvRanks() = default;
  explicit KvRanks(const KvLayout& layout)
      : layout(layout), ranks(layout.stage_ends.size() * static_cast<size_t>(layout.tensor_parallel_size)) {}
  void add(RankKvCaches caches) {
    const int rank = caches.place.stage * layout.tensor_parallel_size + caches.place.tensor_rank;
    ranks.at(static_cast<size_t>(rank)) = std::move(caches);
  }
};

// How many tokens a window has at the most: of the largest read one layer's part fits into a body. Whole blocks where there is
// room for one.
int64_t window_tokens(const KvLayout& layout, std::span<const KvRead> reads, int64_t body_bytes);

// Which read's parts come next in a window, where `next_layers` says of each read the layer that does: that of the lowest
// layer, of several the first, so that the layers of all ranks go side by side, as they are computed. -1: the window is through.
int64_t next_read(std::span<const KvRead> reads, std::span<const int64_t> next_layers);

// The producer's loop. A window begins as soon as one token of it is computed (KvLeases::wait_ready) and ends with what is
// computed then, with window_tokens(), or with the last token that was asked for. Where layers are told (layer_by_layer.h) it is
// computed as soon as the first layer is: each further one is waited for before it is packed, and such a window may be
// kMostWindowsOfAChunk times as long. As many layers of a read as are there and fit into a body, at least one, are
// one message. While parts are copied the request's blocks are pinned, and never while a message is being sent, or room for one
// waited for: a reader that has stopped reading holds up no block. Tokens are waited for until `patience`, the
// reader until `deadline`. Adds what it has sent to `num_bytes`. Returns why there are no more parts: the error of KvLeases,
// or none. KvChannelError: the reader is gone.
KvReadEnd send_parts(const KvRanks& mine, std::span<const KvRead> reads, const KvReadRequest& request,
                     KvLeases& leases, KvCopier& copier, KvChannel& channel, KvDeadline patience,
                     KvDeadline deadline, std::atomic<int64_t>& num_bytes);

struct ReceivedKv {
  int64_t num_tokens = 0;  // from the load's first on, whole in every layer and rank
  int64_t num_bytes = 0;
  uint64_t lease = 0;  // under which they were read; 0: nothing was
};

// The reader's loop, until the KvReadEnd, which it returns. `theirs`: the producer's layout. Copies nothing into a block
// before a checksum is found right, and nothing at all once `cancelled` is set. `received` grows window by window, and holds
// when this throws. KvChannelError: the producer is gone, or what it sends is not what follows in the order above, of another
// size, under two leases, or has a wrong checksum; or the load is cancelled. The channel is of no more use then.
KvReadEnd receive_parts(const KvRanks& mine, const KvLayout& theirs, std::span<const KvRead> reads,
                        const KvLoad& load, const std::atomic<bool>& cancelled, KvCopier& copier,
                        KvChannel& channel, KvDeadline deadline, ReceivedKv& received);

}  // namespace ladder
