// The recorder on engines without a model, the ring, and what leaves as JSON.
#include "step6_engine/trace/step_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step6_engine/thread_engine_client.h"
#include "step6_engine/trace/perfetto.h"
#include "step6_engine/trace/trace_file.h"
#include "step6_engine/trace/trace_json.h"
#include "step6_engine/trace/trace_ring.h"
#include "step6_engine/trace/trace_state.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/remote/make_client.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::make_engine;
using testing::token_request;

std::vector<int32_t> prompt_of(int64_t length, int32_t first) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back(first + static_cast<int32_t>(i % 7));
  return ids;
}

// A viewer's books: what must hold in any row of records.
struct Recording {
  std::vector<TraceRecord> records;

  void record(Engine& engine) {
    engine.add_observer(
        std::make_shared<StepRecorder>(engine, [this](const TraceRecord& r) { records.push_back(r); }));
  }
};

void run(Engine& engine) {
  while (engine.has_unfinished()) engine.step();
}

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

// Notes the truth at the moments at which the recorder notes its own.
class Truth final : public EngineObserver {
 public:
  void on_submit(const Engine& engine, const SchedulerOutput& step) override {
    tables[step.step] = table(engine);
    running[step.step] = std::ssize(step.scheduled);
  }
  void on_results(const Engine& engine, const StepResult&) override { last = table(engine); }

  static std::vector<BlockState> table(const Engine& engine) {
    const BlockManager& blocks = engine.scheduler().blocks();
    std::vector<BlockState> states;
    for (int32_t id = 0; id < blocks.num_blocks(); ++id)
      states.push_back(blocks.ref_count(id) > 1    ? BlockState::shared
                       : blocks.ref_count(id) == 1 ? BlockState::held
                       : blocks.is_cached(id)      ? BlockState::cached
                                                   : BlockState::free);
    return states;
  }

  std::map<int64_t, std::vector<BlockState>> tables;
  std::map<int64_t, int64_t> running;
  std::vector<BlockState> last;
};

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

// The lines that a viewer has got, and the state that they lead to.
struct Viewer {
  int64_t position = 0;
  int64_t num_restarts = 0;
  int64_t last_step = -1;
  int64_t num_gaps = 0;
  std::optional<TraceHeader> header;
  std::optional<TraceState> state;

  void take(const TraceSlice& slice) {
    position = slice.next;
    for (size_t i = 0; i < slice.lines.size(); ++i) {
      if (slice.restarted && i == 0) {
        header = parse_trace_header(slice.lines[0], "header");
        state.emplace(header->num_blocks);
        ++num_restarts;
        last_step = -1;
        continue;
      }
      const auto record = std::get<TraceRecord>(parse_trace_line(slice.lines[i], *header, "line"));
      if (record.step >= 0 && last_step >= 0 && record.step != last_step + 1) ++num_gaps;
      if (record.step >= 0) last_step = record.step;
      state->apply(record);
    }
  }
};

TEST(Task6_10_TraceRing, RecordsOnlyWhileSomebodyWatches) {
  Engine engine = make_engine();
  TraceRingLimits limits;
  limits.watch_seconds = 3600;
  const auto ring = std::make_shared<TraceRing>(trace_header(engine), limits);
  limits.watch_seconds = 0.001;
  const auto forgetful = std::make_shared<TraceRing>(trace_header(engine), limits);
  engine.add_observer(ring);
  engine.add_observer(forgetful);
  const auto lines_of = [](TraceRing& one) { return one.since(0, 1000).lines.size(); };
  engine.add_request(token_request(prompt_of(9, 1), 4));
  run(engine);
  EXPECT_EQ(lines_of(*ring), 1u) << "the header alone";
  EXPECT_EQ(lines_of(*forgetful), 1u);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  engine.add_request(token_request(prompt_of(9, 1), 4));
  run(engine);
  EXPECT_EQ(lines_of(*ring), 1u + 1u + 4u + 1u) << "header, restart, four steps, rest";
  EXPECT_EQ(lines_of(*forgetful), 1u) << "nobody has asked for longer than watch_seconds";
}

