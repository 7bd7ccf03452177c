// Task 4.1: the persistent batch. Every step is checked against a batch laid out from scratch.
#include "step4_runner/batch.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

constexpr int64_t kVocab = 1000;

BatchConfig small_config() {
  BatchConfig config;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 32;
  config.block_size = 4;
  config.num_kv_blocks = 40;
  return config;
}

NewSequence new_sequence(SequenceId id, std::vector<int32_t> token_ids, std::vector<int32_t> block_table,
                         int64_t num_computed_tokens = 0, int64_t num_prompt_tokens = -1) {
  NewSequence sequence;
  sequence.id = id;
  sequence.num_prompt_tokens =
      num_prompt_tokens < 0 ? static_cast<int64_t>(token_ids.size()) : num_prompt_tokens;
  sequence.token_ids = std::move(token_ids);
  sequence.block_table = std::move(block_table);
  sequence.num_computed_tokens = num_computed_tokens;
  return sequence;
}

template <class T>
std::vector<T> values(const Tensor& tensor) {
  return {tensor.data<T>(), tensor.data<T>() + tensor.numel()};
}

// The first `count` entries of a row of the block table.
std::vector<int32_t> table_row(const Batch& batch, int64_t row, int64_t count) {
  return values<int32_t>(batch.attention().block_tables.select(0, row).narrow(0, 0, count));
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

using Ids = std::vector<int32_t>;
using Slots = std::vector<int64_t>;

// The example at the head of batch.h: the rest of a prompt whose start is cached, a decode, a chunk.
TEST(Task4_1_Rows, LaysOutPromptChunkAndDecodeWithoutPadding) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  step.new_sequences = {new_sequence(7, {10, 11, 12, 13, 14, 15, 16, 17}, {5, 2}, 5),
                        new_sequence(9, {20, 21, 22, 23, 24}, {0, 9}, 4, 3),
                        new_sequence(8, {30, 31, 32, 33, 34, 35}, {30})};
  step.scheduled = {{7, 3, {}}, {9, 1, {}}, {8, 4, {}}};
  step.total_num_tokens = 8;
  batch.prepare(step);

  EXPECT_EQ(values<int32_t>(batch.input_ids()), (Ids{15, 16, 17, 24, 30, 31, 32, 33}));
  EXPECT_EQ(values<int32_t>(batch.positions()), (Ids{5, 6, 7, 4, 0, 1, 2, 3}));
  const AttentionMetadata& attention = batch.attention();
  EXPECT_EQ(values<int64_t>(attention.slot_mapping), (Slots{9, 10, 11, 36, 120, 121, 122, 123}));
  EXPECT_EQ(values<int32_t>(attention.query_start_loc), (Ids{0, 3, 4, 8}));
  EXPECT_EQ(values<int32_t>(attention.seq_lens), (Ids{8, 5, 4}));
  EXPECT_EQ(attention.num_seqs, 3);
  EXPECT_EQ(attention.num_tokens, 8);
  EXPECT_EQ(attention.max_query_len, 4);
  EXPECT_EQ(attention.max_seq_len, 8);
  EXPECT_EQ(table_row(batch, 0, 2), (Ids{5, 2}));
  EXPECT_EQ(table_row(batch, 1, 2), (Ids{0, 9}));
  EXPECT_EQ(table_row(batch, 2, 1), (Ids{30}));
  // 8 has two prompt tokens left: it yields none.
  EXPECT_EQ(Slots(batch.logits_indices().begin(), batch.logits_indices().end()), (Slots{2, 3}));
  ASSERT_EQ(batch.sampled_sequences().size(), 2u);
  EXPECT_EQ(batch.sampled_sequences()[0]->id, 7);
  EXPECT_EQ(batch.sampled_sequences()[1]->id, 9);
}

// Forgotten, then new, then continued (scheduler_output.h).
TEST(Task4_1_Changes, ChangesAreAppliedInTheOrderThatTheHeaderStates) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  step.new_sequences = {new_sequence(1, {3, 4}, {5})};
  step.scheduled = {{1, 2, {}}};
  step.total_num_tokens = 2;
  batch.apply(step);

  // Preempted and back in one step, with blocks of another table, to which a change adds one.
  SchedulerOutput back;
  back.step = 1;
  back.preempted = {1};
  back.new_sequences = {new_sequence(1, {3, 4, 9, 8, 7}, {11})};
  back.continued = {{1, {12}, 0}};
  back.scheduled = {{1, 5, {}}};
  back.total_num_tokens = 5;
  batch.apply(back);
  ASSERT_EQ(batch.sequences().size(), 1u);
  EXPECT_EQ(batch.sequences()[0]->block_table, (std::vector<int32_t>{11, 12}));

  // What has left cannot be continued.
  SchedulerOutput gone;
  gone.step = 2;
  gone.finished = {1};
  gone.continued = {{1, {}, 0}};
  EXPECT_NE(error_of([&] { batch.apply(gone); }).find("sequence 1"), std::string::npos);
}

