// Several replicas as a user starts them: what they answer, and what becomes of it when one dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "tests/cli/program.h"
#include "tests/cli/run_binary.h"
#ifdef LADDER_HAS_SERVER
#include "tests/cli/running_server.h"
#endif

namespace ladder::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> generate(std::vector<std::string> more = {}) {
  std::vector<std::string> words = {"generate", "--model",      tinyworld(), "--prompts", "-",
                                    "--device", "cpu",          "--dtype",   "f32",       "--seed",
                                    "7",        "--max-tokens", "12"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
std::string prompts() {
  std::string lines;
  for (const char* name : {"Lily", "Tom", "Sam", "Mia", "Ben"})
    lines += std::string("{\"prompt\": \"One day ") + name + "\"}\n";
  return lines;
}

TEST(Cli_Replicas, GiveTheAnswersOfOneEngine) {
  const BinaryResult one = run_binary(generate(), prompts());
  ASSERT_EQ(one.exit_code, 0) << one.err;
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--data-parallel-size=3"},
           {"--data-parallel-size=2", "--data-parallel-backend=mp"},
           {"--data-parallel-size=2", "--data-parallel-balancer=prefix_aware"},
           {"--data-parallel-size=2", "--no-prefix-caching"}}) {
    const BinaryResult several = run_binary(generate(more), prompts());
    EXPECT_EQ(several.exit_code, 0) << several.err;
    EXPECT_EQ(several.out, one.out);
  }
}

TEST(Cli_Replicas, OfRanksGiveTheAnswersOfOneEngine) {
  const BinaryResult one = run_binary(generate({"--temperature=0"}), prompts());
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const BinaryResult grid = run_binary(generate({"--temperature=0", "--data-parallel-size=2",
                                                 "--tensor-parallel-size=2", "--pipeline-parallel-size=2"}),
                                       prompts());
  EXPECT_EQ(grid.exit_code, 0) << grid.err;
  EXPECT_EQ(grid.out, one.out);
}

TEST(Cli_Replicas, InfoShowsTheGridAndEachOnesShare) {
  const BinaryResult info =
      run_binary({"info", "--model", tinyworld(), "--device=cpu", "--data-parallel-size=2",
                  "--tensor-parallel-size=2", "--threads=8", "--num-kv-blocks=100"});
  EXPECT_EQ(info.exit_code, 0) << info.err;
  EXPECT_THAT(info.out,
              AllOf(HasSubstr("2 replicas"), HasSubstr("  0        0 to 1  cpu        4        100"),
                    HasSubstr("  1        2 to 3  cpu        4        100")));
  const BinaryResult nodes =
      run_binary({"info", "--model", tinyworld(), "--device=cpu", "--data-parallel-size=3",
                  "--data-parallel-size-local=1", "--threads=8", "--num-kv-blocks=100"});
  EXPECT_EQ(nodes.exit_code, 0) << nodes.err;
  EXPECT_THAT(nodes.out, AllOf(HasSubstr("3 replicas"), HasSubstr("cpu        8        100\n"),
                               HasSubstr("  2        2 to 2  a --headless node        -")));
}

TEST(Cli_Replicas, ThatShareOutExpertsGiveTheTokensOfOneEngine) {
  const std::string model =
      "--model=" + (testing::source_folder() / "tests" / "goldens" / "qwen3_moe_normed").string();
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"generate", model, "--prompts=-", "--device=cpu", "--dtype=f32"};
    words.insert(words.end(), more.begin(), more.end());
    return run_binary(
        words, R"({"prompt_token_ids": [5, 6, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": true})"
               "\n");
  };
  const std::string flag = "--enable-expert-parallel";
  const BinaryResult one = run({});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--data-parallel-size=2"}, {"--data-parallel-size=2", "--tensor-parallel-size=2"}}) {
    std::vector<std::string> words = more;
    words.push_back(flag);
    const BinaryResult shared = run(words);
    EXPECT_EQ(shared.exit_code, 0) << shared.err;
    EXPECT_EQ(shared.err, "");
    EXPECT_EQ(shared.out, one.out);
  }
  const BinaryResult processes = run({"--data-parallel-size=2", "--data-parallel-backend=mp", flag});
  EXPECT_EQ(processes.out, one.out);
  EXPECT_THAT(processes.err, AllOf(HasSubstr("each replica has all experts"), HasSubstr(flag + " is off")));
  EXPECT_EQ(std::ranges::count(processes.err, '\n'), 2) << processes.err;

  const BinaryResult info =
      run_binary({"info", model, "--device=cpu", "--data-parallel-size=2", "--tensor-parallel-size=2", flag});
  EXPECT_EQ(info.exit_code, 0) << info.err;
  EXPECT_THAT(info.out, AllOf(HasSubstr("0 to 1 of 8; 2 to 3 of 8"), HasSubstr("4 to 5 of 8; 6 to 7 of 8"),
                              HasSubstr("they step together")));
}