TEST(Task6_10_TraceRing, AViewerThatIsTooSlowStartsAnewAndIsRight) {
  SchedulerConfig config = testing::fake_config();
  config.batch.num_kv_blocks = 24;
  Engine engine = make_engine(2, config);
  TraceRingLimits limits;
  limits.max_records = 10;
  const auto ring = std::make_shared<TraceRing>(trace_header(engine), limits);
  engine.add_observer(ring);
  Viewer fast, slow;
  fast.take(ring->since(0, 100));
  slow.take(ring->since(0, 100));
  for (int turn = 0; turn < 300; ++turn) {
    if (turn % 4 == 0) engine.add_request(token_request(prompt_of(1 + turn % 30, turn % 3), 1 + turn % 12));
    if (engine.has_unfinished()) engine.step();
    fast.take(ring->since(fast.position, 100));
    if (turn % 25 == 24) slow.take(ring->since(slow.position, 100));
  }
  run(engine);
  for (int i = 0; i < 3; ++i)
    slow.take(ring->since(slow.position, 100)), fast.take(ring->since(fast.position, 100));
  EXPECT_EQ(fast.num_restarts, 1);
  EXPECT_EQ(fast.num_gaps, 0);
  EXPECT_GT(slow.num_restarts, 3);
  EXPECT_EQ(slow.num_gaps, 0);
  EXPECT_EQ(fast.state->blocks(), Truth::table(engine));
  EXPECT_EQ(slow.state->blocks(), Truth::table(engine));
  EXPECT_TRUE(slow.state->sequences().empty());
}

// What a ring knows of one request's run that was watched from its beginning.
std::shared_ptr<TraceRing> watched_run(Engine& engine, const TraceRingLimits& limits) {
  auto ring = std::make_shared<TraceRing>(trace_header(engine), limits);
  engine.add_observer(ring);
  ring->since(0, 10);
  engine.add_request(token_request(prompt_of(9, 1), 20));
  run(engine);
  return ring;
}

TEST(Task6_10_TraceRing, AnswersFewerRecordsWhereTheyAreLong) {
  Engine engine = make_engine();
  TraceRingLimits limits;
  limits.max_slice_bytes = 1;
  const auto ring = watched_run(engine, limits);
  Viewer viewer;
  int64_t slices = 0;
  for (TraceSlice slice = ring->since(0, 100); !slice.lines.empty();
       slice = ring->since(viewer.position, 100)) {
    viewer.take(slice);
    ++slices;
  }
  EXPECT_EQ(slices, 22) << "one record is as much as there may be";
  EXPECT_EQ(viewer.num_gaps, 0);
  EXPECT_EQ(viewer.state->blocks(), Truth::table(engine));
}

TEST(Task6_10_TraceRing, AnswersNoMoreRecordsThanAskedFor) {
  Engine engine = make_engine();
  const auto ring = watched_run(engine, {});
  Viewer viewer;
  int64_t slices = 0;
  while (true) {
    const TraceSlice slice = ring->since(viewer.position, 3);
    if (slice.lines.empty()) break;
    EXPECT_LE(std::ssize(slice.lines), 4);
    viewer.take(slice);
    ++slices;
  }
  EXPECT_EQ(slices, 8) << "22 records, three at a time";
  EXPECT_EQ(viewer.state->blocks(), Truth::table(engine));
}

