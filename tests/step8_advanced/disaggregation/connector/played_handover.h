#pragma once
// An end of a hand-over without an engine: caches of a prompt on some device, from which or into which the loops of part_stream.h
// go, again and again. For what is measured, and for processes that are killed.
#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "step8_advanced/disaggregation/connector/part_stream.h"

namespace ladder::testing {

inline KvLayout llama_8b_layout() {
  KvLayout layout;
  layout.num_layers = 32;
  layout.num_kv_heads = 8;
  layout.k_dim = layout.v_dim = 128;
  layout.dtype = DType::bf16;
  layout.stage_ends = {32};
  layout.block_size = 16;
  return layout;
}

class HandoverEnd {
 public:
  // Of one rank. The sequence's blocks are not in order.
  HandoverEnd(const KvLayout& layout, int64_t num_tokens, Device device)
      : num_tokens_(num_tokens), leases_(std::chrono::hours(1), std::chrono::hours(1), layout.block_size) {
    ranks_.layout = layout;
    RankKvCaches& rank = ranks_.ranks.emplace_back();
    rank.layers = {0, layout.num_layers};
    const int64_t blocks = (num_tokens + layout.block_size - 1) / layout.block_size;
    for (int64_t layer = 0; layer < layout.num_layers; ++layer) {
      KvCacheView& cache = rank.caches.emplace_back();
      cache.k =
          Tensor::empty({blocks, layout.block_size, layout.num_kv_heads, layout.k_dim}, layout.dtype, device);
      cache.v =
          Tensor::empty({blocks, layout.block_size, layout.num_kv_heads, layout.v_dim}, layout.dtype, device);
      cache.k.fill_bytes(static_cast<uint8_t>(layer + 1));
      cache.v.fill_bytes(static_cast<uint8_t>(layer + 101));
    }
    block_table_.resize(static_cast<size_t>(blocks));
    std::iota(block_table_.begin(), block_table_.end(), 0);
    std::shuffle(block_table_.begin(), block_table_.end(), std::mt19937_64(1));
    reads_ = kv_reads(layout, layout);
    prompt_ = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(num_tokens), 7);
    Sequence sequence;
    sequence.id = 1;
    sequence.num_prompt_tokens = num_tokens;
    sequence.prompt_token_ids = prompt_;
    sequence.block_table = block_table_;
    leases_.computed(sequence, kId, num_tokens);
  }

  int64_t num_bytes() const { return packed_size(ranks_.layout, all()) * ranks_.layout.num_layers; }

  const RankKvCaches& caches() const { return ranks_.ranks.front(); }
  std::span<const int32_t> block_table() const { return block_table_; }

  // Answers a reader that asks. KvChannelError: it is gone.
  void give(KvChannel& channel, KvDeadline deadline) {
    const ReceivedKvMessage asked = receive_kv_message(channel, deadline);
    const KvReadEnd end = send_parts(ranks_, reads_, std::get<KvReadRequest>(asked.message), leases_, copier_,
                                     channel, deadline, deadline, num_sent_);
    send_kv_message(channel, end, deadline);
  }
  void take(KvChannel& channel, KvDeadline deadline) {
    send_kv_message(channel, KvReadRequest{kId, prompt_checksum(*prompt_, num_tokens_), 0, num_tokens_, 0},
                    deadline);
    KvLoad load;
    load.block_table = block_table_;
    load.num_tokens = num_tokens_;
    ReceivedKv received;
    const std::atomic<bool> cancelled = false;
    const KvReadEnd end =
        receive_parts(ranks_, ranks_.layout, reads_, load, cancelled, copier_, channel, deadline, received);
    if (!end.error.empty()) throw KvChannelError(end.error);
  }

 private:
  static constexpr const char* kId = "it";
  KvPart all() const { return {0, 0, ranks_.layout.num_kv_heads, 0, num_tokens_}; }

  const int64_t num_tokens_;
  KvRanks ranks_;
  std::vector<int32_t> block_table_;
  std::vector<KvRead> reads_;
  std::shared_ptr<std::vector<int32_t>> prompt_;
  KvLeases leases_;
  KvCopier copier_;
  std::atomic<int64_t> num_sent_ = 0;
};

}  // namespace ladder::testing
