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
