// ladder tokenize.
#include "tests/cli/program.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::expect_refused;
using testing::Json;
using testing::json_lines;
using testing::run_binary;

TEST(Cli_Tokenize, TextsToIdsAndBackWithSpecialTokensKept) {
  const std::string text = "<|im_start|>user\nGrüße, 東京 🙂<|im_end|>";
  const BinaryResult encoded =
      run_binary({"tokenize", "--model", testing::tinyworld()}, Json{{"text", text}}.dump() + "\n");
  ASSERT_EQ(encoded.exit_code, 0) << encoded.err;
  const Json ids = json_lines(encoded.out).at(0).at("ids");
  EXPECT_LT(ids.size(), text.size());
  const BinaryResult decoded =
      run_binary({"tokenize", "--model", testing::tinyworld(), "--decode"}, encoded.out);
  ASSERT_EQ(decoded.exit_code, 0) << decoded.err;
  EXPECT_EQ(json_lines(decoded.out).at(0).at("text"), text);
}

TEST(Cli_Tokenize, BadLinesAreNamed) {
  expect_refused(run_binary({"tokenize", "--model", testing::tinyworld()}, "{\"txt\":\"a\"}\n"), "line 1");
  expect_refused(run_binary({"tokenize", "--model", testing::tinyworld()}, "{\"text\":5}\n"), "text");
  expect_refused(
      run_binary({"tokenize", "--model", testing::tinyworld(), "--decode"}, "{\"ids\":[99999999]}\n"), "ids");
  expect_refused(run_binary({"tokenize", "--model", testing::tinyworld(), "--decode"}, "{\"ids\":[-1]}\n"),
                 "ids");
  expect_refused(run_binary({"tokenize", "--model", testing::tied_model()}, "{\"text\":\"a\"}\n"),
                 "tokenizer.json");
}

}  // namespace
}  // namespace ladder