TEST(Task4_1_Rows, SampledTokensStayForTheNextStep) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  step.new_sequences = {new_sequence(1, {10, 11, 12, 13}, {3})};
  step.scheduled = {{1, 4, {}}};
  step.total_num_tokens = 4;
  batch.prepare(step);
  batch.fill(batch.advance(), Ids{77});

  SchedulerOutput next;
  next.step = 1;
  next.continued = {{1, {8}, 4}};
  next.scheduled = {{1, 1, {}}};
  next.total_num_tokens = 1;
  batch.prepare(next);
  EXPECT_EQ(values<int32_t>(batch.input_ids()), (Ids{77}));
  EXPECT_EQ(values<int32_t>(batch.positions()), (Ids{4}));
  EXPECT_EQ(values<int64_t>(batch.attention().slot_mapping), (Slots{32}));
  EXPECT_EQ(table_row(batch, 0, 2), (Ids{3, 8}));
}

// A step laid out while the one before still runs: its input is wherever that step samples it to.
TEST(Task4_1_Rows, ATokenThatIsStillBeingSampledIsAPlaceholderThatTheNextStepMayUse) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  step.new_sequences = {new_sequence(1, {10, 11}, {3}), new_sequence(2, {20, 21, 22}, {4}),
                        new_sequence(3, {30}, {5})};
  step.scheduled = {{1, 1, {}}, {2, 3, {}}, {3, 1, {}}};  // 1 has a token to go: it yields none
  step.total_num_tokens = 5;
  batch.prepare(step);
  const PendingTokens first = batch.advance();
  ASSERT_EQ(first.places.size(), 2u);

  SchedulerOutput next;
  next.step = 1;
  next.continued = {{3, {}, 1}, {1, {}, 1}, {2, {7}, 3}};
  next.scheduled = {{3, 1, {}}, {1, 1, {}}, {2, 1, {}}};
  next.total_num_tokens = 3;
  batch.prepare(next);
  EXPECT_EQ(values<int32_t>(batch.input_ids()), (Ids{-1 - 1, 11, -1 - 0}));
  EXPECT_EQ(values<int32_t>(batch.positions()), (Ids{1, 1, 3}));
  EXPECT_EQ(batch.sampled_sequences()[2]->num_output_tokens(), 1);  // counted, though not known
  const PendingTokens second = batch.advance();
  batch.fill(first, Ids{50, 60});

  SchedulerOutput last;
  last.step = 2;
  last.finished = {3};
  last.continued = {{1, {}, 2}, {2, {}, 4}};
  last.scheduled = {{1, 1, {}}, {2, 1, {}}};
  last.total_num_tokens = 2;
  batch.prepare(last);
  EXPECT_EQ(values<int32_t>(batch.input_ids()), (Ids{-1 - 1, -1 - 2}));
  batch.fill(second, Ids{61, 12, 51});  // 3 has left: its token goes nowhere
  EXPECT_EQ(batch.sequences()[0]->token_ids, (Ids{10, 11, 12}));
  EXPECT_EQ(batch.sequences()[1]->token_ids, (Ids{20, 21, 22, 50, 51}));
}

