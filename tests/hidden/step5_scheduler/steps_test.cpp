// Continuous steps by the rules of scheduler.h, counted from the state before each of them: who computes how much, who gives
// way, who is admitted. Without a prefix cache: completions share the prompt of a sibling that runs, and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "step3_sequence/prefix/hash_prefix_index.h"
#include "tests/step5_scheduler/harness.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

// One step, planned on paper.
class PaperStep {
 public:
  explicit PaperStep(const OpenScheduler& scheduler)
      : scheduler_(scheduler),
        config_(scheduler.config()),
        runs_before_{config_.policy},
        deferring_(!scheduler.deferred_.empty()),
        free_(scheduler.blocks().num_free_blocks()),
        watermark_(
            static_cast<int64_t>(config_.watermark * static_cast<double>(config_.batch.num_kv_blocks))) {
    for (const BlockTable* table : scheduler.block_tables())
      for (const int32_t id : *table) ++holders_[id];
    for (Sequence* sequence : scheduler.running_)
      running_.push_back({sequence, sequence->num_computed_tokens, sequence->block_table});
    int64_t decodes = 0;
    for (const Row& row : running_) decodes += wanted(row) == 1;
    decode_ = std::min(decodes, config_.batch.max_num_batched_tokens);
    prefill_ = config_.batch.max_num_batched_tokens - decode_;
    walk(true);
    if (limited_ && prefill_ > 0 && !short_of_blocks_) walk(false);
  }

  std::map<SequenceId, int64_t> planned;
  std::vector<SequenceId> gave_way;
  int64_t num_queried_tokens = 0, num_hit_tokens = 0;  // of those that are admitted for the first time

 private:
  struct Row {
    Sequence* sequence;
    int64_t computed;
    BlockTable table;
  };
  enum class Answer { admitted, passed_over, too_long, refused };

  int64_t blocks_for(int64_t tokens) const { return scheduler_.blocks().blocks_for(tokens); }
  bool is_long(int64_t tokens) const {
    return config_.long_prefill_token_threshold > 0 && tokens > config_.long_prefill_token_threshold;
  }
  static int64_t wanted(const Row& row) {
    const Sequence& of = *row.sequence;
    if (of.num_output_tokens() + of.num_placeholders >= *of.sampling.max_tokens) return 0;
    return of.num_tokens() + of.num_placeholders - row.computed;
  }
  int64_t chunk(int64_t lacks) {
    if (lacks <= prefill_ && (!limits_ || !is_long(lacks))) return lacks;
    if (!config_.enable_chunked_prefill) return 0;
    if (!limits_) return prefill_;
    limited_ = true;
    const int64_t num_shares = config_.max_num_partial_prefills - num_cut_;
    if (num_shares <= 0 || (is_long(lacks) && num_cut_long_ >= config_.max_long_partial_prefills)) return 0;
    const int64_t share = (prefill_ + num_shares - 1) / num_shares;
    return is_long(lacks) ? std::min(share, config_.long_prefill_token_threshold) : share;
  }
  void give_out(int64_t lacks, int64_t tokens) {
    prefill_ -= tokens;
    num_cut_ += tokens < lacks;
    num_cut_long_ += tokens < lacks && is_long(lacks);
  }
  void grow(BlockTable& table, int64_t blocks) {
    for (; std::ssize(table) < blocks; --free_) {
      table.push_back(--next_block_);  // not one of theirs
      holders_[next_block_] = 1;
    }
  }

  void walk(bool limits) {
    limits_ = limits;
    int64_t promised = 0;
    SequenceId passed_over = -1;
    bool with_long = true;
    Sequence* newcomer = scheduler_.waiting_.next();
    for (size_t i = 0;;) {
      while (newcomer != nullptr && started_.contains(newcomer->id))
        newcomer = scheduler_.waiting_.next(newcomer, with_long);
      if (prefill_ == 0 || short_of_blocks_ || std::ssize(running_) >= config_.batch.max_num_seqs)
        newcomer = nullptr;
      if (newcomer != nullptr && (i == running_.size() || runs_before_(newcomer, running_[i].sequence))) {
        const Answer answer =
            newcomer->first_sibling == passed_over ? Answer::passed_over : admit(*newcomer, promised);
        if (answer == Answer::refused) {
          newcomer = nullptr;
          continue;
        }
        if (answer == Answer::passed_over && newcomer->num_output_tokens() == 0)
          passed_over = newcomer->first_sibling;
        with_long = with_long && answer != Answer::too_long;
        i += answer == Answer::admitted;
        newcomer = scheduler_.waiting_.next(newcomer, with_long);
      } else if (i < running_.size()) {
        go_on(i++, promised);
      } else {
        return;
      }
    }
  }

