// ladder generate: lines and texts out, what ends a completion, and what is refused.
#include "tests/cli/program.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::comma_separated;
using testing::expect_refused;
using testing::generate;
using testing::Json;
using testing::json_lines;
using testing::run_binary;
using testing::with_small_cache;

class Cli_GenerateOnDevice : public testing::OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, Cli_GenerateOnDevice, testing::both_devices(),
                         [](const auto& info) { return testing::device_word(info.param); });

TEST_P(Cli_GenerateOnDevice, GenerateWritesJsonLinesInInputOrderWithEveryFieldOfTheContract) {
  const testing::GoldenCheckpoint golden = testing::load_golden(testing::tied_model());
  testing::TemporaryFolder folder;
  std::string file;
  // Different lengths, so that they do not finish in the order given.
  for (size_t i = 0; i < golden.prompts.size(); ++i)
    file += Json{{"prompt_token_ids", golden.prompts[i].token_ids}, {"max_tokens", 28 - 4 * i}}.dump() + "\n";
  testing::write_file(folder / "prompts.jsonl", file);
  const BinaryResult result = generate({"--prompts", (folder / "prompts.jsonl").string(), "--temperature",
                                        "0", "--ignore-eos", "--format", "jsonl"},
                                       GetParam());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "") << "no progress bar in a pipe";
  const std::vector<Json> lines = json_lines(result.out);
  ASSERT_EQ(lines.size(), golden.prompts.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].at("index"), i);
    EXPECT_EQ(lines[i].at("prompt_token_ids"), golden.prompts[i].token_ids);
    ASSERT_EQ(lines[i].at("outputs").size(), 1u);
    const Json& output = lines[i].at("outputs").at(0);
    std::vector<int32_t> expected = golden.prompts[i].greedy_token_ids;
    expected.resize(28 - 4 * i);
    EXPECT_EQ(output.at("token_ids"), expected);
    EXPECT_TRUE(output.at("text").is_null()) << "there is no tokenizer in the folder";
    EXPECT_EQ(output.at("finish_reason"), "length");
    EXPECT_FALSE(output.contains("logprobs"));
    EXPECT_EQ(lines[i].at("metrics").at("num_output_tokens"), expected.size());
  }
}

