// What a viewer gets who asks the ring again and again, in time or too late; and over every kind of client.
#include "step6_engine/trace/trace_ring.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "step6_engine/thread_engine_client.h"
#include "step6_engine/trace/trace_json.h"
#include "step6_engine/trace/trace_state.h"
#include "tests/step6_engine/remote/make_client.h"
#include "tests/step6_engine/trace/recorded_engine.h"

namespace ladder {
namespace {

using testing::make_engine;
using testing::prompt_of;
using testing::run;
using testing::token_request;
using testing::Truth;

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

// Of no task's: it takes 6.9 and 6.10.
TEST(TraceWatch, AViewerSeesAnEngineOverASocketToo) {
  const testing::ClientPointer client =
      testing::client_over_a_socket(std::unique_ptr<Engine>(new Engine(make_engine(2))), {});
  expect_to_be_watched(*client);
  client->stop();
  EXPECT_THROW(client->trace_since(0, 10), EngineUnavailable);
}

}  // namespace
}  // namespace ladder
