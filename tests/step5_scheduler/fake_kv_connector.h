#pragma once
// A connector whose other engine is the test: it says what has come, how much of it, in which order and how often.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/step5_scheduler/harness.h"

namespace ladder {

// The first so many tokens of the prompt are over there.
inline std::shared_ptr<const KvTransferParams> from_there(int64_t num_tokens) {
  KvTransferParams params;
  params.do_remote_prefill = true;
  params.remote_num_tokens = num_tokens;
  return std::make_shared<const KvTransferParams>(params);
}
inline std::shared_ptr<const KvTransferParams> for_there() {
  KvTransferParams params;
  params.do_remote_decode = true;
  return std::make_shared<const KvTransferParams>(params);
}

struct FakeKvConnector : KvConnector {
  struct Started {
    KvLoad load;
    std::vector<int32_t> tokens;
  };
  struct Held {
    std::vector<int32_t> table, tokens;
    int64_t num_tokens = 0;  // that were said to be computed
  };

  bool may_start(const Sequence& /*sequence*/) const override { return has_room; }
  void on_queued(const Sequence& sequence) override { queued.insert(sequence.id); }
  void on_unneeded(const Sequence& sequence) override {
    EXPECT_FALSE(started.contains(sequence.id)) << "it was loaded";
    unneeded.insert(sequence.id);
  }
  int64_t num_external_tokens(const Sequence& sequence, int64_t num_local) const override {
    return std::max<int64_t>(0, sequence.kv_transfer->remote_num_tokens - num_local);
  }
  void start_load(KvLoad load) override {
    Started& one = started[load.id];
    EXPECT_TRUE(one.tokens.empty()) << "loaded twice";
    one.tokens = tokens_of(*harness->scheduler.find(load.id));
    const int64_t first = load.first_token / harness->scheduler.config().batch.block_size;
    for (int64_t i = first; i < std::ssize(load.block_table); ++i)
      EXPECT_FALSE(harness->executor.is_used(load.block_table[i])) << "a step in flight uses the block";
    one.load = std::move(load);
    loading.insert(one.load.id);
  }
  void cancel_load(SequenceId id) override { cancelled.insert(id); }
  void on_computed(const Sequence& sequence, int64_t num_tokens) override {
    EXPECT_LE(num_tokens, std::ssize(sequence.block_table) * harness->scheduler.config().batch.block_size);
    computed[sequence.id] = num_tokens;
    EXPECT_TRUE(holds(sequence, num_tokens)) << num_tokens << " tokens are not computed";
  }
  std::optional<KvTransferParams> hold(const Sequence& sequence) override {
    ended[sequence.id] = sequence.finish_reason;
    if (sequence.finish_reason != FinishReason::stop && sequence.finish_reason != FinishReason::length)
      return std::nullopt;
    Held& one = held[sequence.id];
    one = {sequence.block_table, tokens_of(sequence), computed[sequence.id]};
    KvTransferParams answer;
    answer.do_remote_prefill = true;
    answer.remote_request_id = std::to_string(sequence.id);
    answer.remote_num_tokens = one.num_tokens;
    return answer;
  }
  KvConnectorEvents poll() override { return std::exchange(events, {}); }
  void abandon() override { ++num_abandoned; }

  // So many tokens of a load have come; twice is once.
  void come(SequenceId id, int64_t num_tokens) {
    const Started& one = started.at(id);
    if (loading.erase(id) == 1)
      harness->executor.fill(one.load.block_table, one.tokens, one.load.first_token, num_tokens);
    events.loads.push_back({id, num_tokens, num_tokens < one.load.num_tokens ? "lost" : "", ends_sequences});
  }
  void come(SequenceId id) { come(id, started.at(id).load.num_tokens); }
  // A write that is on the way lands, and is not what was wanted.
  void scribble(SequenceId id) {
    const KvLoad& load = started.at(id).load;
    ASSERT_TRUE(loading.contains(id));
    harness->executor.spoil(load.block_table, load.first_token, load.num_tokens);
  }
  // The reader has read what it was told of.
  void release(SequenceId id) {
    const auto one = held.find(id);
    if (one != held.end()) {
      EXPECT_TRUE(harness->executor.holds(one->second.table, one->second.tokens, one->second.num_tokens))
          << "a reader of sequence " << id << " got others' keys";
      held.erase(one);
    }
    events.released.push_back(id);
  }

  static std::vector<int32_t> tokens_of(const Sequence& sequence) {
    std::vector<int32_t> tokens = *sequence.prompt_token_ids;
    tokens.insert(tokens.end(), sequence.output_token_ids.begin(), sequence.output_token_ids.end());
    return tokens;
  }
  bool holds(const Sequence& sequence, int64_t num_tokens) const {
    return harness->executor.holds(sequence.block_table, tokens_of(sequence), num_tokens);
  }

  Harness* harness = nullptr;
  bool has_room = true;
  bool ends_sequences = false;  // loads that fail
  std::map<SequenceId, Started> started;
  std::set<SequenceId> loading, cancelled, queued, unneeded;
  std::map<SequenceId, int64_t> computed;
  std::map<SequenceId, FinishReason> ended;
  std::map<SequenceId, Held> held;
  KvConnectorEvents events;
  int num_abandoned = 0;
};

struct ConnectedHarness : Harness {
  explicit ConnectedHarness(const SchedulerConfig& config, int delay = 0,
                            std::unique_ptr<PrefixIndex> index = nullptr)
      : ConnectedHarness(config, delay, std::move(index), std::make_shared<FakeKvConnector>()) {}

  FakeKvConnector& connector;

 private:
  ConnectedHarness(const SchedulerConfig& config, int delay, std::unique_ptr<PrefixIndex> index,
                   const std::shared_ptr<FakeKvConnector>& fake)
      : Harness(config, delay, std::move(index), fake), connector(*fake) {
    fake->harness = this;
  }
};

}  // namespace ladder