TEST(Cli_Generate, EndTokensOfGenerationConfigStop) {
  const testing::GoldenCheckpoint golden = testing::load_golden(testing::tied_model());
  for (const testing::GoldenPrompt& prompt : golden.prompts) {
    const BinaryResult result = generate({"--prompt-token-ids", comma_separated(prompt.token_ids),
                                          "--max-tokens", "28", "--temperature", "0", "--format", "jsonl"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Json output = json_lines(result.out).at(0).at("outputs").at(0);
    const auto end = std::find_first_of(prompt.greedy_token_ids.begin(), prompt.greedy_token_ids.end(),
                                        golden.eos_token_ids.begin(), golden.eos_token_ids.end());
    const bool ends = end != prompt.greedy_token_ids.end();
    EXPECT_EQ(output.at("finish_reason"), ends ? "stop" : "length");
    EXPECT_EQ(output.at("token_ids"), std::vector<int32_t>(prompt.greedy_token_ids.begin(),
                                                           ends ? end + 1 : prompt.greedy_token_ids.end()));
  }
}

TEST_P(Cli_GenerateOnDevice, GenerateGivesSeveralCompletionsLogprobsAndASeedThatRepeats) {
  const std::vector<std::string> arguments = {
      "--prompt-token-ids", "5,6,7", "--max-tokens", "9",     "--seed",      "11", "--n", "3",
      "--logprobs",         "2",     "--format",     "jsonl", "--ignore-eos"};
  const BinaryResult first = generate(arguments, GetParam()), second = generate(arguments, GetParam());
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Json a = json_lines(first.out).at(0).at("outputs"), b = json_lines(second.out).at(0).at("outputs");
  EXPECT_EQ(a, b);
  ASSERT_EQ(a.size(), 3u);
  EXPECT_NE(a[0].at("token_ids"), a[1].at("token_ids")) << "completions have noise of their own";
  for (const Json& output : a) {
    EXPECT_EQ(output.at("token_ids").size(), 9u);
    EXPECT_EQ(output.at("logprobs").size(), 9u);
    ASSERT_EQ(output.at("top").size(), 9u);
    for (const Json& top : output.at("top")) {
      ASSERT_EQ(top.size(), 2u);
      EXPECT_GE(top[0].at("logprob"), top[1].at("logprob"));
    }
  }
  // The first of several is what n = 1 gives.
  std::vector<std::string> one = arguments;
  one[7] = "1";
  EXPECT_EQ(json_lines(generate(one, GetParam()).out).at(0).at("outputs").at(0).at("token_ids"),
            a[0].at("token_ids"));
}

TEST(Cli_Generate, TextFormatWithoutATokenizerListsTheIds) {
  const BinaryResult result =
      generate({"--prompt-token-ids", "5,6,7", "--max-tokens", "3", "--temperature", "0", "--ignore-eos"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("[")) << result.out;
}

TEST(Cli_Generate, ABadLineIsNamedBeforeAnythingRuns) {
  testing::TemporaryFolder folder;
  const std::string path = (folder / "prompts.jsonl").string();
  const auto with_second_line = [&](const std::string& line) {
    testing::write_file(path, "{\"prompt_token_ids\":[1,2]}\n" + line + "\n{\"prompt_token_ids\":[3]}\n");
    return generate({"--prompts", path, "--format", "jsonl"});
  };
  expect_refused(with_second_line("{\"prompt_token_ids\":[1,2]"), "line 2");
  expect_refused(with_second_line("{\"prompt_token_ids\":[1,131]}"), "line 2");
  expect_refused(with_second_line("{\"prompt_token_ids\":[]}"), "line 2");
  expect_refused(with_second_line("{\"prompt\":\"text without tokenizer\"}"), "line 2");
  expect_refused(with_second_line("{\"prompt_token_ids\":[1],\"maxtokens\":3}"), "maxtokens");
  expect_refused(with_second_line("{\"prompt_token_ids\":[1],\"n\":0}"), "line 2");
  expect_refused(with_second_line("{\"prompt_token_ids\":[1],\"n\":1000000000}"), "line 2");
  expect_refused(with_second_line("{\"prompt_token_ids\":[1],\"temperature\":-1}"), "temperature");
  expect_refused(with_second_line("{\"prompt_token_ids\":[1],\"stop_token_ids\":[131]}"), "stop_token_ids");
  expect_refused(with_second_line("{\"prompt_token_ids\":" + Json(std::vector<int>(512, 1)).dump() + "}"),
                 "line 2");
}

TEST(Cli_Generate, FlagsOutOfRangeAreNamed) {
  const std::vector<std::string> ids = {"--prompt-token-ids", "1,2"};
  const auto refused = [&](std::vector<std::string> arguments, const std::string& word) {
    arguments.insert(arguments.end(), ids.begin(), ids.end());
    SCOPED_TRACE(arguments[0] + " " + (arguments.size() > 1 ? arguments[1] : ""));
    expect_refused(generate(arguments), word);
  };
  refused({"--max-tokens", "0"}, "--max-tokens");
  refused({"--max-tokens", "many"}, "--max-tokens");
  refused({"--max-tokens", "1.5"}, "--max-tokens: expected an integer");
  refused({"--max-tokens", "0x10"}, "--max-tokens: expected an integer");
  refused({"--max-tokens", "99999999999999999999"}, "--max-tokens");
  refused({"--temperature", "nan"}, "--temperature");
  refused({"--temperature", "inf"}, "--temperature");
  refused({"--temperature=-1"}, "--temperature");
  refused({"--top-p", "0"}, "--top-p");
  refused({"--top-p", "1.5"}, "--top-p");
  refused({"--top-k=-2"}, "--top-k");
  refused({"--min-p", "2"}, "--min-p");
  refused({"--repetition-penalty", "0"}, "--repetition-penalty");
  refused({"--repetition-penalty", "inf"}, "--repetition-penalty");
  refused({"--repetition-penalty", "nan"}, "--repetition-penalty");
  refused({"--presence-penalty", "3"}, "--presence-penalty");
  refused({"--frequency-penalty", "nan"}, "--frequency-penalty");
  refused({"--min-tokens", "5", "--max-tokens", "4"}, "--min-tokens");
  refused({"--logit-bias", "5"}, "--logit-bias");
  refused({"--logit-bias", "5=200"}, "--logit-bias");
  refused({"--logit-bias", "x=1"}, "--logit-bias");
  refused({"--allowed-token-ids", "1,x"}, "--allowed-token-ids");
  refused({"--allowed-token-ids", "131"}, "131");
  refused({"--bad-words", ""}, "--bad-words");
  refused({"--logprobs=-2"}, "--logprobs");
  refused({"--logprob-token-ids", "131"}, "131");
  refused({"--seed", "x"}, "--seed");
  refused({"--n", "0"}, "--n");
  refused({"--n", "1000000000"}, "--n");
  refused({"--stop-token-ids", "1,x"}, "--stop-token-ids");
  refused({"--stop-token-ids", "131"}, "131");
  refused({"--stop-token-ids", "1", "--stop-token-ids", ""}, "--stop-token-ids");
  refused({"--logprobs", "1000"}, "--logprobs");
  refused({"--logprobs", "21"}, "--max-logprobs");
  refused({"--logprobs=-1", "--max-logprobs", "60"}, "--max-logprobs");
  refused({"--max-logprobs=-2"}, "--max-logprobs");
  refused({"--format", "xml"}, "--format");
  refused({"--device", "tpu"}, "--device");
  refused({"--load-format", "pickle"}, "--load-format");
  refused({"--kv-cache-dtype", "fp16"}, "--kv-cache-dtype");
  refused({"--kv-cache-dtype", "fp8", "--prefill-context-parallel-size", "2"},
          "--kv-cache-dtype fp8: expected auto");
  refused({"--scheduling-policy", "random"}, "--scheduling-policy");
  refused({"--max-num-seqs", "0"}, "--max-num-seqs");
  refused({"--block-size", "0"}, "--block-size");
  refused({"--max-num-partial-prefills", "0"}, "--max-num-partial-prefills");
  refused({"--max-long-partial-prefills", "2"}, "max-long-partial-prefills");  // more than partial prefills
  refused({"--long-prefill-token-threshold", "513"}, "long-prefill-token-threshold");
  refused({"--watermark", "1"}, "--watermark");
  refused({"--threads", "0"}, "--threads");
  refused({"--max-model-len", "513"}, "--max-model-len is 513, expected 1 to 512");
  refused({"--tensor-parallel-size", "3"}, "--tensor-parallel-size");
  refused({"--kernel", "matmul"}, "--kernel");
  refused({"--kernel", "matmul=none"}, "--kernel matmul=none");
  refused({"--kernel", "nothing=loop"}, "--kernel nothing=loop");
  refused({"--kernel", "matmul=loop", "--kernel", "matmul=avx2"},
          "--kernel matmul=avx2 and --kernel matmul=loop: expected one of them");
  refused({"--no-such-flag"}, "--no-such-flag");
  refused({"--prompts", "x.jsonl"}, "--prompts");
  // Flags that with_small_cache() gives already.
  const auto alone = [&](const std::string& flag, const std::string& value) {
    expect_refused(run_binary({"generate", "--model", testing::tied_model(), "--device", "cpu",
                               "--prompt-token-ids", "1", flag, value}),
                   flag);
  };
  alone("--dtype", "f64");
  alone("--kv-memory", "lots");
  alone("--kv-memory", "1");
  expect_refused(
      run_binary({"info", "--model", testing::tied_model(), "--device", "cpu", "--kv-memory", "1"}),
      "--kv-memory: expected at least");
  expect_refused(run_binary({"bench", "latency", "--model", testing::tied_model(), "--repeat", "0"}),
                 "ladder bench latency --help");
  expect_refused(run_binary({"bench", "speed"}), "\"speed\": expected a command, one of throughput, latency");
  expect_refused(run_binary({"info", "--model", std::string(5000, 'x')}), "File name too long");
}

// Flags win over generation_config.json, which wins over the program's own defaults.
TEST(Cli_Generate, TheCacheMayKeepCodesOnRanksToo) {
  const auto answer = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {
        "generate",      "--model", testing::tinyworld(), "--device", "cpu",          "--prompt", "12 + 34 =",
        "--temperature", "0",       "--kv-memory",        "16MiB",    "--max-tokens", "8"};
    words.insert(words.end(), more.begin(), more.end());
    const BinaryResult result = run_binary(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string plain = answer({});
  EXPECT_NE(plain.find("46"), std::string::npos) << plain;
  for (const std::string& dtype : {"fp8", "int8", "int4"})
    EXPECT_EQ(answer({"--kv-cache-dtype", dtype}), plain) << dtype;
  EXPECT_EQ(answer({"--kv-cache-dtype", "int8", "--tensor-parallel-size", "2",
                    "--distributed-executor-backend", "mp"}),
            plain);
}

TEST(Cli_Generate, GenerationConfigGivesTheDefaults) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "generation_config.json", R"({"max_new_tokens": 3, "temperature": 0.0})");
  const auto num_tokens = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--prompt-token-ids", "1,2", "--ignore-eos", "--format", "jsonl"});
    const BinaryResult result = generate(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json_lines(result.out).at(0).at("outputs").at(0).at("token_ids").size();
  };
  const std::string there = folder.path().string();
  EXPECT_EQ(num_tokens({"--generation-config", there}), 3u);
  EXPECT_EQ(num_tokens({"--generation-config", there, "--max-tokens", "5"}), 5u);
  EXPECT_EQ(num_tokens({"--generation-config", "vllm"}), 16u);
  expect_refused(generate({"--prompt-token-ids", "1", "--generation-config", "/nowhere"}), "/nowhere");
}

TEST(Cli_Generate, StopTokenIdsMayBeOneListOrSeveral) {
  const std::vector<int32_t> greedy = testing::load_golden(testing::tied_model()).prompts[0].greedy_token_ids;
  const std::vector<int32_t> prompt = testing::load_golden(testing::tied_model()).prompts[0].token_ids;
  const std::string stop = std::to_string(greedy[2]), other = std::to_string((greedy[2] + 1) % 131);
  const std::vector<std::vector<std::string>> ways = {
      {"--stop-token-ids", other + "," + stop},
      {"--stop-token-ids", other, stop},
      {"--stop-token-ids", other, "--stop-token-ids", stop},
  };
  std::vector<std::string> outputs;
  for (std::vector<std::string> arguments : ways) {
    arguments.insert(arguments.end(), {"--prompt-token-ids", comma_separated(prompt), "--temperature", "0",
                                       "--ignore-eos", "--format", "jsonl"});
    const BinaryResult result = generate(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Json output = json_lines(result.out).at(0).at("outputs").at(0);
    EXPECT_EQ(output.at("finish_reason"), "stop");
    const auto end = static_cast<int32_t>(output.at("token_ids").back());
    EXPECT_TRUE(end == greedy[2] || end == (greedy[2] + 1) % 131) << end;
    outputs.push_back(output.at("token_ids").dump());
  }
  EXPECT_EQ(outputs[1], outputs[0]);
  EXPECT_EQ(outputs[2], outputs[0]);
}

TEST(Cli_Generate, AnErrorHasNothingThatATerminalObeysAndNoMegabytes) {
  const BinaryResult result =
      run_binary(with_small_cache({"generate", "--model", testing::tied_model(), "--prompts", "-"}),
                 "{\"prompt_token_ids\":[1],\"\\u001b[31m" + std::string(100000, 'x') + "\":1}\n");
  expect_refused(result, "line 1: unknown field");
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos);
  EXPECT_LT(result.err.size(), 1000u);
  expect_refused(run_binary({"generate", "--model", testing::tied_model(), "--device", "cpu",
                             "--prompt-token-ids", "1", "--kernel", "a\x1b[31m=b"}),
                 "--kernel a [31m=b");
}

TEST(Cli_Generate, PromptsThatCannotRunAreRefused) {
  expect_refused(generate({"--prompt-token-ids", ""}), "--prompt");
  expect_refused(generate({"--prompt-token-ids", "1,131"}), "131");
  expect_refused(generate({"--prompt-token-ids=-1"}), "--prompt-token-ids");
  expect_refused(generate({"--prompt", ""}), "--prompt");
  expect_refused(generate({"--prompt", "text"}), "tokenizer");
  expect_refused(generate({"--prompt-token-ids", "1", "--stop", "x"}), "stop");
  expect_refused(generate({}), "--prompt");
  expect_refused(
      generate({"--prompt-token-ids", comma_separated(std::vector<int32_t>(20, 1)), "--max-model-len", "16"}),
      "16");
  // One block of 16 tokens cannot hold a prompt of 10 and 20 tokens more.
  expect_refused(run_binary({"generate", "--model", testing::tied_model(), "--device", "cpu", "--dtype",
                             "f32", "--prompt-token-ids", comma_separated(std::vector<int32_t>(10, 1)),
                             "--max-tokens", "20", "--num-kv-blocks", "1", "--max-model-len", "40"}),
                 "--num-kv-blocks");
  expect_refused(run_binary({"generate", "--model", "/nowhere", "--prompt", "x"}), "/nowhere");
  expect_refused(run_binary({"generate", "--prompt", "x"}), "--model");
  expect_refused(run_binary({"nonsense"}), "nonsense");
  expect_refused(run_binary({}), "generate");
}

TEST(Cli_Generate, AReaderThatGoesAwayEndsTheWorkQuietly) {
  testing::TemporaryFolder folder;
  std::string file;
  for (int i = 0; i < 50; ++i) file += "{\"prompt_token_ids\":[" + std::to_string(i + 1) + "]}\n";
  testing::write_file(folder / "prompts.jsonl", file);
  const std::string command = "( " + testing::shell_quoted(testing::ladder_binary()) + " generate --model " +
                              testing::shell_quoted(testing::tied_model()) +
                              " --device cpu --dtype f32 --kv-memory 4MiB --format jsonl --prompts " +
                              testing::shell_quoted((folder / "prompts.jsonl").string()) +
                              " --max-num-seqs 1 --max-tokens 20; echo \"code $?\" >&2 ) 2>" +
                              testing::shell_quoted((folder / "err").string()) + " | head -n 1 >" +
                              testing::shell_quoted((folder / "out").string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(testing::read_file(folder / "err"), "code 0\n");
  EXPECT_EQ(json_lines(testing::read_file(folder / "out")).size(), 1u);
}

TEST(Cli_Generate, AFullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::string command =
      testing::shell_quoted(testing::ladder_binary()) + " generate --model " +
      testing::shell_quoted(testing::tied_model()) +
      " --device cpu --dtype f32 --kv-memory 4MiB --prompt-token-ids 1 >/dev/full 2>/dev/null";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

}  // namespace
}  // namespace ladder