// A sequence that nothing changes stays as it is; what continues gets its blocks at the end of its table and its count
// as a total.
TEST(Task4_1_Changes, SequencesAreKeptFromStepToStep) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  step.new_sequences = {new_sequence(1, {10, 11, 12, 13, 14, 15, 16}, {3, 5}, 6, 5),
                        new_sequence(2, {20, 21}, {4}), new_sequence(3, {30}, {6})};
  step.new_sequences[1].sampling.top_k = 7;
  step.scheduled = {{2, 1, {}}, {1, 1, {}}, {3, 1, {}}};
  step.total_num_tokens = 3;
  batch.apply(step);
  ASSERT_EQ(batch.sequences().size(), 3u);
  EXPECT_EQ(batch.sequences()[0]->id, 2) << "in the scheduler's order";
  EXPECT_EQ(batch.sequences()[0]->sampling.top_k, 7);
  EXPECT_EQ(batch.sequences()[0]->num_scheduled_tokens, 1);
  EXPECT_EQ(batch.sequences()[1]->num_prompt_tokens, 5);
  EXPECT_EQ(batch.sequences()[1]->num_computed_tokens, 6);
  const uint64_t serial = batch.sequences()[1]->serial;
  EXPECT_NE(serial, batch.sequences()[0]->serial);

  SchedulerOutput next;
  next.step = 1;
  next.finished = {3};
  next.continued = {{1, {8, 9}, 4}};  // two tokens are rolled back
  next.scheduled = {{1, 3, {}}};
  next.total_num_tokens = 3;
  batch.apply(next);
  ASSERT_EQ(batch.sequences().size(), 1u);
  const BatchSequence& kept = *batch.sequences()[0];
  EXPECT_EQ(kept.token_ids, (Ids{10, 11, 12, 13, 14, 15, 16}));
  EXPECT_EQ(kept.block_table, (Ids{3, 5, 8, 9}));
  EXPECT_EQ(kept.num_computed_tokens, 4);
  EXPECT_EQ(kept.num_scheduled_tokens, 3);
  EXPECT_EQ(kept.serial, serial);
  EXPECT_EQ(batch.num_known_sequences(), 2);

  // 2 sat a step out and is still there; 1 comes back as another.
  SchedulerOutput back;
  back.step = 2;
  back.preempted = {1};
  back.new_sequences = {new_sequence(1, {10, 11}, {7})};
  back.continued = {{2, {}, 0}};
  back.scheduled = {{2, 2, {}}, {1, 1, {}}};
  back.total_num_tokens = 3;
  batch.apply(back);
  EXPECT_EQ(batch.sequences()[0]->token_ids, (Ids{20, 21}));
  EXPECT_EQ(batch.sequences()[1]->block_table, (Ids{7}));
  EXPECT_NE(batch.sequences()[1]->serial, serial);
}

TEST(Task4_1_Changes, ACompletionTakesItsPromptFromAnotherSequenceOfTheBatch) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  step.new_sequences = {new_sequence(1, {10, 11, 12}, {3}), new_sequence(2, {}, {4}, 0, 3),
                        new_sequence(3, {50}, {5}, 0, 3)};
  step.new_sequences[1].prompt_of = step.new_sequences[2].prompt_of = 1;
  step.scheduled = {{1, 3, {}}, {2, 3, {}}, {3, 4, {}}};
  step.total_num_tokens = 10;
  batch.apply(step);
  EXPECT_EQ(batch.sequences()[1]->token_ids, (Ids{10, 11, 12}));
  EXPECT_EQ(batch.sequences()[2]->token_ids, (Ids{10, 11, 12, 50})) << "and goes on with output of its own";

  Batch other(small_config(), kVocab);
  step.new_sequences.erase(step.new_sequences.begin());
  step.scheduled.erase(step.scheduled.begin());
  step.total_num_tokens = 7;
  EXPECT_NE(error_of([&] { other.apply(step); }).find("sequence 1"), std::string::npos);
}

// Preempted while its token was on the way, and back under the same id: the token is not one of the
// newcomer's.
TEST(Task4_1_Rows, ATokenThatArrivesLateDoesNotLandInASequenceThatCameBack) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  step.new_sequences = {new_sequence(1, {10, 11}, {3})};
  step.scheduled = {{1, 2, {}}};
  step.total_num_tokens = 2;
  batch.prepare(step);
  const PendingTokens pending = batch.advance();
  SchedulerOutput back;
  back.step = 1;
  back.preempted = {1};
  back.new_sequences = {new_sequence(1, {10, 11, 12}, {5}, 0, 2)};
  back.scheduled = {{1, 3, {}}};
  back.total_num_tokens = 3;
  batch.prepare(back);
  batch.fill(pending, Ids{99});
  EXPECT_EQ(batch.sequences()[0]->token_ids, (Ids{10, 11, 12}));
}

