// Tasks 4.1 and 4.3: what a batch takes and refuses, tokens that come late, and what a row forbids, on random sequences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step4_runner/batch.h"
#include "step4_runner/logits_edits.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::Random;
using Ids = std::vector<int32_t>;

constexpr int64_t kVocab = 500;

// A few sequences with prompts, blocks of their own, and a step that computes all of them.
struct Sequences {
  explicit Sequences(Random& random) {
    config.block_size = random.integer(1, 9);
    config.max_num_seqs = 6;
    config.max_num_batched_tokens = 300;
    config.max_model_len = 60;
    config.num_kv_blocks = 6 * config.max_blocks_per_seq();
    first.step = random.integer(0, 900);
    const SequenceId id = random.integer(0, 1000);
    for (int64_t i = 0; i < random.integer(2, 5); ++i) add(random, id + i, random.integer(2, 40));
  }
  void add(Random& random, SequenceId id, int64_t length) {
    NewSequence sequence;
    sequence.id = id;
    sequence.num_prompt_tokens = length;
    for (int64_t i = 0; i < length; ++i)
      sequence.token_ids.push_back(static_cast<int32_t>(random.integer(0, kVocab - 1)));
    for (int64_t slot = 0; slot < length; slot += config.block_size)
      sequence.block_table.push_back(next_block++);
    first.scheduled.push_back({id, length, {}});
    first.total_num_tokens += length;
    first.new_sequences.push_back(std::move(sequence));
  }
  // After the first: each computes its next token, with a block where it needs one.
  SchedulerOutput decode() {
    SchedulerOutput step;
    step.step = first.step + 1;
    for (const NewSequence& sequence : first.new_sequences) {
      const int64_t length = std::ssize(sequence.token_ids);
      step.continued.push_back({sequence.id, {}, length});
      if (length % config.block_size == 0) step.continued.back().new_block_ids.push_back(next_block++);
      step.scheduled.push_back({sequence.id, 1, {}});
      ++step.total_num_tokens;
    }
    return step;
  }
  BatchConfig config;
  SchedulerOutput first;
  int32_t next_block = 0;
};

void fill_all(Batch& batch, int32_t token) {
  const Ids tokens(batch.sampled_sequences().size(), token);
  batch.fill(batch.advance(), tokens);
}

// What a defective scheduler might send: the change, and what the message names besides the step.
struct Defect {
  const char* what;
  std::function<std::string(SchedulerOutput&, const Sequences&)> plant;
};

std::string name_of(const SchedulerOutput& step, size_t at = 0) {
  return "sequence " + std::to_string(step.scheduled[at].id);
}

const Defect kDefects[] = {
    {"unknown", [](auto& s, auto&) { return s.scheduled[0].id = s.continued[0].id = 7777, "sequence 7777"; }},
    {"twice", [](auto& s, auto&) { return s.scheduled[1].id = s.scheduled[0].id, name_of(s); }},
    {"no tokens",
     [](auto& s, auto&) { return s.scheduled[0].num_tokens = 0, --s.total_num_tokens, name_of(s); }},
    {"tokens that it has not",
     [](auto& s, auto&) { return s.scheduled[0].num_tokens = 2, ++s.total_num_tokens, name_of(s); }},
    {"more computed than was",
     [](auto& s, auto&) { return ++s.continued[1].num_computed_tokens, name_of(s, 1); }},
    {"a block outside the cache",
     [](auto& s, const Sequences& of) {
       s.continued[0].new_block_ids.push_back(static_cast<int32_t>(of.config.num_kv_blocks));
       return "block " + std::to_string(of.config.num_kv_blocks);
     }},
    {"known and new",
     [](auto& s, const Sequences& of) {
       return s.new_sequences.push_back(of.first.new_sequences[0]), name_of(s);
     }},
    {"ends and is unknown", [](auto& s, auto&) { return s.finished.push_back(8888), "sequence 8888"; }},
    {"a total that is no sum", [](auto& s, auto&) { return ++s.total_num_tokens, ""; }},
    {"a draft", [](auto& s, auto&) { return s.scheduled[1].draft_token_ids.push_back(3), name_of(s, 1); }},
};

