// ladder plan: what it prints, and what it refuses.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace ladder::testing {
namespace {

std::vector<std::string> plan(std::vector<std::string> arguments) {
  const std::string times =
      (source_folder() / "bench" / "results" / "h100x2" / "step_times_llama-3.1-8b.json").string();
  arguments.insert(arguments.begin(), {"plan", "--step-times", times, "--num-requests", "100"});
  return arguments;
}

TEST(Plan, SaysWhatAndWhy) {
  const BinaryResult result = run_binary(plan({"--request-rate", "2", "--prompt-len", "200"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("do not disaggregate"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("1P1D (TP 1, TP 1)"), std::string::npos) << result.out;
}

TEST(Plan, MeasuresTheEngineAtHandAndPlansWithIt) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "times.json").string();
  const auto measured = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--measure", "--step-times", file, "--model", tied_model()});
    return run_binary(with_small_cache(std::move(more)));
  };
  const BinaryResult first = measured({});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.out.find("a prompt of 16 "), std::string::npos) << first.out;
  EXPECT_NE(first.out.find("4 answers behind prompts of 16 "), std::string::npos) << first.out;
  const BinaryResult second =
      measured({"--tensor-parallel-size=2", "--request-rate=1", "--prompt-len=32", "--output-len=8"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NE(second.out.find("TP 1: "), std::string::npos) << "the first size is still there\n" << second.out;
  EXPECT_NE(second.out.find("TP 2: "), std::string::npos) << second.out;
  const Json times = Json::parse(read_file(file));
  EXPECT_EQ(times["engines"].size(), 2u);
  EXPECT_NE(times["command"].get<std::string>().find("--measure"), std::string::npos);

  expect_refused(
      run_binary(with_small_cache({"plan", "--measure", "--step-times", file, "--model", tinyworld()})),
      "model");
  EXPECT_EQ(Json::parse(read_file(file)), times) << "a refusal leaves the file as it is";
  expect_refused(run_binary(plan({"--request-rate", "1", "--device", "cpu"})), "--measure");
}

TEST(Plan, RefusesByName) {
  expect_refused(run_binary(plan({})), "--request-rate");
  expect_refused(run_binary(plan({"--request-rate", "nan"})), "--request-rate");
  expect_refused(run_binary(plan({"--request-rate", "1", "--hit-rate", "2"})), "--hit-rate");
  expect_refused(run_binary(plan({"--request-rate", "1", "--tpot", "0.1"})), "within");
  expect_refused(run_binary(plan({"--requests", "no_such_file"})), "no_such_file");
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "times.json").string();
  std::ofstream(file) << R"({"model": "m", "device": "d", "command": "c", "kv_bytes_per_token": 0})";
  expect_refused(run_binary({"plan", "--step-times", file, "--request-rate", "1"}), "kv_bytes_per_token");
}

}  // namespace
}  // namespace ladder::testing
