// Task 5.5, held against what scheduler.h promises of each answer: what is told, what ends and why, what is cached, and which
// blocks come back with which step. Steps are planned in the simplest way; sequences are aborted and preempted between them,
// and some tokens are invalid.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "step1_layers/sampling/invalid_token.h"
#include "step3_sequence/prefix/hash_prefix_index.h"
#include "tests/step5_scheduler/harness.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using Ids = std::vector<int32_t>;

// What the slots hold by the steps that are collected: the fingerprint of all tokens up to there.
using Slots = std::vector<uint64_t>;

// An index that looks whether what it is given has been computed.
class Witness final : public PrefixIndex {
 public:
  Witness(const BatchConfig& batch, const Slots& slots)
      : index_(batch.num_kv_blocks, batch.block_size, std::make_unique<Sha256BlockHasher>(1)),
        size_(batch.block_size),
        slots_(slots) {}

  void match(PrefixKey& key, const TokenView& tokens, int64_t most, Ids& ids) override {
    index_.match(key, tokens, most, ids);
  }
  void insert(PrefixKey& key, const TokenView& tokens, std::span<const int32_t> table,
              int64_t num_full_blocks) override {
    ASSERT_LE(num_full_blocks, std::ssize(table)) << "blocks are cached that the sequence has not";
    ASSERT_LE(num_full_blocks * size_, tokens.size());
    Ids scratch;
    uint64_t fingerprint = 0;
    for (int64_t p = 0; p < num_full_blocks * size_; ++p) {
      fingerprint = extend_fingerprint(fingerprint, tokens.subspan(p, 1, scratch)[0]);
      ASSERT_EQ(slots_[table[p / size_] * size_ + p % size_], fingerprint)
          << "position " << p << " is cached in block " << table[p / size_] << ", which does not hold it";
    }
    index_.insert(key, tokens, table, num_full_blocks);
  }
  void erase(int32_t id) override { index_.erase(id); }
  bool contains(int32_t id) const override { return index_.contains(id); }
  int64_t size() const override { return index_.size(); }

 private:
  HashPrefixIndex index_;
  int64_t size_;
  const Slots& slots_;
};

SchedulerConfig random_config(testing::Random& random) {
  SchedulerConfig config = small_config();
  config.vocab_size = 40;
  config.eos_token_ids = {3, 4};
  config.batch.max_model_len = 90;
  config.batch.block_size = random.integer(1, 7);
  config.batch.num_kv_blocks = random.integer(100, 400) / config.batch.block_size;
  config.batch.max_num_seqs = random.integer(1, 8);
  config.batch.max_num_batched_tokens = random.integer(2, 50);
  return config;
}

SamplingParams random_sampling(testing::Random& random) {
  SamplingParams sampling = greedy(random.integer(1, 20));
  sampling.seed = static_cast<uint64_t>(random.integer(0, 1 << 20));
  sampling.ignore_eos = random.integer(0, 2) > 0;
  if (random.integer(0, 2) == 0) sampling.stop_token_ids = {3, 9, 11};
  if (random.integer(0, 2) == 0) sampling.min_tokens = random.integer(0, *sampling.max_tokens);
  if (random.integer(0, 2) == 0) sampling.logprobs = 0;
  return sampling;
}

class PaperUpdates : public SimpleHarness {
 public:
  PaperUpdates(testing::Random& random, const SchedulerConfig& config, int delay)
      : PaperUpdates(random, config, delay,
                     std::make_unique<Slots>(config.batch.num_kv_blocks * config.batch.block_size)) {}

  void day() {
    for (int event = 0; event < 140; ++event) {
      const int64_t kind = random_.integer(0, 11);
      if (kind == 0)
        add_one();
      else if (kind == 1 && !sequences_.empty())
        abort_one();
      else if (kind == 2 && !scheduler.running_.empty())
        preempt_one();
      else if (kind < 7 && std::ssize(tickets) < executor.max_in_flight())
        submit_one();
      else if (!tickets.empty())
        collect_one();
      check_state();
      if (::testing::Test::HasFailure()) return;
    }
    while (!::testing::Test::HasFailure() && (scheduler.has_unfinished() || !tickets.empty())) {
      const bool submitted = std::ssize(tickets) < executor.max_in_flight() && submit_one();
      if (!tickets.empty())
        collect_one();
      else if (!submitted)
        preempt_one();  // nobody gets the blocks that all lack
      check_state();
    }
    if (::testing::Test::HasFailure()) return;
    ASSERT_EQ(scheduler.blocks().num_used_blocks(), 0);
    add(iota_prompt(3), greedy(1));
    ASSERT_TRUE(submit());
    ASSERT_EQ(executor.num_sequences(), 1) << "the runner has not heard of all who ended";
  }

