#include "step7_parallel/workers/step_wire_forms.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/numerics.h"

namespace ladder {
namespace {

SchedulerOutput some_step() {
  SchedulerOutput step;
  step.step = 41;
  step.scheduled = {{.id = 3, .num_tokens = 1, .draft_token_ids = {5, 6}},
                    {.id = 1LL << 40, .num_tokens = 512, .draft_token_ids = {}}};
  NewSequence added;
  added.id = 1LL << 40;
  added.prompt_of = 3;
  added.token_ids = {1, 2, 3};
  added.num_prompt_tokens = 3;
  added.sampling.temperature = 0.5f;
  added.sampling.stop = {"end"};
  added.sampling.logit_bias = {{7, -1.0f}};
  added.sampling.seed = 99;
  added.block_table = {8, 9};
  added.num_computed_tokens = 2;
  step.new_sequences = {added};
  step.continued = {{.id = 3, .new_block_ids = {4}, .num_computed_tokens = 77}};
  step.finished = {10, 11};
  step.preempted = {12};
  step.total_num_tokens = 513;
  step.num_static_padding_rows = 6;
  return step;
}

// Every sixteenth sequence begins a block.
SchedulerOutput decode_step(int64_t num_sequences) {
  SchedulerOutput step;
  for (int64_t i = 0; i < num_sequences; ++i) {
    step.scheduled.push_back({.id = 900 + i, .num_tokens = 1, .draft_token_ids = {}});
    step.continued.push_back({.id = 900 + i, .new_block_ids = {}, .num_computed_tokens = 1000 + i});
    if (i % 16 == 0) step.continued.back().new_block_ids.push_back(static_cast<int32_t>(i));
  }
  step.total_num_tokens = num_sequences;
  return step;
}

TEST(StepWireForms, AStepIsWhatItWas) {
  const SchedulerOutput step = some_step(), read = from_bytes<SchedulerOutput>(to_bytes(step));
  EXPECT_EQ(to_bytes(read), to_bytes(step));
  EXPECT_EQ(read.step, 41);
  ASSERT_EQ(read.scheduled.size(), 2u);
  EXPECT_EQ(read.scheduled[0].draft_token_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(read.scheduled[1].id, 1LL << 40);
  EXPECT_EQ(read.scheduled[1].num_tokens, 512);
  ASSERT_EQ(read.new_sequences.size(), 1u);
  const NewSequence& added = read.new_sequences[0];
  EXPECT_EQ(added.prompt_of, 3);
  EXPECT_EQ(added.token_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(added.num_prompt_tokens, 3);
  EXPECT_EQ(added.sampling.temperature, 0.5f);
  EXPECT_EQ(added.sampling.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(added.sampling.logit_bias, step.new_sequences[0].sampling.logit_bias);
  EXPECT_EQ(added.sampling.seed, step.new_sequences[0].sampling.seed);
  EXPECT_EQ(added.block_table, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(added.num_computed_tokens, 2);
  ASSERT_EQ(read.continued.size(), 1u);
  EXPECT_EQ(read.continued[0].new_block_ids, std::vector<int32_t>{4});
  EXPECT_EQ(read.continued[0].num_computed_tokens, 77);
  EXPECT_EQ(read.finished, (std::vector<SequenceId>{10, 11}));
  EXPECT_EQ(read.preempted, std::vector<SequenceId>{12});
  EXPECT_EQ(read.total_num_tokens, 513);
  EXPECT_EQ(read.num_static_padding_rows, 6);
}

// Columns of every width, with the ends of what a number can be.
TEST(StepWireForms, StepsOfRandomNumbersAreWhatTheyWere) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  for (int round = 0; round < 300; ++round) {
    const int64_t span =
        random.one_of<int64_t>({0, 1, 0xff, 0x100, 0xffff, 0x10000, 0xffffffff, 0x100000000, kMost});
    const int64_t least = random.one_of<int64_t>({0, span == kMost ? 0 : 7, -span / 2, kMost - span});
    const auto number = [&] {
      return random.one_of<int64_t>(
          {least, least + span, least + random.integer(0, std::min<int64_t>(span, 1 << 30))});
    };
    const auto list = [&] {
      std::vector<int32_t> values(static_cast<size_t>(random.integer(0, 2) == 0 ? random.integer(1, 5) : 0));
      for (int32_t& value : values) value = static_cast<int32_t>(number());
      return values;
    };
    SchedulerOutput step;
    step.scheduled.resize(static_cast<size_t>(random.integer(0, 40)));
    for (auto& [id, num_tokens, drafts] : step.scheduled)
      id = number(), num_tokens = number(), drafts = list();
    step.continued.resize(static_cast<size_t>(random.integer(0, 40)));
    for (auto& [id, blocks, computed] : step.continued) id = number(), blocks = list(), computed = number();
    if (round % 10 == 0 && !step.continued.empty()) step.continued[0].id = kLeast;
    SchedulerOutput read = decode_step(17);  // into what another step has left
    const std::string bytes = to_bytes(step);
    WireReader wire(bytes);
    wire(read);
    wire.expect_end();
    ASSERT_EQ(read.scheduled.size(), step.scheduled.size());
    for (size_t i = 0; i < step.scheduled.size(); ++i) {
      ASSERT_EQ(read.scheduled[i].id, step.scheduled[i].id);
      ASSERT_EQ(read.scheduled[i].num_tokens, step.scheduled[i].num_tokens);
      ASSERT_EQ(read.scheduled[i].draft_token_ids, step.scheduled[i].draft_token_ids);
    }
    ASSERT_EQ(read.continued.size(), step.continued.size());
    for (size_t i = 0; i < step.continued.size(); ++i) {
      ASSERT_EQ(read.continued[i].id, step.continued[i].id);
      ASSERT_EQ(read.continued[i].new_block_ids, step.continued[i].new_block_ids);
      ASSERT_EQ(read.continued[i].num_computed_tokens, step.continued[i].num_computed_tokens);
    }
  }
}

TEST(StepWireForms, WhatIsAlikeTakesNoBytes) {
  EXPECT_LT(to_bytes(decode_step(256)).size(), 2000u);  // of 10,300
  EXPECT_LT(to_bytes(decode_step(1)).size(), 200u);
}

// Any byte of it may be another: an Error, or some other step, and no memory that is not there.
TEST(StepWireForms, AStepWithAWrongByteIsAnErrorOrAnotherStep) {
  const std::string bytes = to_bytes(some_step());
  int refused = 0;
  for (size_t at = 0; at < bytes.size(); ++at)
    for (const int with : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::string wrong = bytes;
      wrong[at] = static_cast<char>(with);
      try {
        from_bytes<SchedulerOutput>(wrong);
      } catch (const Error&) {
        ++refused;
      }
    }
  EXPECT_GT(refused, 100);
}

TEST(StepWireForms, AnAnswerIsWhatItWas) {
  StepOutput output;
  output.step = 41;
  SequenceStepOutput sequence;
  sequence.id = 3;
  sequence.token_ids = {17};
  sequence.logprobs = {{.chosen = {17, -0.5f}, .top = {{17, -0.5f}, {4, -1.5f}}, .selected = {{9, -7.0f}}}};
  sequence.prompt_logprobs = {{.chosen = {2, -2.0f}, .top = {}}};
  output.sequences = {sequence};
  output.execute_seconds = 1.5;
  output.sample_seconds = 0.25;
  const auto read = from_bytes<StepOutput>(to_bytes(output));
  EXPECT_EQ(to_bytes(read), to_bytes(output));
  ASSERT_EQ(read.sequences.size(), 1u);
  EXPECT_EQ(read.sequences[0].token_ids, std::vector<int32_t>{17});
  EXPECT_EQ(read.sequences[0].logprobs[0].top[1].token_id, 4);
  EXPECT_EQ(read.sequences[0].logprobs[0].selected[0].logprob, -7.0f);
  EXPECT_EQ(read.sequences[0].prompt_logprobs[0].chosen.token_id, 2);
  EXPECT_EQ(read.execute_seconds, 1.5);
  EXPECT_EQ(read.sample_seconds, 0.25);
}

TEST(StepWireForms, HalfAStepIsAnError) {
  const std::string bytes = to_bytes(some_step());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(from_bytes<SchedulerOutput>(std::string_view(bytes).substr(0, size)), Error) << size;
}

}  // namespace
}  // namespace ladder
