// Traces in files: written, read, refused; and what becomes of them for ui.perfetto.dev.
#include "step6_engine/trace/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step6_engine/trace/perfetto.h"
#include "step6_engine/trace/trace_json.h"
#include "tests/step6_engine/trace/recorded_engine.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::make_engine;
using testing::prompt_of;
using testing::Recording;
using testing::run;
using testing::token_request;

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