// The sampled ids of a step are overwritten by the next one's: they cannot be read later.
TEST(Task4_1_Rows, APlaceholderIsGoodForOneStepOnly) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  step.new_sequences = {new_sequence(1, {10}, {3}), new_sequence(2, {20, 21}, {4})};
  step.scheduled = {{1, 1, {}}, {2, 1, {}}};
  step.total_num_tokens = 2;
  batch.prepare(step);
  batch.advance();
  SchedulerOutput without;
  without.step = 1;
  without.continued = {{2, {}, 1}};
  without.scheduled = {{2, 1, {}}};
  without.total_num_tokens = 1;
  batch.prepare(without);
  batch.advance();
  SchedulerOutput late;
  late.step = 2;
  late.continued = {{1, {}, 1}};
  late.scheduled = {{1, 1, {}}};
  late.total_num_tokens = 1;
  EXPECT_NE(error_of([&] { batch.prepare(late); }).find("sequence 1"), std::string::npos);
}

// nano-vllm #144: a sequence that comes back after a preemption has output tokens, but must be prefilled
// whole.
TEST(Task4_1_Rows, APreemptedSequenceComesBackWithAllItsTokensAndANewTable) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  step.new_sequences = {new_sequence(1, {10, 11, 12}, {3}), new_sequence(2, {20, 21}, {4})};
  step.scheduled = {{1, 3, {}}, {2, 2, {}}};
  step.total_num_tokens = 5;
  batch.prepare(step);
  batch.fill(batch.advance(), Ids{50, 60});

  SchedulerOutput without;
  without.preempted = {1};
  without.continued = {{2, {}, 2}};
  without.scheduled = {{2, 1, {}}};
  without.total_num_tokens = 1;
  batch.prepare(without);
  batch.fill(batch.advance(), Ids{61});
  EXPECT_EQ(batch.num_known_sequences(), 1);

  SchedulerOutput back;
  back.new_sequences = {new_sequence(1, {10, 11, 12, 50}, {9}, 0, 3)};
  back.continued = {{2, {}, 3}};
  back.scheduled = {{2, 1, {}}, {1, 4, {}}};
  back.total_num_tokens = 5;
  batch.prepare(back);
  EXPECT_EQ(values<int32_t>(batch.input_ids()), (Ids{61, 10, 11, 12, 50}));
  EXPECT_EQ(values<int32_t>(batch.positions()), (Ids{3, 0, 1, 2, 3}));
  EXPECT_EQ(values<int64_t>(batch.attention().slot_mapping), (Slots{19, 36, 37, 38, 39}));
  EXPECT_EQ(table_row(batch, 1, 1), (Ids{9}));
  ASSERT_EQ(batch.sampled_sequences().size(), 2u);
  EXPECT_EQ(batch.sampled_sequences()[1]->num_output_tokens(), 1);
}

// The same sequence preempted and taken back in one step keeps its row: the old table must not shine through.
TEST(Task4_1_Rows, AReturningSequenceInItsOldRowGetsItsNewTable) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  step.new_sequences = {new_sequence(1, {10, 11, 12, 13, 14}, {3, 6})};
  step.scheduled = {{1, 5, {}}};
  step.total_num_tokens = 5;
  batch.prepare(step);
  batch.fill(batch.advance(), Ids{50});
  SchedulerOutput back;
  back.preempted = {1};
  back.new_sequences = {new_sequence(1, {10, 11, 12, 13, 14, 50}, {7, 8}, 0, 5)};
  back.scheduled = {{1, 6, {}}};
  back.total_num_tokens = 6;
  batch.prepare(back);
  EXPECT_EQ(table_row(batch, 0, 2), (Ids{7, 8}));
}

// nano-vllm PR 258: 32 tokens fill 8 blocks, and the slot of the token sampled last may be reserved in a
// ninth.
TEST(Task4_1_Rows, AFullLengthSequenceMayHoldOneBlockMoreThanItFills) {
  Batch batch(small_config(), kVocab);
  std::vector<int32_t> tokens(32, 1), table{0, 1, 2, 3, 4, 5, 6, 7, 8};
  SchedulerOutput step;
  step.new_sequences = {new_sequence(1, tokens, table)};
  step.scheduled = {{1, 32, {}}};
  step.total_num_tokens = 32;
  batch.prepare(step);
  EXPECT_EQ(batch.attention().block_tables.dim(1), 9);
  EXPECT_EQ(table_row(batch, 0, 9), table);
  EXPECT_EQ(values<int64_t>(batch.attention().slot_mapping).back(), 31);
}