  int64_t num_late = 0, num_invalid = 0, num_told_twice = 0, num_preempted_in_flight = 0;

 private:
  struct Known {
    Ids prompt, output;
    SamplingParams sampling;  // as the scheduler has completed it
    int64_t num_told = 0;     // prompt log probabilities
    int64_t num_in_flight = 0, num_being_sampled = 0, last_step = -1;
    bool ended = false;
    FinishReason reason = FinishReason::none;
  };
  struct Record {
    SequenceId id;
    int64_t before, after, num_preemptions;
    BlockTable table;
  };
  struct Held {
    BlockTable table;
    int64_t last_step;
  };
  struct Told {
    Ids tokens;
    std::vector<float> logprobs;
    Ids prompt_tokens;  // that the prompt log probabilities are of
    FinishReason reason = FinishReason::none;
    std::optional<int32_t> stop_token_id;
    int64_t num_cached_tokens = 0, num_preemptions = 0;
  };

  PaperUpdates(testing::Random& random, const SchedulerConfig& config, int delay,
               std::unique_ptr<Slots> slots)
      : SimpleHarness(config, delay, std::make_unique<Witness>(config.batch, *slots)),
        random_(random),
        slots_(std::move(slots)) {}

  void add_one() {
    Ids prompt(static_cast<size_t>(random_.integer(1, 60)), 7);  // few texts: prefixes are found again
    for (size_t i = 0; i < prompt.size(); i += 9) prompt[i] = static_cast<int32_t>(random_.integer(0, 1));
    SamplingParams sampling = random_sampling(random_);
    if (random_.integer(0, 2) ==
        0) {  // nobody's blocks, so that every position is computed, and its own after
      sampling.prompt_logprobs = 0;
      sampling.cache_salt = std::to_string(sequences_.size());
    } else {
      sampling.n = random_.integer(1, 3);
    }
    for (const SequenceId id : add(prompt, sampling)) {
      Known& known = sequences_[id];
      known.prompt = prompt;
      known.sampling = scheduler.find(id)->sampling;
    }
  }

  // Its blocks are used until the last step that computes it is collected.
  void give_up_blocks(SequenceId id, const BlockTable& table) {
    const Known& known = sequences_.at(id);
    if (known.num_in_flight > 0) held_.push_back({table, known.last_step});
  }

  void end(Known& known, FinishReason reason) {
    known.ended = true;
    known.reason = reason;
  }

  void abort_one() {
    auto at = sequences_.begin();
    std::advance(at, random_.integer(0, std::ssize(sequences_) - 1));
    auto& [id, known] = *at;
    if (!known.ended) {
      give_up_blocks(id, scheduler.find(id)->block_table);
      end(known, FinishReason::abort);
    }
    scheduler.abort(id);
  }

  void preempt_one() {
    const Sequence& last = *scheduler.running_.back();
    give_up_blocks(last.id, last.block_table);
    num_preempted_in_flight += last.num_steps_in_flight > 0;
    scheduler.preempt_last();
  }

  bool submit_one() {
    if (!submit()) return false;
    std::map<SequenceId, int64_t> before;
    for (const NewSequence& added : output.new_sequences) before[added.id] = added.num_computed_tokens;
    for (const ContinuedSequence& one : output.continued) before[one.id] = one.num_computed_tokens;
    std::vector<Record>& records = in_flight_.emplace_back();
    for (const ScheduledSequence& scheduled : output.scheduled) {
      const Sequence& sequence = *scheduler.find(scheduled.id);
      const int64_t begin = before.at(scheduled.id);
      records.push_back({scheduled.id, begin, begin + scheduled.num_tokens, sequence.num_preemptions,
                         sequence.block_table});
      Known& known = sequences_.at(scheduled.id);
      const auto num_known = std::ssize(known.prompt) + std::ssize(known.output) + known.num_being_sampled;
      ++known.num_in_flight;
      known.num_being_sampled += records.back().after == num_known;
      known.last_step = output.step;
    }
    return true;
  }

  void write(const Record& record) {
    const Known& known = sequences_.at(record.id);
    Ids tokens = known.prompt;
    tokens.insert(tokens.end(), known.output.begin(), known.output.end());
    const int64_t size = scheduler.config().batch.block_size;
    uint64_t fingerprint = 0;
    for (int64_t p = 0; p < record.after; ++p) {
      // Past the end of what has ended stands something that nobody knows.
      fingerprint = p < std::ssize(tokens) ? extend_fingerprint(fingerprint, tokens[p]) : 0;
      if (p >= record.before) (*slots_)[record.table[p / size] * size + p % size] = fingerprint;
    }
  }