  // Blocks for `slots` of row i; the last of running_ give way, in the first walk.
  bool has_room(size_t i, int64_t slots) {
    while (blocks_for(slots) - std::ssize(running_[i].table) > free_) {
      if (!limits_ || deferring_) return false;
      const Row last = running_.back();
      const bool itself = running_.size() == i + 1;
      running_.pop_back();
      gave_way.push_back(last.sequence->id);
      short_of_blocks_ = true;
      if (last.sequence->num_steps_in_flight > 0)
        deferring_ = true;
      else
        for (const int32_t id : last.table) free_ += --holders_[id] == 0;
      if (itself) return false;
    }
    grow(running_[i].table, blocks_for(slots));
    return true;
  }

  void go_on(size_t i, int64_t& promised) {
    const int64_t lacks = wanted(running_[i]);
    const bool decodes = lacks == 1 && decode_ > 0;
    const int64_t tokens = decodes ? 1 : chunk(lacks);
    if (tokens > 0) {
      if (!has_room(i, running_[i].computed + tokens)) {
        short_of_blocks_ = true;
        return;
      }
      planned[running_[i].sequence->id] += tokens;
      running_[i].computed += tokens;
      if (decodes)
        --decode_;
      else
        give_out(lacks, tokens);
    }
    if (tokens < lacks)
      promised += blocks_for(running_[i].sequence->num_tokens()) - std::ssize(running_[i].table);
  }

  Answer admit(Sequence& sequence, int64_t& promised) {
    if (sequence.num_placeholders > 0) return Answer::refused;
    const int64_t size = config_.batch.block_size, all = sequence.num_tokens();
    const int64_t sharable = std::min(sequence.num_prompt_tokens, all - 1) / size;
    BlockTable table;
    bool is_being_computed = false;
    for (const Row& row : running_) {
      if (row.sequence->first_sibling != sequence.first_sibling || sharable == 0) continue;
      if (row.computed < sharable * size)
        is_being_computed = true;
      else if (table.empty())
        table.assign(row.table.begin(), row.table.begin() + sharable);
    }
    if (table.empty() && is_being_computed) return Answer::passed_over;
    const int64_t shared = std::ssize(table), lacks = all - shared * size, tokens = chunk(lacks);
    if (tokens == 0) return is_long(lacks) ? Answer::too_long : Answer::refused;
    const int64_t slots = shared * size + tokens, later = blocks_for(all) - blocks_for(slots);
    const int64_t left = later + (running_.empty() ? 0 : watermark_ + promised);
    if (blocks_for(slots) - shared + left > free_) return Answer::refused;
    for (const int32_t id : table) ++holders_[id];
    grow(table, blocks_for(slots));
    const auto place =
        std::ranges::find_if(running_, [&](const Row& row) { return runs_before_(&sequence, row.sequence); });
    running_.insert(place, {&sequence, slots, table});
    started_[sequence.id] = true;
    if (sequence.num_preemptions == 0) {
      num_queried_tokens += sequence.num_prompt_tokens;
      num_hit_tokens += shared * size;
    }
    planned[sequence.id] = tokens;
    give_out(lacks, tokens);
    promised += later;
    return Answer::admitted;
  }

  const OpenScheduler& scheduler_;
  const SchedulerConfig& config_;
  const RunsBefore runs_before_;
  bool deferring_, limits_ = true, limited_ = false, short_of_blocks_ = false;
  int64_t free_, watermark_, decode_ = 0, prefill_ = 0, num_cut_ = 0, num_cut_long_ = 0;
  int32_t next_block_ = 0;
  std::map<int32_t, int64_t> holders_;
  std::vector<Row> running_;
  std::map<SequenceId, bool> started_;
};