TEST(Task4_1_Rows, PaddingRowsComeAfterTheSequencesInNoSlot) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  step.new_sequences = {new_sequence(1, {10, 11}, {3})};
  step.scheduled = {{1, 2, {}}};
  step.total_num_tokens = 2;
  step.num_static_padding_rows = 3;
  batch.prepare(step);
  EXPECT_EQ(batch.input_ids().dim(0), 5);
  EXPECT_EQ(batch.positions().dim(0), 5);
  EXPECT_EQ(batch.attention().num_tokens, 2);
  EXPECT_EQ(values<int64_t>(batch.attention().slot_mapping), (Slots{12, 13, -1, -1, -1}));
  EXPECT_EQ(values<int32_t>(batch.attention().query_start_loc), (Ids{0, 2}));
  EXPECT_EQ(values<int32_t>(batch.input_ids()), (Ids{10, 11, 0, 0, 0}));
  EXPECT_EQ(batch.logits_indices().size(), 1u);
}

TEST(Task4_1_Rows, ARolledBackSequenceIsComputedAgain) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  step.new_sequences = {new_sequence(1, {10, 11, 12}, {3})};
  step.scheduled = {{1, 3, {}}};
  step.total_num_tokens = 3;
  batch.prepare(step);
  batch.fill(batch.advance(), Ids{50});
  SchedulerOutput again;
  again.continued = {{1, {}, 0}};
  again.scheduled = {{1, 4, {}}};
  again.total_num_tokens = 4;
  batch.prepare(again);
  EXPECT_EQ(values<int32_t>(batch.input_ids()), (Ids{10, 11, 12, 50}));
  EXPECT_EQ(batch.logits_indices().size(), 1u);
}

// What the scheduler must not say.
struct Defect {
  const char* name;
  void (*make)(SchedulerOutput& step);
  const char* named;  // what the message must name, beside the step
};

class Task4_1_ChangesDefects : public ::testing::TestWithParam<Defect> {};

TEST_P(Task4_1_ChangesDefects, AreErrorsThatNameTheStepAndTheThing) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput first;
  first.new_sequences = {new_sequence(1, {10, 11, 12, 50}, {3}, 3, 3),
                         new_sequence(2, {20, 21, 60}, {4}, 2, 2)};
  first.scheduled = {{1, 1, {}}, {2, 1, {}}};
  first.total_num_tokens = 2;
  batch.apply(first);

  SchedulerOutput step;
  step.step = 41;
  step.continued = {{1, {}, 3}, {2, {}, 2}};
  step.scheduled = {{1, 1, {}}, {2, 1, {}}};
  step.total_num_tokens = 2;
  SchedulerOutput sound = step;
  GetParam().make(step);
  const std::string error = error_of([&] { batch.apply(step); });
  EXPECT_NE(error.find("step 41"), std::string::npos) << error;
  EXPECT_NE(error.find(GetParam().named), std::string::npos) << error;

  Batch other(small_config(), kVocab);
  other.apply(first);
  EXPECT_EQ(error_of([&] { other.apply(sound); }), "no error");
}