  FinishReason reason_of(const Known& known, int32_t token, std::optional<int32_t>& stop_token_id) const {
    const auto is_in = [&](const Ids& ids) { return std::ranges::find(ids, token) != ids.end(); };
    const SamplingParams& asked = known.sampling;
    const int64_t count = std::ssize(known.output);
    const bool ends = !asked.ignore_eos && is_in(scheduler.config().eos_token_ids);
    if (count >= asked.min_tokens && (ends || is_in(asked.stop_token_ids))) {
      if (!ends) stop_token_id = token;
      return FinishReason::stop;
    }
    return count == *asked.max_tokens ? FinishReason::length : FinishReason::none;
  }

  void collect_one() {
    StepOutput answer = executor.collect(tickets.front());
    tickets.pop_front();
    const std::vector<Record> records = std::move(in_flight_.front());
    in_flight_.pop_front();
    const int64_t step = answer.step, size = scheduler.config().batch.block_size;
    std::map<SequenceId, Told> expected;
    std::map<int32_t, bool> is_cached;  // what must hold of blocks after it
    for (size_t i = 0; i < records.size(); ++i) {
      const Record& record = records[i];
      SequenceStepOutput& one = answer.sequences[i];
      Known& known = sequences_.at(record.id);
      const Sequence& sequence = *scheduler.find(record.id);
      write(record);
      --known.num_in_flight;
      known.num_being_sampled -= std::ssize(one.token_ids);
      if (known.ended) {
        num_late += std::ssize(one.token_ids);
        continue;
      }
      const bool invalid = !one.token_ids.empty() && random_.integer(0, 15) == 0;
      if (invalid) one.token_ids[0] = kInvalidToken;
      if (known.sampling.logprobs && !one.token_ids.empty())
        one.logprobs = {{{one.token_ids[0], -static_cast<float>(step)}, {}}};
      Told told;
      told.num_cached_tokens = sequence.num_cached_tokens;
      told.num_preemptions = sequence.num_preemptions;
      for (size_t j = 0; j < one.prompt_logprobs.size(); ++j) {
        if (record.before + static_cast<int64_t>(j) < known.num_told) {
          ++num_told_twice;
          continue;
        }
        told.prompt_tokens.push_back(one.prompt_logprobs[j].chosen.token_id);
      }
      known.num_told += std::ssize(told.prompt_tokens);
      if (invalid) {
        told.reason = FinishReason::error;
        ++num_invalid;
      } else if (!one.token_ids.empty()) {
        told.tokens = one.token_ids;
        for (const PositionLogprobs& logprobs : one.logprobs)
          told.logprobs.push_back(logprobs.chosen.logprob);
        known.output.push_back(one.token_ids[0]);
        told.reason = reason_of(known, one.token_ids[0], told.stop_token_id);
      }
      if (!one.token_ids.empty() || !told.prompt_tokens.empty()) expected[record.id] = told;
      if (record.num_preemptions == sequence.num_preemptions)
        for (int64_t b = 0; b < record.after / size; ++b) {
          const int32_t id = record.table[b];
          is_cached[id] |= !invalid || scheduler.blocks().is_cached(id);
        }
      if (told.reason != FinishReason::none) {
        give_up_blocks(record.id, sequence.block_table);
        end(known, told.reason);
      }
    }
    std::map<SequenceId, Told> seen;
    for (const SequenceUpdate& update : scheduler.update(std::move(answer))) {
      Told told{
          update.new_token_ids,  {}, {}, update.finish_reason, update.stop_token_id, update.num_cached_tokens,
          update.num_preemptions};
      for (const PositionLogprobs& one : update.logprobs) told.logprobs.push_back(one.chosen.logprob);
      for (const PositionLogprobs& one : update.prompt_logprobs)
        told.prompt_tokens.push_back(one.chosen.token_id);
      ASSERT_TRUE(seen.emplace(update.id, told).second) << "sequence " << update.id << " is told of twice";
    }
    std::erase_if(held_, [&](const Held& held) { return held.last_step <= step; });
    for (const auto& [id, told] : expected) {
      SCOPED_TRACE("step " + std::to_string(step) + ", sequence " + std::to_string(id));
      ASSERT_TRUE(seen.contains(id)) << "it has something to tell";
      EXPECT_EQ(seen[id].tokens, told.tokens);
      EXPECT_EQ(seen[id].logprobs, told.logprobs);
      EXPECT_EQ(seen[id].prompt_tokens, told.prompt_tokens) << "prompt log probabilities, by their tokens";
      EXPECT_EQ(seen[id].reason, told.reason);
      EXPECT_EQ(seen[id].stop_token_id, told.stop_token_id);
      EXPECT_EQ(seen[id].num_cached_tokens, told.num_cached_tokens);
      EXPECT_EQ(seen[id].num_preemptions, told.num_preemptions);
    }
    for (const auto& [id, told] : seen)
      EXPECT_TRUE(expected.contains(id))
          << "step " << step << ": nothing of sequence " << id << " is to be told";
    for (const auto& [id, cached] : is_cached)
      EXPECT_EQ(scheduler.blocks().is_cached(id), cached) << "block " << id << " after step " << step;
  }

