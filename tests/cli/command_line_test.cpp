// The contract of the command line, on the program itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/run_binary.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/model_devices.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::run_binary;
using Json = nlohmann::json;

const std::filesystem::path kSource = testing::source_folder();
const std::string kTied = (kSource / "tests" / "goldens" / "qwen3_tied").string();
const std::string kTokenizer = (kSource / "models" / "tinyworld").string();

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::vector<std::string> with_small_cache(std::vector<std::string> arguments,
                                          DeviceType device = DeviceType::cpu) {
  arguments.insert(arguments.end(),
                   {"--kv-memory", "4MiB", "--dtype", "f32", "--device", testing::device_word(device)});
  return arguments;
}

BinaryResult generate(std::vector<std::string> arguments, DeviceType device = DeviceType::cpu) {
  arguments.insert(arguments.begin(), {"generate", "--model", kTied});
  return run_binary(with_small_cache(std::move(arguments), device));
}

// The contract that does not depend on where the model runs.
class Cli_OnDevice : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override { testing::need_device(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, Cli_OnDevice, testing::both_devices(),
                         [](const auto& info) { return testing::device_word(info.param); });

// A user's mistake: exit code 2, one line on standard error that has the word, nothing on standard output.
void expect_refused(const BinaryResult& result, const std::string& word) {
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("ladder: error: ")) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(word), std::string::npos) << "expected \"" << word << "\" in " << result.err;
}

