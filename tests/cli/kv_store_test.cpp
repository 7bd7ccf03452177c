// --kv-store: prefixes on disk outlive the program, and what is no folder is one line.
#include <filesystem>

#include "tests/cli/program.h"
#include "tests/cli/running_server.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::expect_refused;
using testing::generate;
using testing::Json;
using testing::json_lines;
using testing::run_binary;
using testing::RunningServer;
using testing::TemporaryFolder;
namespace fs = std::filesystem;

std::string prompt_ids(int count) {
  std::string ids;
  for (int i = 0; i < count; ++i) ids += (i == 0 ? "" : ",") + std::to_string(1 + (7 * i) % 120);
  return ids;
}

int64_t num_blocks_in(const fs::path& folder) {
  int64_t count = 0;
  if (fs::exists(folder))
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      count += entry.path().extension() == ".kv";
  return count;
}

TEST(Cli_KvStore, GenerateGoesOnFromTheFolder) {
  const TemporaryFolder place;
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {
        "--prompt-token-ids", prompt_ids(70), "--max-tokens", "12", "--temperature", "0",
        "--ignore-eos",       "--format",     "jsonl"};
    words.insert(words.end(), more.begin(), more.end());
    const BinaryResult result = generate(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return json_lines(result.out).at(0);
  };
  const std::string store = "--kv-store=" + (place / "store").string();
  const Json plain = run({}), first = run({store}), second = run({store});
  EXPECT_EQ(num_blocks_in(place / "store"), (70 + 11) / 16);
  for (const Json& answer : {first, second})
    EXPECT_EQ(answer.at("outputs").at(0).at("token_ids"), plain.at("outputs").at(0).at("token_ids"));
  EXPECT_EQ(first.at("metrics").at("num_cached_tokens"), 0);
  EXPECT_EQ(second.at("metrics").at("num_cached_tokens"), 64);
  const Json ranks = run({store, "--tensor-parallel-size=2"});
  EXPECT_EQ(ranks.at("metrics").at("num_cached_tokens"), 0) << "other ranks are another layout";
}

TEST(Cli_KvStore, AServerThatIsStartedAgainGoesOnFromTheFolder) {
  const TemporaryFolder place;
  std::string prompt = "One day Tom went to the market.";
  for (int i = 0; i < 8; ++i) prompt += " On the way there was a long story to be told about it.";
  const Json body = {{"prompt", prompt}, {"max_tokens", 8}, {"temperature", 0}, {"ignore_eos", true}};
  std::string text;
  for (const bool again : {false, true}) {
    RunningServer server({"--model", testing::tinyworld(), "--kv-store", (place / "store").string()});
    ASSERT_TRUE(server.ready()) << server.err();
    const Json answer = Json::parse(testing::body_of(server.post(body)));
    const std::string mine = answer.at("choices").at(0).at("text").get<std::string>();
    if (!again) text = mine;
    EXPECT_EQ(mine, text);
    EXPECT_FALSE(answer.contains("kv_transfer_params"));
    const int64_t prompt_tokens = answer.at("usage").at("prompt_tokens").get<int64_t>(),
                  cached = again ? (prompt_tokens - 1) / 16 * 16 : 0;
    EXPECT_EQ(answer.at("usage").at("prompt_tokens_details").at("cached_tokens"), cached);
    EXPECT_EQ(server.metric("external_prefix_cache_hits_total"), static_cast<double>(cached));
    EXPECT_EQ(server.metric("kv_transfer_loads_total"), again ? 1 : 0);
    if (again) {
      EXPECT_GT(server.metric("kv_store_bytes"), 0);
      EXPECT_EQ(server.metric("kv_store_dropped_blocks_total"), 0);
    }
    Json transfer = body;
    transfer["kv_transfer_params"] = {{"do_remote_decode", true}};
    EXPECT_TRUE(server.post(transfer).starts_with("HTTP/1.1 400")) << "a store is no other engine";
    server.kill(SIGTERM);
    EXPECT_EQ(server.exit_code(), 0) << server.err();
  }
}

TEST(Cli_KvStore, WhatDoesNotGoWithItIsNamed) {
  const TemporaryFolder place;
  testing::write_file(place / "file", "x");
  const std::string store = "--kv-store=" + (place / "store").string();
  const auto refused = [](std::vector<std::string> more, const std::string& word) {
    more.insert(more.end(), {"--prompt-token-ids=1,2,3"});
    expect_refused(generate(more), word);
  };
  refused({"--kv-store=" + (place / "file").string()}, "--kv-store: " + (place / "file").string());
  refused({"--kv-store=/proc/nothing"}, "--kv-store: /proc/nothing");
  refused({"--kv-store-max=1GiB"}, "--kv-store-max: expected with --kv-store");
  refused({store, "--kv-store-max=much"}, "--kv-store-max: expected a size");
  refused({store, "--kv-store-max=10"}, "--kv-store: 10 bytes for a prefix store whose blocks have");
  refused({store, "--kv-role=both"}, "--kv-store and --kv-role");
  refused({store, "--static-batching"}, "--kv-store and --static-batching");
  refused({store, "--phase-lanes"}, "--phase-lanes");
  expect_refused(run_binary({"serve", "--device=cpu", "--port=0", "--disaggregate=1P1D", store}),
                 "--disaggregate and --kv-store");
}

}  // namespace
}  // namespace ladder
