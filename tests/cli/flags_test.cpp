// Flags become fields: each flag sets its own and no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/engine_flags.h"
#include "cli/flag_values.h"
#include "cli/sampling_flags.h"
#include "step1_layers/core/error.h"

namespace ladder {
namespace {

SamplingParams sampling_of(std::vector<std::string> arguments, const SamplingParams& defaults = {}) {
  CLI::App app;
  SamplingFlags flags;
  flags.add(app, defaults);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  app.parse(arguments);
  return flags.params(defaults);
}

TEST(Cli_SamplingFlags, EachSetsItsFieldUnderVllmsName) {
  const SamplingParams none;
  EXPECT_EQ(sampling_of({}), none);
  const auto expect = [&](std::vector<std::string> arguments, auto set) {
    SamplingParams expected = none;
    set(expected);
    EXPECT_EQ(sampling_of(arguments), expected) << arguments[0];
  };
  expect({"--max-tokens", "9"}, [](auto& p) { p.max_tokens = 9; });
  expect({"--min-tokens", "3"}, [](auto& p) { p.min_tokens = 3; });
  expect({"--temperature", "0.5"}, [](auto& p) { p.temperature = 0.5; });
  expect({"--top-k", "7"}, [](auto& p) { p.top_k = 7; });
  expect({"--top-k=-1"}, [](auto& p) { p.top_k = -1; });
  expect({"--top-p", "0.9"}, [](auto& p) { p.top_p = 0.9; });
  expect({"--min-p", "0.1"}, [](auto& p) { p.min_p = 0.1; });
  expect({"--repetition-penalty", "1.1"}, [](auto& p) { p.repetition_penalty = 1.1; });
  expect({"--presence-penalty=-1"}, [](auto& p) { p.presence_penalty = -1; });
  expect({"--frequency-penalty", "2"}, [](auto& p) { p.frequency_penalty = 2; });
  expect({"--seed", "18446744073709551615"}, [](auto& p) { p.seed = 18446744073709551615u; });
  expect({"--n", "3"}, [](auto& p) { p.n = 3; });
  expect({"--logit-bias", "5=-100", "--logit-bias", "6=1.5"}, [](auto& p) {
    p.logit_bias = {{5, -100.0}, {6, 1.5}};
  });
  expect({"--allowed-token-ids", "1,2", "--allowed-token-ids", "3"}, [](auto& p) {
    p.allowed_token_ids = {1, 2, 3};
  });
  expect({"--bad-words", "[a,b]", "--bad-words", "c"}, [](auto& p) { p.bad_words = {"[a,b]", "c"}; });
  expect({"--stop", "[a,b]"}, [](auto& p) { p.stop = {"[a,b]"}; });
  expect({"--stop-token-ids", "1", "2,3"}, [](auto& p) { p.stop_token_ids = {1, 2, 3}; });
  expect({"--include-stop-str-in-output"}, [](auto& p) { p.include_stop_str_in_output = true; });
  expect({"--no-skip-special-tokens"}, [](auto& p) { p.skip_special_tokens = false; });
  expect({"--ignore-eos"}, [](auto& p) { p.ignore_eos = true; });
  expect({"--logprobs", "2"}, [](auto& p) { p.logprobs = 2; });
  expect({"--logprobs=-1"}, [](auto& p) { p.logprobs = -1; });
  expect({"--logprob-token-ids", "4"}, [](auto& p) { p.logprob_token_ids = {4}; });
}

TEST(Cli_SamplingFlags, WhatIsNotGivenStaysAsTheDefaultsHaveIt) {
  SamplingParams defaults;
  defaults.max_tokens = 16;
  defaults.temperature = 0.6;
  defaults.stop_token_ids = {4};
  EXPECT_EQ(sampling_of({}, defaults), defaults);
  SamplingParams expected = defaults;
  expected.temperature = 0.0;
  EXPECT_EQ(sampling_of({"--temperature", "0"}, defaults), expected);
}

KvTransferConfig transfer_of(std::vector<std::string> arguments) {
  CLI::App app;
  KvTransferFlags flags;
  flags.add(app);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return flags.config();
}

TEST(Cli_KvTransferFlags, EachSetsItsFieldForTheRolesThatHaveIt) {
  using std::chrono::milliseconds;
  EXPECT_EQ(transfer_of({"--kv-role=producer"}).role, KvTransferRole::producer);
  EXPECT_EQ(transfer_of({"--kv-role=consumer"}).role, KvTransferRole::consumer);
  EXPECT_EQ(transfer_of({"--kv-role=producer", "--kv-listen=shm://a"}).listen, "shm://a");
  EXPECT_TRUE(transfer_of({"--kv-role=producer", "--kv-compression=zstd"}).compress);
  EXPECT_FALSE(transfer_of({"--kv-role=producer", "--kv-compression=none"}).compress);
  EXPECT_FALSE(transfer_of({"--kv-role=producer"}).compress);
  EXPECT_THROW(transfer_of({"--kv-role=producer", "--kv-compression=gzip"}), CLI::ValidationError);
  EXPECT_TRUE(transfer_of({"--kv-role=both", "--kv-layer-by-layer"}).layer_by_layer);
  EXPECT_FALSE(transfer_of({"--kv-role=both"}).layer_by_layer);
  EXPECT_EQ(transfer_of({"--kv-role=both", "--kv-lease=0.5"}).lease, milliseconds(500));
  EXPECT_EQ(transfer_of({"--kv-role=producer", "--kv-max-held=2MiB"}).max_held_bytes, 2 << 20);
  EXPECT_EQ(transfer_of({"--kv-role=both", "--kv-recompute-threshold=9"}).recompute_threshold, 9);
  EXPECT_EQ(transfer_of({"--kv-role=consumer", "--kv-loaders=9"}).num_loaders, 9);
  EXPECT_EQ(transfer_of({"--kv-role=consumer"}).num_loaders, 4);
  EXPECT_THROW(transfer_of({"--kv-role=consumer", "--kv-loaders=0"}), CLI::ValidationError);
  EXPECT_EQ(transfer_of({"--kv-role=producer", "--kv-load-timeout=2"}).load_timeout, milliseconds(2000));
  const auto policy_of = [](const char* word) {
    return transfer_of({"--kv-role=consumer", std::string("--kv-load-failure-policy=") + word})
        .load_failure_policy;
  };
  EXPECT_EQ(transfer_of({"--kv-role=both"}).load_failure_policy, KvLoadFailurePolicy::recompute);
  EXPECT_EQ(policy_of("recompute"), KvLoadFailurePolicy::recompute);
  EXPECT_EQ(policy_of("fail"), KvLoadFailurePolicy::fail);
  EXPECT_THROW(policy_of("hope"), CLI::ValidationError);

  const std::pair<const char*, const char*> cases[] = {{"--kv-listen=tcp://0", "consumer"},
                                                       {"--kv-compression=zstd", "consumer"},
                                                       {"--kv-layer-by-layer", "consumer"},
                                                       {"--kv-lease=1", "consumer"},
                                                       {"--kv-max-held=1MiB", "consumer"},
                                                       {"--kv-recompute-threshold=1", "producer"},
                                                       {"--kv-load-failure-policy=fail", "producer"},
                                                       {"--kv-loaders=2", "producer"}};
  for (const auto& [flag, role] : cases) {
    EXPECT_THROW(transfer_of({flag, std::string("--kv-role=") + role}), Error) << flag;
    EXPECT_THROW(transfer_of({flag}), Error) << flag;
  }
}

TEST(Cli_EngineFlags, SwitchesAndSizesReachTheOptions) {
  const auto options_of = [](std::vector<std::string> arguments) {
    CLI::App app;
    EngineFlags flags;
    flags.add(app, {}, "model");
    arguments.insert(arguments.end(), {"--device", "cpu"});
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
    return flags.options();
  };
  const EngineOptions plain = options_of({});
  EXPECT_EQ(plain.model, "model");
  EXPECT_TRUE(plain.enable_prefix_caching && plain.enable_chunked_prefill && !plain.static_batching);
  EXPECT_TRUE(plain.runner.cuda_graphs && plain.runner.async_scheduling && plain.runner.dependent_launch);
  EXPECT_FALSE(options_of({"--no-prefix-caching"}).enable_prefix_caching);
  EXPECT_FALSE(options_of({"--no-chunked-prefill"}).enable_chunked_prefill);
  EXPECT_TRUE(options_of({"--static-batching"}).static_batching);
  EXPECT_FALSE(options_of({"--enforce-eager"}).runner.cuda_graphs);
  EXPECT_FALSE(options_of({"--no-async-scheduling"}).runner.async_scheduling);
  EXPECT_FALSE(options_of({"--no-dependent-launch"}).runner.dependent_launch);
  EXPECT_EQ(options_of({"--scheduling-policy", "priority"}).policy, SchedulingPolicy::priority);
  EXPECT_EQ(options_of({"--max-num-partial-prefills", "3"}).max_num_partial_prefills, 3);
  EXPECT_EQ(options_of({"--max-long-partial-prefills", "2"}).max_long_partial_prefills, 2);
  EXPECT_EQ(options_of({"--long-prefill-token-threshold", "500"}).long_prefill_token_threshold, 500);
  EXPECT_EQ(options_of({"--watermark", "0.2"}).watermark, 0.2);
  EXPECT_EQ(plain.max_logprobs, 20);
  EXPECT_EQ(options_of({"--max-logprobs=-1"}).max_logprobs, -1);
  EXPECT_EQ(options_of({"--block-size", "32"}).runner.batch.block_size, 32);
  EXPECT_EQ(options_of({"--kv-memory", "2MiB"}).runner.kv_memory, 2 << 20);
  EXPECT_EQ(options_of({"--kernel", "matmul=loop"}).runner.kernels.at("matmul"), "loop");
  EXPECT_THROW(options_of({"--num-kv-blocks", "8", "--kv-memory", "2MiB"}), Error);
  EXPECT_NO_THROW(options_of({"--phase-lanes"}));
  const std::vector<std::vector<std::string>> not_with_lanes = {{"--tensor-parallel-size", "2"},
                                                                {"--pipeline-parallel-size", "2"},
                                                                {"--prefill-context-parallel-size", "2"},
                                                                {"--distributed-executor-backend", "mp"},
                                                                {"--static-batching"},
                                                                {"--kv-role", "producer"}};
  for (std::vector<std::string> words : not_with_lanes) {
    const std::string flag = words[0];
    words.push_back("--phase-lanes");
    EXPECT_THAT([&] { options_of(words); },
                ::testing::ThrowsMessage<Error>(
                    ::testing::AllOf(::testing::HasSubstr("--phase-lanes"), ::testing::HasSubstr(flag))));
  }
}

TEST(Cli_EngineFlags, SharesOfAGpuNeedLanesAndAGpu) {
  const auto error_of = [](std::vector<std::string> arguments) -> std::string {
    CLI::App app;
    EngineFlags flags;
    flags.add(app, {}, "model");
    arguments.insert(arguments.end(), {"--device", "cpu"});
    std::reverse(arguments.begin(), arguments.end());
    try {
      app.parse(arguments);
      flags.options();
    } catch (const Error& error) {
      return error.what();
    } catch (const CLI::ValidationError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of({"--phase-lanes"}), "");
  EXPECT_THAT(error_of({"--sm-partition", "auto"}), ::testing::EndsWith("expected --phase-lanes"));
  EXPECT_THAT(error_of({"--max-itl", "10"}), ::testing::StartsWith("--max-itl: prompts and answers"));
  EXPECT_EQ(error_of({"--phase-lanes", "--sm-partition", "32"}),
            "--sm-partition: a CPU has no multiprocessors to share out, expected a GPU");
  EXPECT_EQ(error_of({"--phase-lanes", "--max-itl", "10"}),
            "--max-itl: a CPU has no multiprocessors to share out, expected a GPU");
  EXPECT_THAT(error_of({"--max-ttft", "10"}), ::testing::StartsWith("--max-ttft: prompts and answers"));
  EXPECT_EQ(error_of({"--phase-lanes", "--max-ttft", "10"}),
            "--max-ttft: a CPU has no multiprocessors to share out, expected a GPU");
  for (const std::string share : {"32", "off"})
    for (const std::string flag : {"--max-itl", "--max-ttft"})
      EXPECT_EQ(error_of({"--phase-lanes", "--sm-partition", share, flag, "10"}),
                flag + ": with --sm-partition " + share +
                    " the border does not move, expected --sm-partition auto");
  EXPECT_THAT(error_of({"--phase-lanes", "--max-ttft", "10", "--no-chunked-prefill"}),
              ::testing::StartsWith("--max-ttft and --no-chunked-prefill: "));
  EXPECT_THAT(error_of({"--phase-lanes", "--sm-partition", "some"}),
              ::testing::HasSubstr("expected auto, off or a whole number"));
}

}  // namespace
}  // namespace ladder
