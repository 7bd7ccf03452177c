// The engine in a process of its own, with a real model: what its user sees when one of the two is killed.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "step6_engine/load_engine.h"
#include "step6_engine/remote/engine_process.h"
#include "tests/cli/program.h"
#include "tests/step6_engine/process/children_of.h"
#include "tests/step6_engine/process/killed_parent.h"
#include "tests/step6_engine/process/open_files.h"
#include "tests/support/in_time.h"
#include "tests/support/memory_files.h"

namespace ladder::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

EngineProcessOptions tinyworld_options(std::vector<std::string> more = {}) {
  EngineProcessOptions options;
  options.program = ladder_binary();
  options.arguments = {"engine-process", "--model=" + tinyworld(), "--num-kv-blocks=2048", "--device=cpu",
                       "--dtype=f32"};
  options.arguments.insert(options.arguments.end(), more.begin(), more.end());
  options.tokenizer = open_model_folder(tinyworld()).tokenizer;
  return options;
}

Request story(int64_t max_tokens, bool greedy = true) {
  Request request;
  request.prompt = "One day";
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.seed = 1;
  if (greedy) request.sampling.temperature = 0;
  return request;
}

std::string texts_of(RequestStream& stream) {
  std::string text;
  while (std::optional<StreamUpdate> update = stream.next(60s))
    for (const CompletionUpdate& news : update->updates) text += news.text;
  return text;
}

TEST(Cli_EngineProcess, AnswersAreThoseOfAnEngineInThisProcess) {
  std::vector<std::string> words = {
      "generate", "--model",  tinyworld(), "--num-kv-blocks", "2048", "--dtype",       "f32", "--device",
      "cpu",      "--prompt", "One day",   "--max-tokens",    "24",   "--temperature", "0",   "--ignore-eos"};
  const BinaryResult alone = run_binary(words);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const auto shm = files_of_memory();
  const auto client = start_engine_process(tinyworld_options());
  RequestStream stream = client->submit(story(24));
  const std::string text = texts_of(stream);
  EXPECT_FALSE(text.empty());
  EXPECT_NE(alone.out.find(text), alone.out.npos) << alone.out << "\n" << text;
  EXPECT_EQ(files_of_memory(), shm);
}

TEST(Cli_EngineProcess, WhatTheUserGotWrongIsTheUsersError) {
  try {
    start_engine_process(tinyworld_options({"--no-chunked-prefill", "--max-num-batched-tokens=16"}));
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--max-num-batched-tokens 16"), std::string::npos)
        << error.what();
  }
  EngineProcessOptions nowhere = tinyworld_options();
  nowhere.arguments[1] = "--model=/no/such/folder";
  EXPECT_THROW(start_engine_process(std::move(nowhere)), Error);
  EXPECT_TRUE(children_of(::getpid()).empty());
}

TEST(EngineProcess, OneThatStaysStoppedIsGivenUp) {
  const auto client = start_engine_process(tinyworld_options());
  RequestStream stream = client->submit(story(4000));
  EXPECT_TRUE(stream.next(60s).has_value());
  for (const int child : children_of(::getpid())) ::kill(child, SIGSTOP);
  const RequestOutput output = stream.output();
  EXPECT_EQ(output.completions.at(0).finish_reason, FinishReason::error);
  EXPECT_NE(output.completions[0].error.find("was stopped (SIGSTOP) and has not gone on for 3 s"),
            std::string::npos)
      << output.completions[0].error;
  EXPECT_TRUE(children_of(::getpid()).empty());
}

// How long it takes from the end of the engine to that of every request.
Clock::duration end_of_requests(const std::string& phase) {
  SCOPED_TRACE(phase);
  const auto client = start_engine_process(tinyworld_options());
  const std::set<int> children = children_of(::getpid());
  EXPECT_EQ(children.size(), 1u);
  std::vector<RequestStream> streams;
  if (phase != "idle")
    for (int i = 0; i < 8; ++i) streams.push_back(client->submit(story(4000)));
  if (phase == "stream") {
    for (RequestStream& stream : streams) EXPECT_TRUE(stream.next(60s).has_value());
  }
  for (const int child : children) ::kill(child, SIGKILL);
  const auto begin = Clock::now();
  while (client->stats().error.empty() && Clock::now() - begin < 30s) std::this_thread::sleep_for(1ms);
  EXPECT_NE(client->stats().error.find("was ended by SIGKILL"), std::string::npos) << client->stats().error;
  for (RequestStream& stream : streams) {
    const RequestOutput output = stream.output();
    EXPECT_EQ(output.completions.at(0).finish_reason, FinishReason::error);
    EXPECT_NE(output.completions[0].error.find("SIGKILL"), std::string::npos);
    EXPECT_EQ(output.completions[0].token_ids.empty(),
              phase == "prefill" && output.completions[0].text->empty());
  }
  const Clock::duration took = Clock::now() - begin;
  EXPECT_THROW(client->submit(story(1)), EngineUnavailable);
  return took;
}

TEST(Cli_EngineProcess, AKilledEngineEndsEveryRequestWithinASecond) {
  const auto shm = files_of_memory();
  const int files = num_open_files(), threads = num_threads();
  for (const char* phase : {"idle", "prefill", "stream"})
    expect_within(1s, [phase] { return end_of_requests(phase); });
  EXPECT_TRUE(children_of(::getpid()).empty()) << "an orphan or a zombie";
  EXPECT_EQ(files_of_memory(), shm);
  EXPECT_EQ(num_open_files(), files);
  EXPECT_TRUE(threads_end(threads));
}

TEST(Cli_EngineProcess, AnEngineKilledWhileItLoadsIsSaidAtOnce) {
  EngineProcessOptions options = tinyworld_options();
  bool killed = false;
  options.progress = [&](int64_t, int64_t) {
    if (std::exchange(killed, true)) return;
    for (const int child : children_of(::getpid())) ::kill(child, SIGKILL);
  };
  try {
    start_engine_process(std::move(options));
    FAIL() << "started";
  } catch (const EngineUnavailable& error) {
    EXPECT_NE(std::string(error.what()).find("was ended by SIGKILL"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(killed);
  EXPECT_TRUE(children_of(::getpid()).empty());
}

// The parent cannot clean up: its child must notice, in the middle of a computation too.
TEST(Cli_EngineProcess, AKilledParentLeavesNoEngine) {
  const auto shm = files_of_memory();
  for (const bool busy : {false, true})
    expect_within(1s, [busy] {
      return life_after_parent([busy](const auto& tell) {
        const auto client = start_engine_process(tinyworld_options());
        std::vector<RequestStream> streams;
        if (busy)
          for (int i = 0; i < 8; ++i) streams.push_back(client->submit(story(4000)));
        tell(*children_of(::getpid()).begin());
      });
    });
  EXPECT_EQ(files_of_memory(), shm);
}

TEST(Cli_EngineProcess, IsNoCommandForUsers) {
  EXPECT_EQ(run_binary({"--help"}).out.find("engine-process"), std::string::npos);
  const BinaryResult result = run_binary({"engine-process", "--fd", "700"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--fd 700: expected a connected socket"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace ladder::testing
