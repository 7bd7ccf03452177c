// --trace and ladder trace.
#include <gmock/gmock.h>

#include "cli/live_view.h"
#include "cli/terminal.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::expect_refused;
using ::testing::HasSubstr;
using testing::Json;
using testing::run_binary;

std::string tiny_trace(const testing::TemporaryFolder& folder) {
  const std::string path = (folder / "trace.jsonl").string();
  const BinaryResult result = run_binary({"generate", "--model", testing::tinyworld(), "--kv-memory", "4MiB",
                                          "--prompts", testing::tinyworld() + "/demo_prompts.jsonl",
                                          "--max-tokens", "12", "--trace", path, "--max-num-seqs", "3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return path;
}

TEST(Cli_Trace, GenerateRecordsAndTraceTellsWhatItSays) {
  const testing::TemporaryFolder folder;
  const std::string path = tiny_trace(folder);
  const BinaryResult result = run_binary({"trace", path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("most sequences in a step        3 of 3\n"));
  EXPECT_THAT(result.out, HasSubstr("completions seen                8\n"));
  EXPECT_THAT(result.out, HasSubstr("most sequences waiting          "));
}

TEST(Cli_Trace, PerfettoIsJsonWithTheStepsOfTheTrace) {
  const testing::TemporaryFolder folder;
  const std::string path = tiny_trace(folder), out = (folder / "out.json").string();
  ASSERT_EQ(run_binary({"trace", path, "--perfetto", out}).exit_code, 0);
  const Json json = Json::parse(testing::read_file(out));
  int64_t num_steps = 0;
  for (const Json& event : json.at("traceEvents")) num_steps += event.at("ph") == "X" && event.at("pid") == 1;
  int64_t num_recorded = 0;
  for (const Json& line : testing::json_lines(testing::read_file(path)))
    num_recorded += line.contains("step");
  EXPECT_EQ(num_steps, num_recorded);
  EXPECT_GT(num_steps, 24);
}

TEST(Cli_Trace, BenchRecordsWhatItMeasures) {
  const testing::TemporaryFolder folder;
  const std::string path = (folder / "trace.jsonl").string();
  const BinaryResult result =
      run_binary({"bench", "latency", "--model", testing::tinyworld(), "--kv-memory", "4MiB", "--prompt-len",
                  "8", "--output-len", "4", "--repeat", "2", "--trace", path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(run_binary({"trace", path}).out, HasSubstr("completions seen                2\n"));
}

TEST(Cli_Trace, ALimitedFileSaysThatItIsNotTheWhole) {
  const testing::TemporaryFolder folder;
  const std::string path = (folder / "trace.jsonl").string();
  run_binary({"generate", "--model", testing::tinyworld(), "--kv-memory", "4MiB", "--prompt", "One day",
              "--max-tokens", "40", "--ignore-eos", "--trace", path, "--trace-limit", "3KiB"});
  EXPECT_LE(std::filesystem::file_size(path), 3072u);
  EXPECT_THAT(run_binary({"trace", path}).out, HasSubstr("as large as it might"));
}

TEST(Cli_Trace, AFullDiskIsSaidAndTheAnswersStillCome) {
  const BinaryResult result =
      run_binary({"generate", "--model", testing::tinyworld(), "--kv-memory", "4MiB", "--prompt", "One day",
                  "--max-tokens", "4", "--trace", "/dev/full"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("ladder: --trace: /dev/full: cannot be written any more"));
}

TEST(Cli_Trace, WhatIsWrongIsOneLine) {
  const testing::TemporaryFolder folder;
  expect_refused(run_binary({"trace", (folder / "none").string()}), "no such file");
  expect_refused(run_binary({"trace", folder.path().string()}), "folder");
  testing::write_file(folder / "bad.jsonl", "\x1b[31mhello\n");
  const BinaryResult bad = run_binary({"trace", (folder / "bad.jsonl").string()});
  expect_refused(bad, "line 1");
  EXPECT_EQ(bad.err.find('\x1b'), std::string::npos);
  const std::string path = tiny_trace(folder);
  expect_refused(run_binary({"trace", path, "--perfetto", path}), "the trace itself");
  expect_refused(run_binary({"trace", path, "--perfetto", folder.path().string()}), "--perfetto");
  expect_refused(run_binary({"generate", "--model", testing::tinyworld(), "--prompt", "a", "--trace",
                             (folder / "no" / "such" / "folder").string()}),
                 "--trace");
  expect_refused(
      run_binary({"generate", "--model", testing::tinyworld(), "--prompt", "a", "--trace-limit", "lots"}),
      "--trace-limit");
}

TEST(Cli_Terminal, TextOfAModelHasNothingThatATerminalObeys) {
  EXPECT_EQ(harmless("a\x1b[2Jb\x07\x7f\xc2\x9b"
                     "1m c\n\td"),
            "a\xef\xbf\xbd[2Jb\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
            "1m c\n\td");
  EXPECT_EQ(harmless("caf\xc3\xa9 \xc2\xa0 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "caf\xc3\xa9 \xc2\xa0 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(harmless("\xc2"), "\xc2");
  EXPECT_EQ(harmless("a\r\nb\rc"),
            "a\nb\xef\xbf\xbd"
            "c");
  const std::string line = on_one_line(
      "a\x1b[2J\nb\xc2\x9b"
      "c");
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_EQ(line.find("\xc2\x9b"), std::string::npos);
}

}  // namespace
}  // namespace ladder
