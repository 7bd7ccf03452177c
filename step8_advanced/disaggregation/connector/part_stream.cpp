#include "step8_advanced/disaggregation/connector/part_stream.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

int64_t window_tokens(const KvLayout& layout, std::span<const KvRead> reads, int64_t body_bytes) {
  int64_t largest = 1;
  for (const KvRead& read : reads)
    largest =
        std::max(largest, packed_size(layout, {read.first_layer, read.first_head, read.num_heads, 0, 1}));
  const int64_t fit = std::max<int64_t>(1, body_bytes / largest);
  return fit < layout.block_size ? fit : fit / layout.block_size * layout.block_size;
}

int64_t next_read(std::span<const KvRead> reads, std::span<const int64_t> next_layers) {
  int64_t next = -1, lowest = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < reads.size(); ++i) {
    const int64_t layer = next_layers[i];
    if (layer < reads[i].first_layer + reads[i].num_layers && layer < lowest) {
      next = static_cast<int64_t>(i);
      lowest = layer;
    }
  }
  return next;
}

// >>> task 8.7.worker: send and receive the parts of a request's keys and values
namespace {

// Of each read the layer whose part comes next in a window that begins.
std::vector<int64_t> first_layers(std::span<const KvRead> reads) {
  std::vector<int64_t> layers;
  for (const KvRead& read : reads) layers.push_back(read.first_layer);
  return layers;
}

}  // namespace

KvReadEnd send_parts(const KvRanks& mine, std::span<const KvRead> reads, const KvReadRequest& request,
                     KvLeases& leases, KvCopier& copier, KvChannel& channel, KvDeadline patience,
                     KvDeadline deadline, std::atomic<int64_t>& num_bytes) {
  const int64_t end = request.first_token + request.num_tokens,
                body_bytes = static_cast<int64_t>(channel.body_bytes()),
                window = window_tokens(mine.layout, reads, body_bytes);
  std::vector<int32_t> block_table;
  KvPartsHead head;
  const KvLayers first{reads.front().from_rank, reads.front().first_layer, 1};
  try {
    for (int64_t token = request.first_token; token < end; token += head.num_tokens) {
      const KvLeases::Ready ready = leases.wait_ready(request.remote_request_id, head.lease, token,
                                                      request.prompt_checksum, end, patience, first);
      // What is still being computed is one window, as long as its chunk: a second one would wait for its last layer.
      const int64_t longest = ready.in_all_layers ? window : kMostWindowsOfAChunk * window;
      head.lease = ready.lease;
      head.first_token = token;
      head.num_tokens = std::min({ready.num_tokens, end, token + longest}) - token;
      std::vector<int64_t> next_layers = first_layers(reads);
      while ((head.read = next_read(reads, next_layers)) >= 0) {
        const KvRead& read = reads[static_cast<size_t>(head.read)];
        int64_t& layer = next_layers[static_cast<size_t>(head.read)];
        const KvPart part{layer, read.first_head, read.num_heads, token, head.num_tokens};
        const int64_t size = packed_size(mine.layout, part);
        KvLayers layers{
            read.from_rank, layer,
            std::clamp<int64_t>(body_bytes / size, 1, read.first_layer + read.num_layers - layer)};
        const RankKvCaches& rank = mine.ranks.at(static_cast<size_t>(read.from_rank));
        KvBody body = channel.room_for(static_cast<size_t>(layers.count * size), device_of(rank), deadline,
                                       static_cast<int>(head.read));
        {
          const KvLeases::Pin pin =
              leases.pin(head.lease, token + head.num_tokens, patience, block_table, layers);
          head.first_layer = layers.first;
          head.num_layers = layers.count;
          body = body.part(0, static_cast<size_t>(head.num_layers * size));
          head.checksums = copier.pack(mine.layout, rank, block_table, part, head.num_layers, body);
        }
        send_kv_parts(channel, head, body, deadline);
        num_bytes += static_cast<int64_t>(body.size);
        layer += head.num_layers;
      }
    }
  } catch (const KvChannelError&) {
    throw;
  } catch (const Error& error) {
    return {error.what()};
  }
  return {};
}

KvReadEnd receive_parts(const KvRanks& mine, const KvLayout& theirs, std::span<const KvRead> reads,
                        const KvLoad& load, const std::atomic<bool>& cancelled, KvCopier& copier,
                        KvChannel& channel, KvDeadline deadline, ReceivedKv& received) {
  const auto expect = [](bool condition, const char* problem) {
    if (!condition) throw KvChannelError(fmt::format("a transfer of keys and values: {}", problem));
  };
  std::vector<int64_t> next_layers = first_layers(reads);
  int64_t window = 0;  // tokens of the one that has begun
  while (true) {
    const ReceivedKvMessage message = receive_kv_message(channel, deadline);
    if (const auto* end = std::get_if<KvReadEnd>(&message.message)) {
      expect(!end->error.empty() || received.num_tokens == load.num_tokens, "it ended early without a word");
      return *end;
    }
    const auto* const head = std::get_if<KvPartsHead>(&message.message);
    expect(head != nullptr, "what came is no part");
    const int64_t read_index = next_read(reads, next_layers);
    const KvRead& read = reads[static_cast<size_t>(read_index)];
    int64_t& layer = next_layers[static_cast<size_t>(read_index)];
    if (window == 0) window = head->num_tokens;
    if (received.lease == 0) received.lease = head->lease;
    expect(head->lease == received.lease, "the blocks are another request's by now");
    expect(head->read == read_index && head->first_layer == layer && head->num_layers >= 1 &&
               head->num_layers <= read.first_layer + read.num_layers - layer &&
               head->first_token == load.first_token + received.num_tokens && head->num_tokens == window &&
               window >= 1 && window <= load.num_tokens - received.num_tokens &&
               std::ssize(head->checksums) == head->num_layers,
           "a part is not the next one");
    const KvPart part{layer, read.first_head, read.num_heads, head->first_token, window};
    expect(std::cmp_equal(message.body_size, head->num_layers * packed_size(theirs, part)),
           "parts are of another size");
    const RankKvCaches& rank = mine.ranks.at(static_cast<size_t>(read.to_rank));
    const KvBody body = channel.take_body(message.body_size, device_of(rank), deadline);
    expect(!cancelled, "it was cancelled");
    expect(copier.unpack(mine.layout, rank, load.block_table, part, head->num_layers, body, theirs.dtype,
                         head->checksums),
           "a checksum is wrong");
    received.num_bytes += static_cast<int64_t>(body.size);
    layer += head->num_layers;
    if (next_read(reads, next_layers) >= 0) continue;
    received.num_tokens += std::exchange(window, 0);
    next_layers = first_layers(reads);
  }
}
// <<< task 8.7.worker

}  // namespace ladder