TEST(Hidden4_1_Changes, WhatDoesNotFitIsRefusedByName) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 10; ++round)
    for (const Defect& defect : kDefects) {
      SCOPED_TRACE(defect.what);
      Sequences sequences(random);
      Batch batch(sequences.config, kVocab);
      batch.prepare(sequences.first);
      fill_all(batch, 5);
      SchedulerOutput step = sequences.decode();
      const std::string named = defect.plant(step, sequences);
      try {
        batch.prepare(step);
        ADD_FAILURE() << "was taken";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(named));
        EXPECT_THAT(error.what(), HasSubstr("step " + std::to_string(step.step)));
      }
    }
}

TEST(Hidden4_1_Changes, NoTokenLiesBeyondTheBlocks) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 40; ++round) {
    Sequences sequences(random);
    NewSequence& sequence = sequences.first.new_sequences[0];
    sequence.block_table.pop_back();
    const std::string named = name_of(sequences.first);
    Batch batch(sequences.config, kVocab);
    try {
      batch.prepare(sequences.first);
      ADD_FAILURE() << std::ssize(sequence.token_ids) << " tokens in " << sequence.block_table.size()
                    << " blocks of " << sequences.config.block_size;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(named));
    }
  }
}

// Some leave and come back in one step, with other blocks, and with the token of the step before still on its way.
TEST(Hidden4_1_Changes, WhoLeavesAndComesBackInOneStepIsNew) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 60; ++round) {
    Sequences sequences(random);
    Batch batch(sequences.config, kVocab);
    batch.prepare(sequences.first);
    const PendingTokens pending = batch.advance();
    SchedulerOutput step = sequences.decode();
    const auto back = static_cast<size_t>(random.integer(0, std::ssize(step.scheduled) - 1));
    NewSequence again = sequences.first.new_sequences[back];
    const int64_t length = std::ssize(again.token_ids);
    for (int32_t& block : again.block_table) block = sequences.next_block++;
    step.preempted = {again.id};
    step.continued.erase(step.continued.begin() + static_cast<int64_t>(back));
    step.scheduled[back].num_tokens = length;
    step.total_num_tokens += length - 1;
    step.new_sequences = {again};
    batch.prepare(step);
    ASSERT_EQ(batch.sequences().size(), step.scheduled.size());
    const BatchSequence& sequence = *batch.sequences()[back];
    EXPECT_EQ(sequence.block_table, again.block_table);
    EXPECT_EQ(sequence.num_computed_tokens, 0);
    EXPECT_EQ(sequence.token_ids, again.token_ids);

    const PendingTokens next = batch.advance();
    batch.fill(next, Ids(next.places.size(), 88));
    batch.fill(pending, Ids(pending.places.size(), 77));  // one of them is for the one that left
    for (size_t i = 0; i < batch.sequences().size(); ++i) {
      Ids expected = sequences.first.new_sequences[i].token_ids;
      if (i != back) expected.push_back(77);
      expected.push_back(88);
      EXPECT_EQ(batch.sequences()[i]->token_ids, expected) << "sequence " << batch.sequences()[i]->id;
    }
  }
}

template <class T>
std::vector<T> values(const Tensor& tensor) {
  return {tensor.data<T>(), tensor.data<T>() + tensor.numel()};
}

// Decodes that are laid out before their tokens are known, in another order, some of them not in the step.
TEST(Hidden4_1_Rows, PlaceholdersSayWhichTokenTheyAre) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 60; ++round) {
    Sequences sequences(random);
    Batch batch(sequences.config, kVocab);
    batch.prepare(sequences.first);
    batch.advance();
    SchedulerOutput step = sequences.decode();
    Ids order(step.scheduled.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random.engine());
    order.resize(static_cast<size_t>(random.integer(1, std::ssize(order))));
    SchedulerOutput some;
    some.step = step.step;
    Ids ids, positions, lengths, logits;
    for (const int32_t i : order) {
      some.continued.push_back(step.continued[i]);
      some.scheduled.push_back(step.scheduled[i]);
      ++some.total_num_tokens;
      const auto length = static_cast<int32_t>(step.continued[i].num_computed_tokens);
      ids.push_back(-1 - i);
      positions.push_back(length);
      lengths.push_back(length + 1);
    }
    batch.prepare(some);
    EXPECT_EQ(values<int32_t>(batch.input_ids()), ids);
    EXPECT_EQ(values<int32_t>(batch.positions()), positions);
    EXPECT_EQ(values<int32_t>(batch.attention().seq_lens), lengths);
  }
}