std::string comma_separated(const std::vector<int32_t>& ids) {
  std::string text;
  for (int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

TEST_P(Cli_OnDevice, GenerateWritesJsonLinesInInputOrderWithEveryFieldOfTheContract) {
  const testing::GoldenCheckpoint golden = testing::load_golden(kTied);
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
    EXPECT_EQ(lines[i]["index"], i);
    EXPECT_EQ(lines[i]["prompt_token_ids"], golden.prompts[i].token_ids);
    ASSERT_EQ(lines[i]["outputs"].size(), 1u);
    const Json& output = lines[i]["outputs"][0];
    std::vector<int32_t> expected = golden.prompts[i].greedy_token_ids;
    expected.resize(28 - 4 * i);
    EXPECT_EQ(output["token_ids"], expected);
    EXPECT_TRUE(output["text"].is_null()) << "there is no tokenizer in the folder";
    EXPECT_EQ(output["finish_reason"], "length");
    EXPECT_FALSE(output.contains("logprobs"));
    EXPECT_EQ(lines[i]["metrics"]["num_output_tokens"], expected.size());
  }
}

TEST(Cli_Generate, EndTokensOfGenerationConfigStop) {
  const testing::GoldenCheckpoint golden = testing::load_golden(kTied);
  for (const testing::GoldenPrompt& prompt : golden.prompts) {
    const BinaryResult result = generate({"--prompt-token-ids", comma_separated(prompt.token_ids),
                                          "--max-tokens", "28", "--temperature", "0", "--format", "jsonl"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Json output = json_lines(result.out)[0]["outputs"][0];
    const auto end = std::find_first_of(prompt.greedy_token_ids.begin(), prompt.greedy_token_ids.end(),
                                        golden.eos_token_ids.begin(), golden.eos_token_ids.end());
    const bool ends = end != prompt.greedy_token_ids.end();
    EXPECT_EQ(output["finish_reason"], ends ? "stop" : "length");
    EXPECT_EQ(output["token_ids"], std::vector<int32_t>(prompt.greedy_token_ids.begin(),
                                                        ends ? end + 1 : prompt.greedy_token_ids.end()));
  }
}

TEST_P(Cli_OnDevice, GenerateGivesSeveralCompletionsLogprobsAndASeedThatRepeats) {
  const std::vector<std::string> arguments = {
      "--prompt-token-ids", "5,6,7", "--max-tokens", "9",     "--seed",      "11", "--n", "3",
      "--logprobs",         "2",     "--format",     "jsonl", "--ignore-eos"};
  const BinaryResult first = generate(arguments, GetParam()), second = generate(arguments, GetParam());
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Json a = json_lines(first.out)[0]["outputs"], b = json_lines(second.out)[0]["outputs"];
  EXPECT_EQ(a, b);
  ASSERT_EQ(a.size(), 3u);
  EXPECT_NE(a[0]["token_ids"], a[1]["token_ids"]) << "completions have noise of their own";
  for (const Json& output : a) {
    EXPECT_EQ(output["token_ids"].size(), 9u);
    EXPECT_EQ(output["logprobs"].size(), 9u);
    ASSERT_EQ(output["top"].size(), 9u);
    for (const Json& top : output["top"]) {
      ASSERT_EQ(top.size(), 2u);
      EXPECT_GE(top[0]["logprob"], top[1]["logprob"]);
    }
  }
  // The first of several is what n = 1 gives.
  std::vector<std::string> one = arguments;
  one[7] = "1";
  EXPECT_EQ(json_lines(generate(one, GetParam()).out)[0]["outputs"][0]["token_ids"], a[0]["token_ids"]);
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
  refused({"--top-p", "0"}, "--top-p: expected a number above 0 and at most 1");
  refused({"--top-p", "1.5"}, "--top-p");
  refused({"--top-k=-1"}, "--top-k");
  refused({"--min-p", "2"}, "--min-p");
  refused({"--repetition-penalty", "0"}, "--repetition-penalty");
  refused({"--repetition-penalty", "inf"}, "--repetition-penalty: expected a number above 0");
  refused({"--repetition-penalty", "nan"}, "--repetition-penalty");
  refused({"--presence-penalty", "3"}, "--presence-penalty");
  refused({"--frequency-penalty", "nan"}, "--frequency-penalty");
  refused({"--seed", "x"}, "--seed");
  refused({"--n", "0"}, "--n");
  refused({"--n", "1000000000"}, "--n");
  refused({"--stop-token-ids", "1,x"}, "--stop-token-ids");
  refused({"--stop-token-ids", "131"}, "131");
  refused({"--stop-token-ids", "1", "--stop-token-ids", ""}, "--stop-token-ids");
  refused({"--logprobs", "1000"}, "--logprobs");
  refused({"--format", "xml"}, "--format");
  refused({"--device", "tpu"}, "--device");
  refused({"--load-format", "pickle"}, "--load-format");
  refused({"--scheduling-policy", "random"}, "--scheduling-policy");
  refused({"--max-num-seqs", "0"}, "--max-num-seqs");
  refused({"--block-size", "0"}, "--block-size");
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
    expect_refused(
        run_binary({"generate", "--model", kTied, "--device", "cpu", "--prompt-token-ids", "1", flag, value}),
        flag);
  };
  alone("--dtype", "f64");
  alone("--kv-memory", "lots");
  alone("--kv-memory", "1");
  expect_refused(run_binary({"info", "--model", kTied, "--device", "cpu", "--kv-memory", "1"}),
                 "--kv-memory: expected at least");
  expect_refused(run_binary({"bench", "latency", "--model", kTied, "--repeat", "0"}),
                 "ladder bench latency --help");
  expect_refused(run_binary({"bench", "speed"}), "\"speed\": expected a command, one of throughput, latency");
  expect_refused(run_binary({"info", "--model", std::string(5000, 'x')}), "File name too long");
}

TEST(Cli_Generate, StopTokenIdsMayBeOneListOrSeveral) {
  const std::vector<int32_t> greedy = testing::load_golden(kTied).prompts[0].greedy_token_ids;
  const std::vector<int32_t> prompt = testing::load_golden(kTied).prompts[0].token_ids;
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
    const Json output = json_lines(result.out)[0]["outputs"][0];
    EXPECT_EQ(output["finish_reason"], "stop");
    const auto end = static_cast<int32_t>(output["token_ids"].back());
    EXPECT_TRUE(end == greedy[2] || end == (greedy[2] + 1) % 131) << end;
    outputs.push_back(output["token_ids"].dump());
  }
  EXPECT_EQ(outputs[1], outputs[0]);
  EXPECT_EQ(outputs[2], outputs[0]);
}

TEST(Cli_Generate, AnErrorHasNothingThatATerminalObeysAndNoMegabytes) {
  const BinaryResult result =
      run_binary(with_small_cache({"generate", "--model", kTied, "--prompts", "-"}),
                 "{\"prompt_token_ids\":[1],\"\\u001b[31m" + std::string(100000, 'x') + "\":1}\n");
  expect_refused(result, "line 1: unknown field");
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos);
  EXPECT_LT(result.err.size(), 1000u);
  expect_refused(run_binary({"generate", "--model", kTied, "--device", "cpu", "--prompt-token-ids", "1",
                             "--kernel", "a\x1b[31m=b"}),
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
  expect_refused(run_binary({"generate", "--model", kTied, "--device", "cpu", "--dtype", "f32",
                             "--prompt-token-ids", comma_separated(std::vector<int32_t>(10, 1)),
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
                              testing::shell_quoted(kTied) +
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
      testing::shell_quoted(testing::ladder_binary()) + " generate --model " + testing::shell_quoted(kTied) +
      " --device cpu --dtype f32 --kv-memory 4MiB --prompt-token-ids 1 >/dev/full 2>/dev/null";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

TEST_P(Cli_OnDevice, ScoreWritesOneLinePerTextThenASummary) {
  const testing::GoldenCheckpoint golden = testing::load_golden(kTied);
  testing::TemporaryFolder folder;
  std::string file;
  for (const auto& prompt : golden.prompts)
    file += Json{{"prompt_token_ids", prompt.token_ids}}.dump() + "\n";
  testing::write_file(folder / "in.jsonl", file);
  const BinaryResult result =
      run_binary(with_small_cache({"score", "--model", kTied, "--input", (folder / "in.jsonl").string(),
                                   "--format", "jsonl", "--top", "3"},
                                  GetParam()));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<Json> lines = json_lines(result.out);
  ASSERT_EQ(lines.size(), golden.prompts.size() + 1);
  double sum = 0.0;
  int64_t tokens = 0;
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    const auto& prompt = golden.prompts[i];
    EXPECT_EQ(lines[i]["index"], i);
    EXPECT_EQ(lines[i]["token_ids"], prompt.token_ids);
    const Json& logprobs = lines[i]["logprobs"];
    ASSERT_EQ(logprobs.size(), prompt.token_ids.size());
    EXPECT_TRUE(logprobs[0].is_null());
    EXPECT_TRUE(lines[i]["top"][0].is_null());
    for (size_t t = 1; t < logprobs.size(); ++t) {
      sum += logprobs[t].get<double>();
      ++tokens;
      EXPECT_EQ(lines[i]["top"][t].size(), 3u);
    }
    // Against the oracle's logits, where the golden file has them for all positions.
    for (size_t p = 0; p < prompt.logit_positions.size(); ++p) {
      const auto position = static_cast<size_t>(prompt.logit_positions[p]);
      if (position + 1 >= prompt.token_ids.size()) continue;
      double total = 0.0;
      for (double logit : prompt.logits[p]) total += std::exp(logit);
      const double expected =
          prompt.logits[p][static_cast<size_t>(prompt.token_ids[position + 1])] - std::log(total);
      EXPECT_NEAR(logprobs[position + 1].get<double>(), expected, 2e-4);
    }
  }
  EXPECT_EQ(lines.back()["summary"]["tokens"], tokens);
  const double perplexity = std::exp(-sum / static_cast<double>(tokens));
  EXPECT_NEAR(lines.back()["summary"]["perplexity"].get<double>(), perplexity, 1e-6 * perplexity);
}

TEST_P(Cli_OnDevice, ATextToScoreMayFillTheModel) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "full.jsonl", Json{{"prompt_token_ids", std::vector<int>(512, 7)}}.dump());
  testing::write_file(folder / "over.jsonl", Json{{"prompt_token_ids", std::vector<int>(513, 7)}}.dump());
  const auto score = [&](const char* file) {
    return run_binary(with_small_cache(
        {"score", "--model", kTied, "--input", (folder / file).string(), "--format", "jsonl"}, GetParam()));
  };
  const BinaryResult full = score("full.jsonl");
  EXPECT_EQ(full.exit_code, 0) << full.err;
  EXPECT_EQ(json_lines(full.out)[0]["logprobs"].size(), 512u);
  expect_refused(score("over.jsonl"), "line 1");
}

TEST(Cli_Tokenize, TextsToIdsAndBackWithSpecialTokensKept) {
  const std::string text = "<|im_start|>user\nGrüße, 東京 🙂<|im_end|>";
  const BinaryResult encoded =
      run_binary({"tokenize", "--model", kTokenizer}, Json{{"text", text}}.dump() + "\n");
  ASSERT_EQ(encoded.exit_code, 0) << encoded.err;
  const Json ids = json_lines(encoded.out)[0]["ids"];
  EXPECT_LT(ids.size(), text.size());
  const BinaryResult decoded = run_binary({"tokenize", "--model", kTokenizer, "--decode"}, encoded.out);
  ASSERT_EQ(decoded.exit_code, 0) << decoded.err;
  EXPECT_EQ(json_lines(decoded.out)[0]["text"], text);
}

TEST(Cli_Tokenize, BadLinesAreNamed) {
  expect_refused(run_binary({"tokenize", "--model", kTokenizer}, "{\"txt\":\"a\"}\n"), "line 1");
  expect_refused(run_binary({"tokenize", "--model", kTokenizer}, "{\"text\":5}\n"), "text");
  expect_refused(run_binary({"tokenize", "--model", kTokenizer, "--decode"}, "{\"ids\":[99999999]}\n"),
                 "ids");
  expect_refused(run_binary({"tokenize", "--model", kTokenizer, "--decode"}, "{\"ids\":[-1]}\n"), "ids");
  expect_refused(run_binary({"tokenize", "--model", kTied}, "{\"text\":\"a\"}\n"), "tokenizer.json");
}

TEST(Cli_Help, EveryCommandExplainsItself) {
  for (const char* command : {"generate", "chat", "score", "tokenize", "info", "bench", "demo"}) {
    const BinaryResult result = run_binary({command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_GT(result.out.size(), 100u) << command;
    EXPECT_EQ(result.err, "");
  }
  EXPECT_NE(run_binary({"--help"}).out.find("tokenize"), std::string::npos);
  EXPECT_NE(run_binary({"bench", "throughput", "--help"}).out.find("--num-requests"), std::string::npos);
}

TEST(Cli_Info, SaysWhatTheModelIsAndWhatFits) {
  const BinaryResult result =
      run_binary({"info", "--model", kTied, "--device", "cpu", "--kv-memory", "4MiB"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* word : {"Qwen3ForCausalLM", "parameters", "KV cache per token", "together", "matmul"})
    EXPECT_NE(result.out.find(word), std::string::npos) << word;
}

TEST(Cli_Info, WithoutAModelItIsTheMachineAndItsKernels) {
  const BinaryResult result = run_binary({"info", "--device", "cpu", "--kernel", "matmul=loop"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* word : {"processor", "memory free", "paged_attention", "forced", "--model DIR"})
    EXPECT_NE(result.out.find(word), std::string::npos) << word;
  expect_refused(run_binary({"info", "--model", ""}), "--model");
  expect_refused(run_binary({"generate", "--prompt", "a"}), "--model is required");
}

TEST(Cli_Info, AModelThatDoesNotFitIsExplainedAndNotRun) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "config.json",
                      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 65536, "intermediate_size": 262144, "num_hidden_layers": 1000, "num_attention_heads": 512,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16"})");
  const std::string model = folder.path().string();
  const BinaryResult info = run_binary({"info", "--model", model, "--device", "cpu"});
  ASSERT_EQ(info.exit_code, 0) << info.err;
  EXPECT_NE(info.out.find("fits                  no"), std::string::npos) << info.out;
  expect_refused(
      run_binary({"bench", "latency", "--model", model, "--load-format", "dummy", "--device", "cpu"}),
      "MiB free");
}

TEST(Cli_Info, AnEmptyFileIsNotAnAbsentOne) {
  testing::TemporaryFolder folder;
  std::filesystem::copy_file(kTied + "/config.json", folder / "config.json");
  EXPECT_EQ(run_binary({"info", "--model", folder.path().string()}).exit_code, 0);
  testing::write_file(folder / "generation_config.json", "");
  expect_refused(run_binary({"info", "--model", folder.path().string()}), "generation_config.json");
}

TEST_P(Cli_OnDevice, BenchPrintsATableAndWritesItsJson) {
  testing::TemporaryFolder folder;
  const std::string json = (folder / "result.json").string();
  const BinaryResult throughput =
      run_binary(with_small_cache({"bench", "throughput", "--model", kTied, "--num-requests", "4",
                                   "--min-prompt-len", "3", "--max-prompt-len", "9", "--min-output-len", "2",
                                   "--max-output-len", "5", "--json", json},
                                  GetParam()),
                 {}, "LADDER_COMMIT=0123abc");
  ASSERT_EQ(throughput.exit_code, 0) << throughput.err;
  const Json report = Json::parse(testing::read_file(json));
  EXPECT_EQ(report["results"][0]["requests"], 4);
  EXPECT_GE(report["results"][0]["output_tokens"], 8);
  EXPECT_NE(report["command"].get<std::string>().find("--num-requests 4"), std::string::npos);
  EXPECT_TRUE(report.contains("cpu"));
  EXPECT_EQ(report["commit"], "0123abc");
  const bool on_gpu = GetParam() == DeviceType::cuda;
  EXPECT_EQ(report["gpu"].is_string(), on_gpu);
  EXPECT_EQ(report["results"][0]["of_streaming_limit"].is_number(), on_gpu);
  EXPECT_EQ(throughput.out.find("copy bandwidth") != std::string::npos, on_gpu);

  const BinaryResult latency = run_binary(with_small_cache(
      {"bench", "latency", "--model", kTied, "--prompt-len", "8", "--output-len", "4", "--repeat", "2"},
      GetParam()));
  EXPECT_EQ(latency.exit_code, 0) << latency.err;
  EXPECT_NE(latency.out.find("run 2"), std::string::npos);

  const BinaryResult progression = run_binary(with_small_cache(
      {"bench", "progression", "--model", kTied, "--num-requests", "6", "--shared-prefix-len", "32",
       "--max-prompt-len", "20", "--max-output-len", "12", "--json", json},
      GetParam()));
  ASSERT_EQ(progression.exit_code, 0) << progression.err;
  const Json rungs = Json::parse(testing::read_file(json))["results"];
  ASSERT_GE(rungs.size(), 6u);
  EXPECT_EQ(rungs.size() > 6u, on_gpu) << "graphs, asynchronous scheduling, dependent launch";
  const auto value = [&](size_t rung, const char* name) { return rungs[rung][name].get<double>(); };
  EXPECT_GT(value(0, "computed_tokens"), 3 * value(1, "computed_tokens"))
      << "every token really computed again";
  EXPECT_LT(value(2, "kv_live_share"), value(3, "kv_live_share"))
      << "static batching reserves for the longest answer";
  EXPECT_LT(value(3, "steps"), value(1, "steps"));
  EXPECT_EQ(value(4, "cached_tokens"), 0);
  for (size_t rung = 5; rung < rungs.size(); ++rung) {
    EXPECT_GT(value(rung, "cached_tokens"), 0);
    EXPECT_EQ(value(rung, "output_tokens"), value(0, "output_tokens"));
  }

  if (on_gpu) {
    const BinaryResult replay =
        run_binary(with_small_cache({"bench", "graph-replay", "--model", kTied, "--batch", "4",
                                     "--prompt-len", "5", "--steps", "3", "--json", json},
                                    GetParam()));
    EXPECT_EQ(replay.exit_code, 0) << replay.err;
    EXPECT_GT(Json::parse(testing::read_file(json))["results"][0]["replay_seconds"].get<double>(), 0.0);
    EXPECT_NE(replay.out.find("graph replay"), std::string::npos) << replay.out;
  } else {
    expect_refused(run_binary(with_small_cache({"bench", "graph-replay", "--model", kTied})),
                   "expected a GPU");
  }

  expect_refused(
      run_binary(with_small_cache({"bench", "latency", "--model", kTied, "--json", "/nowhere/x.json"})),
      "--json");
  expect_refused(
      run_binary(with_small_cache({"bench", "throughput", "--model", kTied, "--num-requests", "4"})),
      "--max-model-len");
}

// Where the model runs, and what cannot be had there.
BinaryResult on_device(const std::string& device, std::vector<std::string> more = {},
                       const std::string& environment = {}) {
  std::vector<std::string> arguments = {"generate", "--model", kTied, "--prompt-token-ids", "1,2", "--device",
                                        device,     "--dtype", "f32"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_binary(arguments, {}, environment);
}

TEST(Cli_Device, WithoutAGpuAutoIsTheCpuAndCudaIsRefusedWithTheReason) {
  const std::string hidden = "CUDA_VISIBLE_DEVICES=";
  expect_refused(on_device("cuda", {}, hidden), "--device cuda: no GPU can be used: ");
  expect_refused(on_device("cuda:1", {}, hidden), "--device cuda:1: no GPU can be used: ");
  expect_refused(run_binary({"info", "--model", kTied, "--device", "cuda"}, {}, hidden),
                 "no GPU can be used");
  EXPECT_EQ(on_device("cpu", {"--kv-memory", "4MiB"}, hidden).exit_code, 0);
  EXPECT_EQ(on_device("auto", {"--kv-memory", "4MiB"}, hidden).exit_code, 0);
}

TEST(Cli_Device, NamesThatMakeNoSenseAreRefused) {
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda0", ""})
    expect_refused(on_device(name), "--device: expected auto, cpu, cuda or cuda:N");
  expect_refused(on_device("cuda:99999999999"), "--device");
}

TEST(Cli_Device, WhatAGpuOnlyHasIsIgnoredOnTheCpuButStillChecked) {
  const std::vector<std::string> small = {"--kv-memory", "4MiB", "--temperature", "0"};
  std::vector<std::string> all = small;
  all.insert(all.end(), {"--enforce-eager", "--no-async-scheduling", "--no-dependent-launch",
                         "--gpu-memory-utilization", "0.5"});
  const BinaryResult plain = on_device("cpu", small), flags = on_device("cpu", all);
  ASSERT_EQ(flags.exit_code, 0) << flags.err;
  EXPECT_EQ(flags.out, plain.out);
  for (const char* share : {"0", "1.01", "-0.5", "nan", "much"})
    expect_refused(on_device("cpu", {std::string("--gpu-memory-utilization=") + share}),
                   "--gpu-memory-utilization: expected a number above 0 and at most 1");
}

TEST(Cli_Device, AKernelOfTheOtherDeviceIsUnknown) {
  expect_refused(on_device("cpu", {"--kernel", "matmul=cublaslt"}),
                 "--kernel matmul=cublaslt: no such kernel on cpu; matmul has loop");
}

TEST(Cli_Gpu, WhatItDoesNotHaveIsOneLine) {
  testing::need_device(DeviceType::cuda);
  if (::testing::Test::IsSkipped()) return;
  expect_refused(on_device("cuda:99"), "--device cuda:99: this machine has ");
  expect_refused(on_device("cuda", {"--tensor-parallel-size", "2"}), "--tensor-parallel-size 2");
  expect_refused(on_device("cuda", {"--kernel", "matmul=loop"}),
                 "--kernel matmul=loop: no such kernel on cuda:0");
  expect_refused(on_device("cuda", {"--kernel", "matmul=none"}),
                 "--kernel matmul=none: no such kernel on cuda:0");
  expect_refused(on_device("cuda", {"--kernel", "nothing=naive"}),
                 "--kernel nothing=naive: no such operator");
  expect_refused(run_binary(with_small_cache({"bench", "graph-replay", "--model", kTied, "--enforce-eager"},
                                             DeviceType::cuda)),
                 "graph-replay: there are no graphs with --enforce-eager");
}

// How much was needed, how much there is, and what to turn.
TEST(Cli_Gpu, MemoryThatItDoesNotHaveIsExplained) {
  testing::need_device(DeviceType::cuda);
  if (::testing::Test::IsSkipped()) return;
  const auto refused = [](const BinaryResult& result, std::initializer_list<const char*> words) {
    for (const char* word : words) expect_refused(result, word);
  };
  refused(on_device("cuda", {"--gpu-memory-utilization", "0.0001"}), {"--gpu-memory-utilization", "MiB"});
  refused(on_device("cuda", {"--num-kv-blocks", "1000000000"}), {"--num-kv-blocks", "MiB", "free"});
  refused(on_device("cuda", {"--kv-memory", "100TiB"}), {"--kv-memory", "MiB", "free"});
  testing::TemporaryFolder folder;
  testing::write_file(folder / "config.json",
                      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 200, "num_attention_heads": 128,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16"})");
  const std::string model = folder.path().string();
  refused(run_binary({"bench", "latency", "--model", model, "--load-format", "dummy", "--device", "cuda"}),
          {"the model needs ", "MiB", "--gpu-memory-utilization"});
  const BinaryResult info = run_binary({"info", "--model", model, "--device", "cuda"});
  EXPECT_EQ(info.exit_code, 0) << info.err;
  EXPECT_NE(info.out.find("fits                  no"), std::string::npos) << info.out;
}

TEST(Cli_Gpu, InfoSaysWhatItIsAndWhichKernelsItGets) {
  testing::need_device(DeviceType::cuda);
  if (::testing::Test::IsSkipped()) return;
  const BinaryResult result = run_binary({"info", "--model", kTied, "--device", "cuda"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* word : {"compute capability", "multiprocessors", "CUDA graphs", "KV blocks", "predicted",
                           "sequences of that length at once", "paged_attention", "lm_head", "heads of 16"})
    EXPECT_NE(result.out.find(word), std::string::npos) << word << " in " << result.out;
  testing::TemporaryFolder folder;
  testing::write_file(folder / "config.json",
                      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
    "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
    "vocab_size": 512, "max_position_embeddings": 512, "torch_dtype": "bfloat16"})");
  const std::string wide = folder.path().string();
  const BinaryResult none = run_binary({"info", "--model", wide, "--device", "cuda"});
  const size_t line = std::min(none.out.find("heads of 512"), none.out.size());
  EXPECT_NE(none.out.find(" none", line), std::string::npos) << none.out << none.err;
  expect_refused(
      run_binary({"bench", "latency", "--model", wide, "--load-format", "dummy", "--device", "cuda"}),
      "no attention kernel on cuda:0 takes heads of 512");
  const BinaryResult forced =
      run_binary({"info", "--model", kTied, "--device", "cuda", "--kernel", "rms_norm=naive"});
  std::istringstream lines(forced.out);
  std::string op, kernel, why;
  for (std::string line; op != "rms_norm" && std::getline(lines, line);) {
    std::istringstream words(line);
    words >> op >> kernel >> why;
  }
  EXPECT_EQ(kernel + " " + why, "naive forced") << forced.out;
}

// Greedy tokens do not depend on how the GPU is used.
TEST(Cli_Gpu, EverySwitchGivesTheSameTokens) {
  testing::need_device(DeviceType::cuda);
  if (::testing::Test::IsSkipped()) return;
  const std::vector<std::string> greedy = {"--temperature", "0", "--ignore-eos", "--kv-memory", "4MiB",
                                           "--max-tokens",  "20"};
  const BinaryResult plain = on_device("cuda", greedy);
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(on_device("cpu", greedy).out, plain.out);
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--enforce-eager"},
           {"--no-async-scheduling"},
           {"--no-dependent-launch"},
           {"--enforce-eager", "--no-async-scheduling", "--no-dependent-launch"},
           {"--kernel", "matmul=naive", "--kernel", "paged_attention=naive"}}) {
    std::vector<std::string> arguments = greedy;
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const BinaryResult result = on_device("cuda", arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, plain.out) << flags[0] << (flags.size() > 1 ? " " + flags[1] : "");
  }
}

}  // namespace
}  // namespace ladder
