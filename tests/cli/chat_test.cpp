// ladder chat: a conversation over several turns.
#include <regex>

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::expect_refused;
using testing::run_binary;

BinaryResult chat(const std::string& lines, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"chat",
                                        "--model",
                                        testing::tinyworld(),
                                        "--device",
                                        "cpu",
                                        "--dtype",
                                        "f32",
                                        "--kv-memory",
                                        "64MiB",
                                        "--seed",
                                        "1",
                                        "--max-model-len",
                                        "200",
                                        "--max-tokens",
                                        "24",
                                        "--temperature",
                                        "0"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_binary(arguments, lines);
}

// What stays the same from run to run: answers, and the numbers of tokens.
std::vector<std::string> lines_of(const BinaryResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> lines;
  std::istringstream stream(std::regex_replace(result.out, std::regex(", first after [^\\]]*"), ""));
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "word ";
  return text;
}

TEST(Cli_Chat, EveryTurnSendsTheWholeConversation) {
  const std::vector<std::string> lines = lines_of(chat("Hello!\nWhat is 12 + 34?\n"));
  std::vector<int> tokens_in;
  for (const std::string& line : lines)
    if (std::smatch found; std::regex_match(line, found, std::regex(R"(\[(\d+) tokens in, .*)")))
      tokens_in.push_back(std::stoi(found[1]));
  ASSERT_EQ(tokens_in.size(), 2u) << ::testing::PrintToString(lines);
  EXPECT_GT(tokens_in[1], tokens_in[0] + 5);
}

TEST(Cli_Chat, AMessageThatIsTooLongIsRefusedAndTheConversationStays) {
  const std::string first = "Hello!\n", third = "What is 12 + 34?\n";
  std::vector<std::string> with = lines_of(chat(first + words(400) + "\n" + third));
  const std::vector<std::string> without = lines_of(chat(first + third));
  const auto refused = std::find_if(with.begin(), with.end(),
                                    [](const std::string& line) { return line.starts_with("[not sent: "); });
  ASSERT_NE(refused, with.end()) << ::testing::PrintToString(with);
  with.erase(refused);
  EXPECT_EQ(with, without);
}

TEST(Cli_Chat, AFullConversationDropsItsOldestMessagesAndSaysSo) {
  std::string lines;
  for (int i = 0; i < 6; ++i) lines += words(30) + "\n";
  const BinaryResult result = chat(lines);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("oldest messages were dropped]"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("[not sent"), std::string::npos) << result.out;
}

// Refused by its name, before the weights are read: the folder has none.
TEST(Cli_Chat, NoThinkingIsRefusedWhereTheTemplateHasNone) {
  testing::TemporaryFolder folder;
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(std::filesystem::path(testing::tinyworld()) / name, folder / name);
  const BinaryResult result =
      run_binary({"chat", "--model", folder.path().string(), "--device", "cpu", "--no-thinking"}, "Hello!\n");
  expect_refused(result, "--no-thinking");
  EXPECT_EQ(result.err.find("safetensors"), std::string::npos) << result.err;
  expect_refused(run_binary({"chat", "--model", folder.path().string(), "--device", "cpu"}, "Hello!\n"),
                 "safetensors");
}

}  // namespace
}  // namespace ladder
