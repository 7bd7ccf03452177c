// What the recorder tells of engines without a model.
#include "step6_engine/trace/step_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "step6_engine/trace/trace_json.h"
#include "step6_engine/trace/trace_state.h"
#include "tests/step6_engine/trace/recorded_engine.h"

namespace ladder {
namespace {

using ::testing::ElementsAre;
using testing::make_engine;
using testing::prompt_of;
using testing::Recording;
using testing::run;
using testing::token_request;
using testing::Truth;

TEST(Task6_10_StepRecorder, TellsChunksDecodesAndTheEnd) {
  Engine engine = make_engine();
  Recording trace;
  trace.record(engine);
  engine.add_request(token_request(prompt_of(40, 1), 3, "a"));  // 32 tokens a step
  run(engine);

  ASSERT_EQ(trace.records.size(), 6u);
  EXPECT_TRUE(trace.records[0].restart);
  const TraceRecord& first = trace.records[1];
  ASSERT_EQ(first.arrived.size(), 1u);
  EXPECT_EQ(first.arrived[0].request_id, "a");
  EXPECT_EQ(first.arrived[0].num_prompt_tokens, 40);
  ASSERT_EQ(first.batch.size(), 1u);
  EXPECT_EQ(first.batch[0].num_tokens, 32);
  EXPECT_EQ(first.batch[0].phase, TracePhase::prefill);
  EXPECT_EQ(first.num_new_tokens, 0);
  EXPECT_THAT(first.blocks.runs, ElementsAre(BlockRun{{0, 8}, BlockState::held}));
  const TraceRecord& second = trace.records[2];
  EXPECT_EQ(second.batch[0].num_tokens, 8);
  EXPECT_EQ(second.batch[0].num_computed, 32);
  EXPECT_EQ(second.num_new_tokens, 1);
  EXPECT_EQ(trace.records[3].batch[0].phase, TracePhase::decode);
  const TraceRecord& last = trace.records[4];
  ASSERT_EQ(last.ended.size(), 1u);
  EXPECT_EQ(last.ended[0].reason, FinishReason::length);
  const TraceRecord& rest = trace.records[5];
  EXPECT_EQ(rest.step, -1);
  EXPECT_THAT(rest.blocks.runs,
              ElementsAre(BlockRun{{0, 10}, BlockState::cached}, BlockRun{{10, 1}, BlockState::free}));
}

TEST(Task6_10_StepRecorder, TellsTheQueueAndWhatWasCached) {
  SchedulerConfig config = testing::fake_config();
  config.batch.max_num_seqs = 1;
  Engine engine = make_engine(1, config);
  Recording trace;
  trace.record(engine);
  engine.add_request(token_request(prompt_of(9, 1), 2, "a"));
  engine.add_request(token_request(prompt_of(9, 1), 2, "b"));
  engine.add_request(token_request(prompt_of(9, 100), 2, "c"));
  run(engine);

  const TraceRecord& first = trace.records[1];
  EXPECT_EQ(first.num_waiting, 2);
  EXPECT_EQ(first.queue.size(), 2u);
  EXPECT_EQ(first.arrived.size(), 3u);
  ASSERT_THAT(first.admitted, ::testing::SizeIs(1));
  EXPECT_EQ(first.admitted[0].num_cached_tokens, 0);
  const TraceRecord& b = trace.records[3];
  ASSERT_THAT(b.admitted, ::testing::SizeIs(1));
  EXPECT_EQ(b.admitted[0].num_cached_tokens, 8);
  EXPECT_EQ(b.batch[0].num_tokens, 1) << "two blocks of four tokens were there";
  EXPECT_EQ(b.batch[0].phase, TracePhase::prefill) << "it is the prompt's last token";
}

TEST(Task6_10_StepRecorder, AnAbortedRequestHasAnEnd) {
  Engine engine = make_engine();
  Recording trace;
  trace.record(engine);
  engine.add_request(token_request(prompt_of(9, 1), 20, "a"));
  engine.step();
  engine.abort("a");
  engine.take_results();
  ASSERT_THAT(trace.records.back().ended, ::testing::SizeIs(1));
  EXPECT_EQ(trace.records.back().ended[0].reason, FinishReason::abort);
}

// Whatever happens, and however many steps are in flight: a viewer's table after each record is the scheduler's when
// the step was planned, every sequence in a batch was told, and the names are right.
class Task6_10_StepRecorderInFlight : public ::testing::TestWithParam<int> {};

TEST_P(Task6_10_StepRecorderInFlight, ARandomDayIsToldAsItWas) {
  SchedulerConfig config = testing::fake_config();
  config.batch.num_kv_blocks = 24;  // preemptions and evictions
  config.watermark = 0.0;
  Engine engine = make_engine(GetParam(), config);
  Recording trace;
  trace.record(engine);
  const auto truth = std::make_shared<Truth>();
  engine.add_observer(truth);
  std::mt19937 random(11);
  std::set<std::string> ids;
  for (int turn = 0; turn < 600; ++turn) {
    if (random() % 3 == 0) {
      Request request = token_request(
          prompt_of(1 + static_cast<int64_t>(random() % 40), static_cast<int32_t>(random() % 3)),
          1 + static_cast<int64_t>(random() % 20), "r" + std::to_string(turn));
      request.sampling.n = 1 + static_cast<int64_t>(random() % 2);
      request.sampling.ignore_eos = true;
      ids.insert(engine.add_request(request));
    }
    if (random() % 11 == 0 && !ids.empty()) {
      const std::string id = *std::next(ids.begin(), static_cast<std::ptrdiff_t>(random() % ids.size()));
      engine.abort(id);
      if (random() % 2 == 0) engine.take_results();
    }
    if (engine.has_unfinished()) engine.step();
  }
  run(engine);

  TraceState viewer(config.batch.num_kv_blocks);
  std::set<SequenceId> told;
  int64_t num_steps = 0, num_ended = 0, num_preempted = 0, num_evicted = 0, num_shared = 0, num_cached = 0;
  for (const TraceRecord& record : trace.records) {
    viewer.apply(record);
    for (const TraceSequence& sequence : record.arrived) {
      EXPECT_TRUE(told.insert(sequence.id).second) << "sequence " << sequence.id << " is told twice";
      EXPECT_TRUE(ids.contains(sequence.request_id));
    }
    num_ended += std::ssize(record.ended);
    num_preempted += std::ssize(record.preempted);
    for (const BlockRange& range : record.blocks.evicted) num_evicted += range.count;
    for (const TraceAdmission& admission : record.admitted) num_cached += admission.num_cached_tokens;
    num_shared = std::max(num_shared, viewer.num_blocks_of(BlockState::shared));
    if (record.step < 0) continue;
    SCOPED_TRACE("step " + std::to_string(record.step));
    EXPECT_EQ(record.step, num_steps++);
    EXPECT_EQ(viewer.blocks(), truth->tables[record.step]);
    EXPECT_EQ(std::ssize(record.batch), truth->running[record.step]);
    for (const TraceWork& work : record.batch) EXPECT_TRUE(told.contains(work.id));
    EXPECT_LE(num_batch_tokens(record), config.batch.max_num_batched_tokens);
    // Written and read again it is the same.
    const std::string line = trace_json(record);
    const TraceLine read = parse_trace_line(line, trace_header(engine), "line");
    EXPECT_EQ(trace_json(std::get<TraceRecord>(read)), line);
  }
  EXPECT_EQ(num_steps, engine.metrics().num_steps);
  EXPECT_EQ(viewer.blocks(), truth->last);
  EXPECT_TRUE(viewer.sequences().empty());
  EXPECT_EQ(num_ended, std::ssize(told)) << "each has one end";
  EXPECT_GT(num_preempted, 0);
  EXPECT_GT(num_evicted, 0);
  EXPECT_GT(num_shared, 0);
  EXPECT_GT(num_cached, 0);
}

INSTANTIATE_TEST_SUITE_P(Depths, Task6_10_StepRecorderInFlight, ::testing::Values(1, 2, 3));

TEST(Task6_10_StepRecorder, OfAnEngineThatDiesEveryRequestHasAnEnd) {
  Engine engine =
      make_engine(2, testing::fake_config(), testing::mixed, [](std::string_view call, int64_t step) {
        if (call == "collect" && step == 3) throw std::runtime_error("broken");
      });
  Recording trace;
  trace.record(engine);
  engine.add_request(token_request(prompt_of(9, 1), 20, "a"));
  engine.add_request(token_request(prompt_of(9, 5), 20, "b"));
  EXPECT_THROW(run(engine), std::runtime_error);
  engine.take_results();
  ASSERT_THAT(trace.records.back().ended, ::testing::SizeIs(2));
  EXPECT_EQ(trace.records.back().ended[0].reason, FinishReason::error);
}

}  // namespace
}  // namespace ladder