const Defect kDefects[] = {
    {"UnknownScheduled", [](SchedulerOutput& s) { s.scheduled[1].id = 5; }, "sequence 5"},
    {"UnknownContinued", [](SchedulerOutput& s) { s.continued[1].id = 5; }, "sequence 5"},
    {"UnknownFinished", [](SchedulerOutput& s) { s.finished = {5}; }, "sequence 5"},
    {"FinishedTwice",
     [](SchedulerOutput& s) {
       s.finished = {1, 1};
     },
     "sequence 1"},
    {"FinishedAndScheduled", [](SchedulerOutput& s) { s.finished = {2}; }, "sequence 2"},
    {"PreemptedAndScheduled", [](SchedulerOutput& s) { s.preempted = {2}; }, "sequence 2"},
    {"NewTwice", [](SchedulerOutput& s) { s.new_sequences = {new_sequence(2, {1}, {7})}; }, "sequence 2"},
    {"ScheduledTwice", [](SchedulerOutput& s) { s.scheduled[1].id = 1; }, "sequence 1"},
    {"MoreTokensThanKnown",
     [](SchedulerOutput& s) {
       s.scheduled[0].num_tokens = 2;
       s.total_num_tokens = 3;
     },
     "sequence 1"},
    {"NoTokens",
     [](SchedulerOutput& s) {
       s.scheduled[0].num_tokens = 0;
       s.total_num_tokens = 1;
     },
     "sequence 1"},
    {"WrongTotal", [](SchedulerOutput& s) { s.total_num_tokens = 3; }, "3"},
    {"ComputedThatNobodyComputed", [](SchedulerOutput& s) { s.continued[0].num_computed_tokens = 4; },
     "sequence 1"},
    {"BlockOutsideTheCache", [](SchedulerOutput& s) { s.continued[0].new_block_ids = {40}; }, "block 40"},
    {"NegativeBlock", [](SchedulerOutput& s) { s.continued[0].new_block_ids = {-1}; }, "block -1"},
    {"TableTooLong", [](SchedulerOutput& s) { s.continued[0].new_block_ids = Ids(9, 1); }, "sequence 1"},
    {"TableTooShort",
     [](SchedulerOutput& s) {
       s.new_sequences = {new_sequence(3, {1, 2, 3, 4, 5}, {7})};
       s.scheduled.push_back({3, 5, {}});
       s.total_num_tokens = 7;
     },
     "sequence 3"},
    {"TokenOutsideTheVocabulary",
     [](SchedulerOutput& s) {
       s.new_sequences = {new_sequence(3, {1, 1000}, {7})};
     },
     "token 1000"},
    {"NegativeToken", [](SchedulerOutput& s) { s.new_sequences = {new_sequence(3, {-1}, {7})}; }, "token -1"},
    {"TooManyRows", [](SchedulerOutput& s) { s.num_static_padding_rows = 63; }, "63"},
    {"DraftTokens", [](SchedulerOutput& s) { s.scheduled[0].draft_token_ids = {1}; }, "sequence 1"},
};

INSTANTIATE_TEST_SUITE_P(All, Task4_1_ChangesDefects, ::testing::ValuesIn(kDefects),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Task4_1_Changes, RefusesMoreSequencesAndPositionsThanItWasMadeFor) {
  Batch batch(small_config(), kVocab);
  SchedulerOutput step;
  for (SequenceId id = 0; id < 9; ++id) {
    step.new_sequences.push_back(new_sequence(id, {1}, {static_cast<int32_t>(id)}));
    step.scheduled.push_back({id, 1, {}});
  }
  step.total_num_tokens = 9;
  step.step = 6;
  EXPECT_NE(error_of([&] { batch.apply(step); }).find("step 6"), std::string::npos);

  Batch other(small_config(), kVocab);
  SchedulerOutput longer;
  longer.new_sequences = {new_sequence(1, Ids(33, 1), {0, 1, 2, 3, 4, 5, 6, 7, 8})};
  longer.scheduled = {{1, 33, {}}};
  longer.total_num_tokens = 33;
  EXPECT_NE(error_of([&] { other.apply(longer); }).find("sequence 1"), std::string::npos);
}

TEST(Task4_1_TokenCounts, CountTokensOfPromptAndOutput) {
  TokenCounts counts;
  std::vector<int32_t> tokens{5, 6, 5, 7};
  counts.update(tokens, 3);
  tokens.insert(tokens.end(), {5, 8, 7});
  counts.update(tokens, 3);
  EXPECT_EQ(Ids(counts.token_ids().begin(), counts.token_ids().end()), (Ids{5, 6, 7, 8}));
  EXPECT_EQ(Ids(counts.output_counts().begin(), counts.output_counts().end()), (Ids{1, 0, 2, 1}));
}