struct WatchesSteps : Harness {
  using Harness::Harness;
  void schedule() override {
    const PaperStep paper(scheduler);
    const auto ran = scheduler.running_;
    const SchedulerStats before = scheduler.stats();
    Harness::schedule();
    const SchedulerStats after = scheduler.stats();
    std::map<SequenceId, int64_t> seen;
    for (const ScheduledSequence& scheduled : output.scheduled) seen[scheduled.id] = scheduled.num_tokens;
    EXPECT_EQ(seen, paper.planned) << "tokens by sequence, step " << output.step;
    EXPECT_EQ(after.num_prefix_queried_tokens - before.num_prefix_queried_tokens, paper.num_queried_tokens)
        << "prompt tokens of those who are admitted for the first time, step " << output.step;
    EXPECT_EQ(after.num_prefix_hit_tokens - before.num_prefix_hit_tokens, paper.num_hit_tokens)
        << "of these, shared, step " << output.step;
    for (const Sequence* sequence : ran)
      EXPECT_EQ(sequence->status == SequenceStatus::preempted,
                std::ranges::count(paper.gave_way, sequence->id) > 0)
          << "sequence " << sequence->id << ", step " << output.step;
    for (const Sequence* sequence : ran)
      if (sequence->status == SequenceStatus::preempted) {
        EXPECT_EQ(sequence->num_computed_tokens, 0)
            << "sequence " << sequence->id << ", step " << output.step;
      }
    num_gave_way += std::ssize(paper.gave_way);
  }
  int64_t num_gave_way = 0;
};

// What a day is made of, the most of each.
struct DayOf {
  int64_t completions = 1, num_slots = 300, max_num_partial_prefills = 1;
  // Many completions of long prompts wait behind urgent requests, short ones and long ones.
  bool is_crowded = false;
};

void watch_days(const DayOf& of) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  int64_t num_gave_way = 0;
  for (int day = 0; day < 80; ++day) {
    SchedulerConfig config = small_config();
    config.enable_prefix_caching = false;
    config.policy = random.one_of<SchedulingPolicy>({SchedulingPolicy::fcfs, SchedulingPolicy::priority});
    config.enable_chunked_prefill = random.integer(0, 3) > 0;
    config.batch.max_model_len = 90;
    config.batch.block_size = random.integer(1, 7);
    config.batch.num_kv_blocks = random.integer(100, of.num_slots) / config.batch.block_size;
    config.batch.max_num_seqs = random.integer(1, 9);
    config.batch.max_num_batched_tokens =
        config.enable_chunked_prefill ? random.integer(2, 60) : random.integer(90, 150);
    if (config.enable_chunked_prefill) {
      config.long_prefill_token_threshold = random.one_of<int64_t>({0, 5, 20});
      config.max_num_partial_prefills = random.integer(1, of.max_num_partial_prefills);
      config.max_long_partial_prefills = random.integer(1, config.max_num_partial_prefills);
    }
    config.watermark = random.one_of<double>({0, 0.1});
    if (of.is_crowded) {
      config.policy = SchedulingPolicy::priority;
      config.enable_chunked_prefill = true;
      config.long_prefill_token_threshold = 8;
      config.batch.max_num_seqs = random.integer(5, 12);
      config.batch.max_num_batched_tokens = random.integer(20, 60);
    }
    WatchesSteps harness(config, static_cast<int>(random.integer(0, 2)));
    std::vector<SequenceId> ids;
    for (int turn = 0; turn < 100; ++turn) {
      if (random.integer(0, of.is_crowded ? 1 : 4) == 0) {
        SamplingParams sampling = greedy(random.integer(1, 25));
        sampling.priority = static_cast<int32_t>(random.integer(-1, 1));
        sampling.n = static_cast<int32_t>(random.integer(1, of.completions));
        const bool is_short = of.is_crowded && sampling.priority < 1 && random.integer(0, 1) == 0;
        if (of.is_crowded) {
          sampling.max_tokens = random.integer(1, 6);
          sampling.n = sampling.priority < 1 ? 1 : random.integer(4, 10);
        }
        std::vector<int32_t> prompt(static_cast<size_t>(random.integer(1, is_short ? 8 : 60)));
        for (int32_t& token : prompt) token = static_cast<int32_t>(random.integer(0, 999));
        for (const SequenceId id : harness.add(prompt, sampling)) ids.push_back(id);
      }
      if (!ids.empty() && random.integer(0, 25) == 0) harness.abort(random.one_of(ids));
      harness.turn();
      if (::testing::Test::HasFailure()) return;
    }
    harness.run();
    harness.expect_reference_outputs();
    if (::testing::Test::HasFailure()) return;
    num_gave_way += harness.num_gave_way;
  }
  if (of.is_crowded) return;
  EXPECT_GT(num_gave_way, 20) << "nobody had to give way";
}