TEST(Cli_Replicas, ThatSplitEveryExpertGiveTheTokensOfOneEngine) {
  const std::string model =
      "--model=" + (testing::source_folder() / "tests" / "goldens" / "qwen3_moe_normed").string();
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"generate", model, "--prompts=-", "--device=cpu", "--dtype=f32"};
    words.insert(words.end(), more.begin(), more.end());
    return run_binary(
        words, R"({"prompt_token_ids": [5, 6, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": true})"
               "\n");
  };
  const std::string flag = "--data-parallel-split-experts";
  const BinaryResult one = run({flag});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.err, "ladder: --data-parallel-split-experts is off: there is one replica\n");
  const BinaryResult split = run({"--data-parallel-size=2", "--tensor-parallel-size=2", flag});
  EXPECT_EQ(split.exit_code, 0) << split.err;
  EXPECT_EQ(split.err, "");
  EXPECT_EQ(split.out, one.out);
  const BinaryResult processes = run({"--data-parallel-size=2", "--data-parallel-backend=mp", flag});
  EXPECT_EQ(processes.out, one.out);
  EXPECT_THAT(processes.err, AllOf(HasSubstr(flag + ": each replica has all experts")));
  EXPECT_EQ(std::ranges::count(processes.err, '\n'), 1) << processes.err;
  const BinaryResult both = run({"--data-parallel-size=2", flag, "--enable-expert-parallel"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err,
              AllOf(HasSubstr(flag), HasSubstr("--enable-expert-parallel"), HasSubstr("one of them")));

  const BinaryResult info = run_binary({"info", model, "--device=cpu", "--data-parallel-size=2", flag});
  EXPECT_EQ(info.exit_code, 0) << info.err;
  EXPECT_THAT(info.out,
              AllOf(HasSubstr("a part of all 8"), HasSubstr("a part of every expert: they step together")));
}

TEST(Cli_Replicas, NumbersThatDoNotFitAreOneLine) {
  const auto refused = [](std::vector<std::string> words, const std::string& named) {
    const BinaryResult result = run_binary(std::move(words));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(named));
  };
  const std::string model = "--model=" + tinyworld();
  refused({"generate", model, "--prompt=a", "--data-parallel-size=0"}, "--data-parallel-size");
  refused({"generate", model, "--prompt=a", "--data-parallel-balancer=best"}, "--data-parallel-balancer");
  refused({"generate", model, "--prompt=a", "--data-parallel-size=2", "--trace=t"}, "--trace");
  refused(
      {"generate", model, "--prompt=a", "--data-parallel-size=2", "--device=cpu", "--enable-expert-parallel"},
      "--enable-expert-parallel: the model has no experts");
  refused({"generate", model, "--prompt=a", "--data-parallel-size=2", "--device=cpu",
           "--data-parallel-split-experts"},
          "--data-parallel-split-experts: the model has no experts");
  refused({"generate", model, "--prompt=a", "--data-parallel-size=2", "--data-parallel-backend=mp",
           "--kernel=matmul=nonsense"},
          "matmul");
#ifdef LADDER_HAS_SERVER
  refused({"serve", model, "--data-parallel-size=4", "--data-parallel-rank=4"}, "--data-parallel-rank 4");
  refused({"serve", model, "--data-parallel-external-lb"}, "--data-parallel-rank");
  refused({"serve", model, "--data-parallel-size=4", "--data-parallel-start-rank=2"},
          "--data-parallel-hybrid-lb");
  refused(
      {"serve", model, "--data-parallel-size=4", "--data-parallel-hybrid-lb", "--data-parallel-size-local=0"},
      "--data-parallel-size-local 0");
  refused({"serve", model, "--data-parallel-size=4", "--data-parallel-hybrid-lb",
           "--data-parallel-size-local=2", "--data-parallel-start-rank=3"},
          "--data-parallel-start-rank 3");
#endif
}