// A scheduler of the test's own adds, continues, skips, preempts and ends sequences at random, in random
// order and with random chunks. Every step's rows must be those that follow from the sequences alone.
TEST(Task4_1_Rows, RandomStepsAreLaidOutAsIfFromScratch) {
  ladder::testing::Random random;
  SCOPED_TRACE(random.describe());
  const BatchConfig config = small_config();
  Batch batch(config, kVocab);
  struct Model {
    Ids tokens, table;
    int64_t num_prompt = 0, num_computed = 0;
    bool known = false;
  };
  std::map<SequenceId, Model> sequences;
  SequenceId next_id = 0;
  int64_t num_sampled = 0, num_returned = 0;
  for (int64_t number = 0; number < 3000; ++number) {
    SchedulerOutput step;
    step.step = number;
    for (auto it = sequences.begin(); it != sequences.end();) {
      Model& model = it->second;
      const bool full = static_cast<int64_t>(model.tokens.size()) > config.max_model_len;
      if (model.known && (full || random.integer(0, 19) == 0)) {
        if (!full && random.integer(0, 1)) {
          step.preempted.push_back(it->first);
          model.known = false;
          model.num_computed = 0;
          model.table.clear();
        } else {
          step.finished.push_back(it->first);
          it = sequences.erase(it);
          continue;
        }
      }
      ++it;
    }
    while (sequences.size() < 12 && random.integer(0, 2)) {
      Model model;
      model.num_prompt = random.integer(1, 20);
      for (int64_t i = 0; i < model.num_prompt; ++i)
        model.tokens.push_back(static_cast<int32_t>(random.integer(0, kVocab - 1)));
      sequences.emplace(next_id++, model);
    }
    std::vector<SequenceId> order;
    for (auto& [id, model] : sequences) order.push_back(id);
    if (random.integer(0, 3) == 0) std::shuffle(order.begin(), order.end(), random.engine());

    Ids input_ids, positions, query_start_loc{0}, seq_lens;
    Slots slots, logits_indices;
    std::vector<Ids> tables;
    std::vector<SequenceId> sampled;
    int64_t budget = config.max_num_batched_tokens;
    for (SequenceId id : order) {
      Model& model = sequences.at(id);
      if (budget == 0 || static_cast<int64_t>(step.scheduled.size()) == config.max_num_seqs) break;
      if (random.integer(0, 9) == 0) continue;
      const int64_t begin = model.num_computed;
      const int64_t left = static_cast<int64_t>(model.tokens.size()) - begin;
      const int64_t count = std::min(budget, random.integer(0, 1) ? left : random.integer(1, left));
      const size_t old_blocks = model.table.size();
      while (static_cast<int64_t>(model.table.size()) * config.block_size < begin + count)
        model.table.push_back(static_cast<int32_t>(random.integer(0, config.num_kv_blocks - 1)));
      if (model.known) {
        step.continued.push_back(
            {id, Ids(model.table.begin() + static_cast<int64_t>(old_blocks), model.table.end()), begin});
      } else {
        num_returned += static_cast<int64_t>(model.tokens.size()) > model.num_prompt;
        step.new_sequences.push_back(new_sequence(id, model.tokens, model.table, 0, model.num_prompt));
        model.known = true;
      }
      step.scheduled.push_back({id, count, {}});
      step.total_num_tokens += count;
      budget -= count;
      for (int64_t p = begin; p < begin + count; ++p) {
        input_ids.push_back(model.tokens[static_cast<size_t>(p)]);
        positions.push_back(static_cast<int32_t>(p));
        slots.push_back(model.table[static_cast<size_t>(p / config.block_size)] * config.block_size +
                        p % config.block_size);
      }
      query_start_loc.push_back(static_cast<int32_t>(input_ids.size()));
      seq_lens.push_back(static_cast<int32_t>(begin + count));
      tables.push_back(model.table);
      model.num_computed = begin + count;
      if (count == left) {
        logits_indices.push_back(static_cast<int64_t>(input_ids.size()) - 1);
        sampled.push_back(id);
      }
    }
    batch.prepare(step);
    ASSERT_EQ(values<int32_t>(batch.input_ids()), input_ids);
    ASSERT_EQ(values<int32_t>(batch.positions()), positions);
    ASSERT_EQ(values<int64_t>(batch.attention().slot_mapping), slots);
    ASSERT_EQ(values<int32_t>(batch.attention().query_start_loc), query_start_loc);
    ASSERT_EQ(values<int32_t>(batch.attention().seq_lens), seq_lens);
    ASSERT_EQ(Slots(batch.logits_indices().begin(), batch.logits_indices().end()), logits_indices);
    for (size_t row = 0; row < tables.size(); ++row)
      ASSERT_EQ(table_row(batch, static_cast<int64_t>(row), static_cast<int64_t>(tables[row].size())),
                tables[row]);
    Ids tokens;
    for (SequenceId id : sampled) {
      tokens.push_back(static_cast<int32_t>(random.integer(0, kVocab - 1)));
      sequences.at(id).tokens.push_back(tokens.back());
    }
    batch.fill(batch.advance(), tokens);
    num_sampled += static_cast<int64_t>(tokens.size());
  }
  EXPECT_GT(num_sampled, 1000);
  EXPECT_GT(num_returned, 100);  // preempted sequences did come back
}

}  // namespace
}  // namespace ladder