void expect_to_be_watched(EngineClient& client) {
  client.submit(token_request(prompt_of(9, 1), 4)).output();
  Viewer viewer;
  // Takes what there is until the condition holds; a test that fails waits for half a minute.
  const auto watch_until = [&](auto condition) {
    for (int i = 0; i < 30'000 && !condition(); ++i) {
      viewer.take(client.trace_since(viewer.position, 100));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(condition());
  };
  watch_until([&] { return viewer.state && viewer.state->num_blocks_of(BlockState::cached) > 0; });
  ASSERT_TRUE(viewer.state.has_value());
  EXPECT_EQ(viewer.state->num_blocks_of(BlockState::cached), 3) << "of the request before";
  RequestStream stream = client.submit(token_request(prompt_of(9, 50), 30));
  while (!stream.ended()) {
    stream.next();
    viewer.take(client.trace_since(viewer.position, 100));
  }
  watch_until([&] { return viewer.state->sequences().empty(); });
  EXPECT_EQ(viewer.num_gaps, 0);
  EXPECT_EQ(viewer.state->num_blocks_of(BlockState::held), 0);
}

TEST(Task6_10_Watch, AViewerSeesAnEngineAtRestAndItsStepsFromAnotherThread) {
  ThreadEngineClient client(std::unique_ptr<Engine>(new Engine(make_engine(2))));
  expect_to_be_watched(client);
  client.stop();
  client.trace_since(0, 10);
}

TEST(Task6_10_Watch, AViewerSeesAnEngineOverASocketToo) {
  const testing::ClientPointer client =
      testing::client_over_a_socket(std::unique_ptr<Engine>(new Engine(make_engine(2))), {});
  expect_to_be_watched(*client);
  client->stop();
  EXPECT_THROW(client->trace_since(0, 10), EngineUnavailable);
}

std::string error_of(const std::filesystem::path& path) {
  try {
    read_trace(
        path, [](const TraceHeader&) {}, [](const TraceRecord&) {});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

constexpr std::string_view kHeader =
    R"({"ladder_trace":1,"num_blocks":8,"block_size":4,"max_num_seqs":2,"max_num_batched_tokens":16,"started":0})";

TEST(TraceFile, WhatIsNoTraceIsRefusedWithItsLine) {
  const testing::TemporaryFolder folder;
  const auto path = folder / "trace.jsonl";
  const std::pair<std::string, std::string> bad[] = {
      {"", "no complete line"},
      {"hello\n", "line 1: not valid JSON"},
      {"{}\n", "line 1: expected a trace"},
      {"[1]\n", "line 1: expected a trace"},
      {R"({"ladder_trace":2})"
       "\n",
       "version 2"},
      {R"({"ladder_trace":1,"num_blocks":99999999999,"block_size":1,"max_num_seqs":1,"max_num_batched_tokens":1})"
       "\n",
       "num_blocks"},
      {R"({"ladder_trace":1,"num_blocks":0,"block_size":1,"max_num_seqs":1,"max_num_batched_tokens":1})"
       "\n",
       "num_blocks"},
  };
  for (const auto& [text, message] : bad) {
    testing::write_file(path, text);
    EXPECT_THAT(error_of(path), HasSubstr(message)) << text;
    EXPECT_EQ(error_of(path).find('\n'), std::string::npos);
  }
  const std::pair<std::string, std::string> bad_records[] = {
      {R"({"blocks":[[7,2,"h"]]})", "blocks[0]"},
      {R"({"blocks":[[-1,1,"h"]]})", "blocks[0]"},
      {R"({"blocks":[[0,0,"h"]]})", "blocks[0]"},
      {R"({"blocks":[[0,9223372036854775807,"h"]]})", "blocks[0]"},
      {R"({"blocks":[[0,1,"x"]]})", "letters"},
      {R"({"blocks":[[0,1]]})", "list of 3"},
      {R"({"blocks":[[8,1,"f"]]})", "blocks[0]"},
      {R"({"evicted":[[0,9]]})", "evicted[0]"},
      {R"({"batch":[[0,"q",1,0]]})", "letters"},
      {R"({"batch":[[0,"p",1e3,0]]})", "batch[0]"},
      {R"({"batch":[[0,"p",-1,0]]})", "batch[0]"},
      {R"({"batch":{"a":1}})", "expected a list"},
      {R"({"queue":["a"]})", "queue[0]"},
      {R"({"ended":[[0,"bored"]]})", "expected stop"},
      {R"({"begin":-1})", "begin"},
      {R"({"begin":1e300})", "begin"},
      {R"({"step":-5})", "step"},
      {R"({"step":1,"step":2})", "twice"},
      {R"({"arrived":[[0,7,0,1,0.0]]})", "arrived[0]"},
      {R"([])", "expected a record"},
      {std::string(100000, '['), "line 2"},
      {"{\"begin\":\"\x1b[31m\"}", "column 11"},
      {"\xff", "line 2"},
  };
  for (const auto& [text, message] : bad_records) {
    testing::write_file(path, std::string(kHeader) + "\n" + text + "\n");
    EXPECT_THAT(error_of(path), HasSubstr("line 2")) << text;
    EXPECT_THAT(error_of(path), HasSubstr(message)) << text;
  }
  EXPECT_THAT(error_of(folder / "none"), HasSubstr("no such file"));
  EXPECT_THAT(error_of(folder.path()), HasSubstr("folder"));
}

TEST(TraceFile, ALineOfAnyLengthBelowTheLimitIsRead) {
  const testing::TemporaryFolder folder;
  const auto path = folder / "trace.jsonl";
  std::string queue = "[0";
  while (queue.size() < 200000) queue += ",1";
  for (const size_t padding : {0u, 1u, 65500u, 65534u, 65535u, 65536u, 65537u})
    for (const bool newline : {true, false}) {
      const std::string line = R"({"step":3,"queue":)" + queue + "]}" + std::string(padding, ' ');
      testing::write_file(
          path, std::string(kHeader) + "\n" + line + "\n" + R"({"step":4})" + (newline ? "\n" : ""));
      std::vector<int64_t> steps;
      const TraceFileEnd end = read_trace(
          path, [](const TraceHeader&) {}, [&](const TraceRecord& record) { steps.push_back(record.step); });
      if (newline)
        EXPECT_THAT(steps, ElementsAre(3, 4));
      else
        EXPECT_THAT(steps, ElementsAre(3)) << "the last line is not complete";
      EXPECT_EQ(end.cut_off, !newline);
    }
}

TEST(Task6_10_TraceFile, GrowsNoLargerThanItMayAndSaysSo) {
  const testing::TemporaryFolder folder;
  const auto path = folder / "trace.jsonl";
  for (const int64_t limit : {1000, 1037, 5000}) {
    {
      Engine engine = make_engine();
      record_to_file(engine, std::make_shared<TraceWriter>(
                                 path, limit, [](const std::string& why) { ADD_FAILURE() << why; }));
      for (int i = 0; i < 20; ++i) engine.add_request(token_request(prompt_of(9, i), 20));
      run(engine);
    }
    EXPECT_LE(static_cast<int64_t>(std::filesystem::file_size(path)), limit);
    int64_t num_records = 0;
    const TraceFileEnd end = read_trace(
        path, [](const TraceHeader&) {}, [&](const TraceRecord&) { ++num_records; });
    EXPECT_TRUE(end.truncated);
    EXPECT_FALSE(end.cut_off);
    EXPECT_GT(num_records, 1);
  }
  EXPECT_THROW(TraceWriter(folder.path(), 1000, {}), Error);
}

// Every write to /dev/full fails: the engine goes on, and the file's owner is told once, at the latest by the end.
TEST(TraceFile, AFullDiskEndsTheRecordingAndIsSaidOnce) {
  for (const int32_t num_requests : {0, 20})
    for (const int64_t limit : {1000, 1 << 30}) {
      std::vector<std::string> said;
      {
        Engine engine = make_engine();
        record_to_file(engine, std::make_shared<TraceWriter>(
                                   "/dev/full", limit, [&](const std::string& why) { said.push_back(why); }));
        std::vector<Request> requests;
        for (int32_t i = 0; i < num_requests; ++i) requests.push_back(token_request(prompt_of(9, i), 20));
        EXPECT_EQ(engine.generate(requests).size(), requests.size());
      }
      EXPECT_THAT(said, ElementsAre(AllOf(HasSubstr("/dev/full"), HasSubstr("No space left"))));
    }
}

TEST(Task6_10_Perfetto, IsJsonWithATrackPerCompletionAndNoOverlap) {
  SchedulerConfig config = testing::fake_config();
  config.batch.num_kv_blocks = 24;
  Engine engine = make_engine(2, config);
  Recording trace;
  trace.record(engine);
  for (int i = 0; i < 12; ++i)
    engine.add_request(token_request(prompt_of(5 + i, i), 10, "<b>\"\x1b[2J\n" + std::to_string(i)));
  run(engine);
  std::string text;
  PerfettoWriter writer(trace_header(engine), [&](std::string_view part) { text += part; });
  for (const TraceRecord& record : trace.records) writer.add(record);
  writer.finish();

  const Json json = parse_json(text, "perfetto");
  std::map<std::pair<int64_t, int64_t>, double> ends;  // of a track's last slice
  std::map<int64_t, std::vector<std::string>> phases;
  std::set<std::string> counters;
  int64_t num_steps = 0;
  for (const Json& event : json["traceEvents"]) {
    if (event["ph"] == "C") counters.insert(event["name"]);
    if (event["ph"] != "X") continue;
    double& end = ends[{event["pid"], event["tid"]}];
    EXPECT_GE(event["ts"].get<double>(), end - 0.002) << event.dump();
    end = event["ts"].get<double>() + event["dur"].get<double>();
    if (event["pid"] == 2) phases[event["tid"]].push_back(event["name"]);
    num_steps += event["pid"] == 1;
  }
  EXPECT_EQ(num_steps, engine.metrics().num_steps);
  EXPECT_THAT(counters, ElementsAre("KV blocks", "sequences", "tokens/s"));
  EXPECT_EQ(phases.size(), 12u);
  for (const auto& [track, names] : phases) {
    EXPECT_EQ(names.front(), "queue");
    EXPECT_EQ(names.back(), "decode");
  }
}

}  // namespace
}  // namespace ladder