// The tokens that a row may not get, and its biases, from the definitions.
TEST(Hidden4_3_Edits, ForbidAndFavourAsAsked) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 300; ++round) {
    const int64_t vocab = random.integer(3, 40);
    const auto any = [&] { return static_cast<int32_t>(random.integer(0, vocab - 1)); };
    BatchSequence sequence;
    sequence.num_prompt_tokens = random.integer(1, 6);
    for (int64_t i = random.integer(0, 8) + sequence.num_prompt_tokens; i > 0; --i)
      sequence.token_ids.push_back(static_cast<int32_t>(random.integer(0, 2)));  // so that words do occur
    SamplingParams& p = sequence.sampling;
    for (int64_t i = random.integer(0, 4); i > 0; --i) {
      Ids word(static_cast<size_t>(random.integer(1, 4)));
      for (int32_t& token : word) token = static_cast<int32_t>(random.integer(0, 2));
      p.bad_words_token_ids.push_back(word);
    }
    p.min_tokens = random.integer(0, 8);
    for (int64_t i = random.integer(0, 3); i > 0; --i) p.all_stop_token_ids.push_back(any());
    for (int64_t i = random.integer(0, 5); i > 0; --i)
      p.logit_bias[any()] = static_cast<double>(random.integer(-9, 9));
    if (random.integer(0, 1))
      for (int64_t i = random.integer(1, vocab); i > 0; --i) p.allowed_token_ids.push_back(any());

    std::vector<float> expected(static_cast<size_t>(vocab), 0.0f);
    for (const auto& [id, bias] : p.logit_bias) expected[id] += static_cast<float>(bias);
    const Ids output(sequence.token_ids.begin() + sequence.num_prompt_tokens, sequence.token_ids.end());
    for (const Ids& word : p.bad_words_token_ids)
      if (output.size() + 1 >= word.size() &&
          std::equal(word.begin(), word.end() - 1, output.end() - (std::ssize(word) - 1)))
        expected[word.back()] = -INFINITY;
    if (std::ssize(output) < p.min_tokens)
      for (const int32_t id : p.all_stop_token_ids) expected[id] = -INFINITY;
    if (!p.allowed_token_ids.empty())
      for (int32_t id = 0; id < vocab; ++id)
        if (!std::ranges::count(p.allowed_token_ids, id)) expected[id] = -INFINITY;

    LogitsEdits edits(vocab);
    edits.next_row();  // of nobody
    edit_as_requested(sequence, edits);
    edits.next_row();
    std::vector<float> seen(static_cast<size_t>(vocab), 0.0f);
    std::vector<int> times(static_cast<size_t>(vocab), 0);
    ASSERT_EQ(edits.row_start().size(), 3u);
    for (int32_t i = edits.row_start()[1]; i < edits.row_start()[2]; ++i) {
      seen[edits.token_ids()[i]] += edits.biases()[i];
      EXPECT_EQ(++times[edits.token_ids()[i]], 1)
          << "token " << edits.token_ids()[i] << " stands twice in the row";
    }
    if (const int32_t mask = edits.mask_index()[1]; mask >= 0)
      for (int64_t id = 0; id < vocab; ++id)
        if ((edits.bitmask()[mask * ((vocab + 31) / 32) + id / 32] >> id % 32 & 1) == 0) seen[id] = -INFINITY;
    ASSERT_EQ(seen, expected) << "round " << round;
  }
}

}  // namespace
}  // namespace ladder