#ifdef LADDER_HAS_SERVER
Json body(int64_t max_tokens, int64_t seed = 1) {
  return {{"prompt", "One day"}, {"max_tokens", max_tokens}, {"ignore_eos", true}, {"seed", seed}};
}
std::string text_of(const std::string& answer) {
  const Json json = Json::parse(body_of(answer), nullptr, false);
  return json.is_object() && json.contains("choices") ? json["choices"][0]["text"].get<std::string>()
                                                      : answer;
}

// Answers that are sent whole begin anew with the other replica; of those that are streamed tokens have been read.
TEST(Cli_Replicas, ADeadReplicaTakesNoOtherRequestAndComesBack) {
  RunningServer server({"--data-parallel-size=2", "--data-parallel-backend=mp", "--num-kv-blocks=1024"});
  ASSERT_TRUE(server.ready());
  constexpr int64_t kLong = 400;
  const std::string expected = text_of(server.post(body(20))),
                    expected_long = text_of(server.post(body(kLong), std::chrono::minutes(2)));
  EXPECT_EQ(body_of(server.get("/health")), R"({"replicas":2,"live_replicas":2})");
  Json streamed = body(kLong);
  streamed["stream"] = true;
  const double num_before = server.metric("generation_tokens_total");
  std::vector<RawClient> parts;
  for (int i = 0; i < 2; ++i) {
    parts.emplace_back(server.port());
    EXPECT_TRUE(parts.back().send(RunningServer::completion(streamed)));
  }
  std::vector<std::future<std::string>> whole;
  for (int i = 0; i < 6; ++i)
    whole.push_back(
        std::async(std::launch::async, [&] { return server.post(body(kLong), std::chrono::minutes(2)); }));
  ASSERT_TRUE(eventually([&] { return server.metric("generation_tokens_total") > num_before + 100; }));
  const std::vector<int> replicas = server.children("engine-process");
  ASSERT_EQ(replicas.size(), 2u);
  ::kill(replicas[0], SIGKILL);
  EXPECT_TRUE(
      eventually([&] { return body_of(server.get("/health")) == R"({"replicas":2,"live_replicas":1})"; }));
  EXPECT_EQ(status_of(server.get("/health")), 200);
  EXPECT_EQ(text_of(server.post(body(20), std::chrono::minutes(2))), expected);
  for (auto& answer : whole) {
    const std::string got = answer.get();
    EXPECT_EQ(status_of(got), 200) << got;
    EXPECT_EQ(text_of(got), expected_long);
  }
  for (RawClient& part : parts) {
    EXPECT_TRUE(part.receive_until("[DONE]", std::chrono::minutes(2))) << part.got();
    const bool failed = part.got().find("\"error\"") != std::string::npos;
    EXPECT_NE(part.got().find("\"finish_reason\":\"length\"") != std::string::npos, failed) << part.got();
  }
  EXPECT_TRUE(
      eventually([&] { return body_of(server.get("/health")) == R"({"replicas":2,"live_replicas":2})"; },
                 kStartPatience));
  EXPECT_THAT(server.err(),
              AllOf(HasSubstr(": the engine's process"), HasSubstr("SIGKILL"), HasSubstr(": serves again")));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(text_of(server.post(body(20))), expected);
  server.kill(SIGTERM);
  EXPECT_EQ(server.exit_code(), 0) << server.err();
  EXPECT_TRUE(server.children("engine-process").empty());
}

TEST(Cli_Replicas, AServerMayHaveAPartOfThem) {
  RunningServer server({"--data-parallel-size=5", "--data-parallel-hybrid-lb", "--data-parallel-size-local=2",
                        "--data-parallel-start-rank=3", "--num-kv-blocks=256"});
  ASSERT_TRUE(server.ready());
  const std::string metrics = body_of(server.get("/metrics"));
  for (const char* label : {"engine=\"3\"", "engine=\"4\""}) EXPECT_THAT(metrics, HasSubstr(label));
  EXPECT_THAT(metrics, ::testing::Not(HasSubstr("engine=\"0\"")));
  EXPECT_THAT(server.out(), HasSubstr("3 to 4 of 5; each has what follows"));
  RunningServer one({"--data-parallel-size=5", "--data-parallel-rank=2", "--num-kv-blocks=256"});
  ASSERT_TRUE(one.ready());
  EXPECT_THAT(body_of(one.get("/metrics")), HasSubstr("engine=\"2\""));
  EXPECT_THAT(one.out(), HasSubstr("2 of 5; it has what follows"));
}
#endif

}  // namespace
}  // namespace ladder::testing
