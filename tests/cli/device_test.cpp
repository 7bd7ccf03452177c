// --device and the flags that only a GPU knows.
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::expect_refused;
using testing::run_binary;
using testing::with_small_cache;

// Where the model runs, and what cannot be had there.
BinaryResult on_device(const std::string& device, std::vector<std::string> more = {},
                       const std::string& environment = {}) {
  std::vector<std::string> arguments = {
      "generate", "--model", testing::tied_model(), "--prompt-token-ids", "1,2", "--device", device,
      "--dtype",  "f32"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_binary(arguments, {}, environment);
}

TEST(Cli_Device, WithoutAGpuAutoIsTheCpuAndCudaIsRefusedWithTheReason) {
  const std::string hidden = "CUDA_VISIBLE_DEVICES=";
  expect_refused(on_device("cuda", {}, hidden), "--device cuda: no GPU can be used: ");
  expect_refused(on_device("cuda:1", {}, hidden), "--device cuda:1: no GPU can be used: ");
  expect_refused(run_binary({"info", "--model", testing::tied_model(), "--device", "cuda"}, {}, hidden),
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
  expect_refused(
      run_binary(with_small_cache(
          {"bench", "graph-replay", "--model", testing::tied_model(), "--enforce-eager"}, DeviceType::cuda)),
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
  const BinaryResult result = run_binary({"info", "--model", testing::tied_model(), "--device", "cuda"});
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
  const BinaryResult forced = run_binary(
      {"info", "--model", testing::tied_model(), "--device", "cuda", "--kernel", "rms_norm=naive"});
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
