// ladder info, and the help of every command.
#include "step4_runner/memory.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::expect_refused;
using testing::run_binary;

TEST(Cli_Help, EveryCommandExplainsItself) {
  for (const char* command :
       {"generate", "chat", "score", "eval", "quantize", "tokenize", "info", "bench", "serve", "demo"}) {
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
      run_binary({"info", "--model", testing::tied_model(), "--device", "cpu", "--kv-memory", "4MiB"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* word : {"Qwen3ForCausalLM", "parameters", "KV cache per token", "together", "matmul"})
    EXPECT_NE(result.out.find(word), std::string::npos) << word;
}

TEST(Cli_Info, OfExpertsItSaysWhatATokenMeets) {
  const std::string model = (testing::source_folder() / "models/qwen3-30b-a3b").string();
  const BinaryResult result =
      run_binary({"info", "--model", model, "--device", "cpu", "--kv-memory", "4MiB"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* word : {"30,532,122,624", "3,353,032,704", "8 of 128 experts of 768"})
    EXPECT_NE(result.out.find(word), std::string::npos) << word << "\n" << result.out;
  expect_refused(run_binary({"info", "--model", model, "--device", "cpu", "--tensor-parallel-size", "5"}),
                 "768");
}

TEST(Cli_Info, SaysInHowManyBitsWeightsAndCacheAre) {
  const auto info = [](const char* model, const char* cache) {
    const BinaryResult result =
        run_binary({"info", "--model", (testing::source_folder() / "models" / model).string(), "--device",
                    "cpu", "--kv-memory", "64MiB", "--kv-cache-dtype", cache});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string int4 = info("qwen3-0.6b-w4a16", "int4"), dense = info("qwen3-0.6b", "auto");
  for (const char* words : {"int4 in groups of 128", "KiB in int4"})
    EXPECT_NE(int4.find(words), std::string::npos) << words << "\n" << int4;
  for (const char* words : {"dense", "KiB in bf16"})
    EXPECT_NE(dense.find(words), std::string::npos) << words << "\n" << dense;
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
      "MiB are free for it");
}

// All replicas of this machine share its memory.
TEST(Cli_Info, ReplicasFitTogetherOrNot) {
  const auto info = [](int replicas, const std::string& kv_memory) {
    const BinaryResult result =
        run_binary({"info", "--model", testing::tied_model(), "--device", "cpu", "--data-parallel-size",
                    std::to_string(replicas), "--kv-memory", kv_memory});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string half = std::to_string(machine_memory().available / 2 >> 20) + "MiB";
  EXPECT_NE(info(2, "4MiB").find("2 such replicas"), std::string::npos);
  EXPECT_NE(info(2, "4MiB").find("fits                  yes"), std::string::npos) << info(2, "4MiB");
  EXPECT_NE(info(1, half).find("fits                  yes"), std::string::npos) << info(1, half);
  EXPECT_NE(info(3, half).find("fits                  no"), std::string::npos) << info(3, half);
}

TEST(Cli_Info, AnEmptyFileIsNotAnAbsentOne) {
  testing::TemporaryFolder folder;
  std::filesystem::copy_file(testing::tied_model() + "/config.json", folder / "config.json");
  EXPECT_EQ(run_binary({"info", "--model", folder.path().string()}).exit_code, 0);
  testing::write_file(folder / "generation_config.json", "");
  expect_refused(run_binary({"info", "--model", folder.path().string()}), "generation_config.json");
}

}  // namespace
}  // namespace ladder