TEST(Hidden5_2_Steps, AreThoseOfTheRules) {
  watch_days({});
}

TEST(Hidden5_2_Steps, AreThoseOfTheRulesWhereSeveralAreCutAndLittleIsFree) {
  watch_days({1, 120, 4});
}

TEST(Hidden5_2_Steps, AreThoseOfTheRulesWhereCompletionsWaitBehindLongOnes) {
  watch_days({1, 600, 2, true});
}

TEST(Hidden5_2_Admit_Steps, AreThoseOfTheRulesWithCompletions) {
  watch_days({4, 300, 1});
}

TEST(Hidden5_2_Admit_Steps, AreThoseOfTheRulesWhereSeveralAreCutAndLittleIsFree) {
  watch_days({4, 130, 4});
}

TEST(Hidden5_3_Steps, WhoGivesWayIsWhomTheRulesSay) {
  watch_days({1, 110, 2});
}

// Counts look-ups.
class CountedIndex final : public PrefixIndex {
 public:
  CountedIndex(const BatchConfig& batch, int64_t& num_matches)
      : index_(batch.num_kv_blocks, batch.block_size, std::make_unique<Sha256BlockHasher>(1)),
        num_matches_(num_matches) {}
  void match(PrefixKey& key, const TokenView& tokens, int64_t most, std::vector<int32_t>& ids) override {
    ++num_matches_;
    index_.match(key, tokens, most, ids);
  }
  void insert(PrefixKey& key, const TokenView& tokens, std::span<const int32_t> table,
              int64_t count) override {
    index_.insert(key, tokens, table, count);
  }
  void erase(int32_t id) override { index_.erase(id); }
  bool contains(int32_t id) const override { return index_.contains(id); }
  int64_t size() const override { return index_.size(); }

 private:
  HashPrefixIndex index_;
  int64_t& num_matches_;
};

// Completions that wait for their prompt: one of them is asked in a walk, and a step has two walks at most.
TEST(Hidden5_2_Walk, OfThoseWhoWaitForAPromptOneIsAsked) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  int64_t num_waits = 0;
  for (int day = 0; day < 30; ++day) {
    SchedulerConfig config = small_config();
    config.batch.block_size = random.integer(1, 6);
    config.batch.num_kv_blocks = 1000;
    config.batch.max_num_seqs = 20;
    config.batch.max_num_batched_tokens = random.integer(10, 40);
    config.long_prefill_token_threshold = random.one_of<int64_t>({0, 8});
    int64_t num_matches = 0;
    Harness harness(config, 0, std::make_unique<CountedIndex>(config.batch, num_matches));
    SamplingParams sampling = greedy(3);
    sampling.n = random.integer(6, 14);
    harness.add(iota_prompt(random.integer(80, 200)), sampling);
    for (int step = 0; step < 40; ++step) {
      const int64_t matches_before = num_matches;
      const auto running_before = std::ssize(harness.scheduler.running_);
      if (!harness.submit()) break;
      const int64_t admitted = std::ssize(harness.scheduler.running_) - running_before;
      ASSERT_LE(num_matches - matches_before, admitted + 2) << "look-ups in step " << harness.output.step;
      num_waits += admitted == 0 && std::ssize(harness.scheduler.running_) == 1;
      harness.collect();
    }
    harness.run();
    harness.expect_reference_outputs();
    if (HasFailure()) return;
  }
  EXPECT_GT(num_waits, 30);
}

}  // namespace
}  // namespace ladder