  void check_state() {
    expect_books_balance(scheduler);
    std::set<int32_t> used;
    for (const Sequence* sequence : scheduler.running_)
      used.insert(sequence->block_table.begin(), sequence->block_table.end());
    for (const Held& held : held_) used.insert(held.table.begin(), held.table.end());
    ASSERT_EQ(scheduler.blocks().num_used_blocks(), std::ssize(used))
        << "of those who run, and of those who ended while a step in flight computes them";
    for (const auto& [id, known] : sequences_) {
      const Sequence* sequence = scheduler.find(id);
      ASSERT_EQ(sequence == nullptr, known.ended && known.num_in_flight == 0) << "sequence " << id;
      if (sequence == nullptr) continue;
      ASSERT_EQ(sequence->finished(), known.ended) << "sequence " << id;
      ASSERT_EQ(sequence->finish_reason, known.reason) << "sequence " << id;
      ASSERT_EQ(sequence->num_steps_in_flight, known.num_in_flight) << "sequence " << id;
      ASSERT_EQ(sequence->num_placeholders, known.num_being_sampled) << "sequence " << id;
      ASSERT_EQ(sequence->output_token_ids, known.output) << "sequence " << id;
    }
  }

  testing::Random& random_;
  std::unique_ptr<Slots> slots_;
  std::map<SequenceId, Known> sequences_;
  std::deque<std::vector<Record>> in_flight_;
  std::vector<Held> held_;
};

TEST(Hidden5_5_Update, ChangesWhatTheRulesSayAndNothingElse) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  int64_t num_late = 0, num_invalid = 0, num_told_twice = 0, num_preempted_in_flight = 0;
  for (int day = 0; day < 120; ++day) {
    PaperUpdates of(random, random_config(random), static_cast<int>(random.integer(0, 3)));
    of.day();
    if (HasFailure()) return;
    num_late += of.num_late;
    num_invalid += of.num_invalid;
    num_told_twice += of.num_told_twice;
    num_preempted_in_flight += of.num_preempted_in_flight;
  }
  for (const int64_t seen : {num_late, num_invalid, num_told_twice, num_preempted_in_flight})
    EXPECT_GT(seen, 20) << "too little has happened";
}

// An answer with one thing wrong in it is refused.
TEST(Hidden5_5_Update, RefusesWhatDoesNotFit) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  std::map<int64_t, int> tried;
  for (int day = 0; day < 150; ++day) {
    SchedulerConfig config = random_config(random);
    config.batch.num_kv_blocks = 400;  // for all, so that some step is always there
    SimpleHarness harness(config, static_cast<int>(random.integer(0, 2)));
    for (int i = 0; i < 6; ++i)
      harness.add(iota_prompt(random.integer(1, 30), static_cast<int32_t>(random.integer(0, 9))),
                  random_sampling(random));
    for (int64_t turn = random.integer(0, 6); turn > 0; --turn) harness.turn();
    if (harness.tickets.empty() && !harness.submit()) continue;
    StepOutput answer = harness.executor.collect(harness.tickets.front());
    const auto index = static_cast<size_t>(random.integer(0, std::ssize(answer.sequences) - 1));
    SequenceStepOutput& one = answer.sequences[index];
    const int64_t wrong = random.integer(0, 5);
    if (wrong == 0) {
      one.id += 1;
    } else if (wrong == 1) {
      if (one.token_ids.empty()) continue;
      one.token_ids.clear();
    } else if (wrong == 2) {  // a token where none is sampled, or a second one
      one.token_ids.push_back(5);
    } else if (wrong == 3) {
      const auto other = static_cast<size_t>(random.integer(0, std::ssize(answer.sequences) - 1));
      if (other == index) continue;
      std::swap(one.id, answer.sequences[other].id);
    } else if (wrong == 4) {
      answer.step += random.one_of<int64_t>({-1, 1});
    } else {
      answer.sequences.pop_back();
    }
    ++tried[wrong];
    EXPECT_THROW(harness.scheduler.update(std::move(answer)), Error) << "wrong in way " << wrong;
  }
  EXPECT_EQ(tried.size(), 6u);
}

}  // namespace
}  // namespace ladder
