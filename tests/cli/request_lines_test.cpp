// JSON lines in and out, and what flags and terminal share.
#include "cli/request_lines.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/flag_values.h"
#include "cli/json_lines.h"
#include "cli/live_view.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Cli_RequestLines, FilesHaveBlankLinesCarriageReturnsAndMaybeNoLastNewline) {
  testing::TemporaryFolder folder;
  testing::write_file(folder / "a.jsonl", "{\"prompt\":\"one\"}\r\n\n  \n{\"prompt\":\"two\"}");
  const auto lines = read_request_lines((folder / "a.jsonl").string(), {});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].request.prompt, "one");
  EXPECT_EQ(lines[1].request.prompt, "two");
  EXPECT_TRUE(lines[1].where.ends_with("line 4")) << lines[1].where;
  testing::write_file(folder / "empty.jsonl", "\n\n");
  EXPECT_NE(error_of([&] { read_request_lines((folder / "empty.jsonl").string(), {}); }).find("empty.jsonl"),
            std::string::npos);
  EXPECT_NE(error_of([&] { read_request_lines((folder / "none.jsonl").string(), {}); }).find("none.jsonl"),
            std::string::npos);
}

TEST(Cli_Flags, TokenIdsAndSizesAreReadWholeOrRefused) {
  EXPECT_EQ(parse_token_ids("1,2, 30", "--flag"), (std::vector<int32_t>{1, 2, 30}));
  for (const char* bad : {"", "1,", ",1", "1,,2", "a", "1.5", "-1", "99999999999", "1 2"})
    EXPECT_TRUE(error_of([&] { parse_token_ids(bad, "--flag"); }).starts_with("--flag: ")) << bad;
  EXPECT_EQ(parse_bytes("4096", "--flag"), 4096);
  EXPECT_EQ(parse_bytes("512MiB", "--flag"), int64_t{512} << 20);
  EXPECT_EQ(parse_bytes("1.5G", "--flag"), int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("2GB", "--flag"), 2000000000);
  for (const char* bad : {"", "GiB", "-1GiB", "0", "1XB", "1e99", "99999999TiB", "1 GiB", "1.2.3M", "nan"})
    EXPECT_TRUE(error_of([&] { parse_bytes(bad, "--flag"); }).starts_with("--flag: ")) << bad;
}

RequestOutput sample_output() {
  RequestOutput output;
  output.prompt_token_ids = {1, 2};
  output.completions.resize(1);
  CompletionOutput& completion = output.completions[0];
  completion.token_ids = {3, 4};
  completion.text = "a \"quote\"\n\xf0\x9f\x99\x82";
  completion.finish_reason = FinishReason::stop;
  completion.stop_reason = std::string("\n");
  completion.logprobs = {{{3, -0.1f}, {{3, -0.1f}, {9, -2.5f}}}, {{4, -1.0f}, {{4, -1.0f}, {8, -1.5f}}}};
  output.prompt_logprobs = {{{2, -1.25f}, {{7, -0.5f}, {2, -1.25f}}}};
  output.metrics.num_prompt_tokens = 2;
  return output;
}

TEST(Cli_JsonLines, GenerateLineHasTheContractsFields) {
  const std::string line = generate_line(5, sample_output(), 2);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["index"], 5);
  EXPECT_EQ(json["prompt_token_ids"], (std::vector<int>{1, 2}));
  const auto& completion = json["outputs"][0];
  EXPECT_EQ(completion["token_ids"], (std::vector<int>{3, 4}));
  EXPECT_EQ(completion["text"], "a \"quote\"\n\xf0\x9f\x99\x82");
  EXPECT_EQ(completion["finish_reason"], "stop");
  EXPECT_EQ(completion["stop_reason"], "\n");
  EXPECT_FALSE(completion.contains("error"));
  EXPECT_EQ(completion["logprobs"].size(), 2u);
  EXPECT_NE(line.find("\"logprobs\":[-0.1,-1"), std::string::npos) << "a float keeps a float's digits";
  EXPECT_EQ(completion["top"][1][1]["token_id"], 8);
  EXPECT_EQ(json["metrics"]["num_prompt_tokens"], 2);
  EXPECT_TRUE(json["metrics"].contains("time_to_first_token"));

  const auto bare = nlohmann::json::parse(generate_line(0, sample_output(), std::nullopt));
  EXPECT_FALSE(bare["outputs"][0].contains("logprobs"));
  const auto chosen_only = nlohmann::json::parse(generate_line(0, sample_output(), 0));
  EXPECT_TRUE(chosen_only["outputs"][0].contains("logprobs"));
  EXPECT_FALSE(chosen_only["outputs"][0].contains("top"));
  const auto whole_vocabulary = nlohmann::json::parse(generate_line(0, sample_output(), -1));
  EXPECT_TRUE(whole_vocabulary["outputs"][0].contains("top"));
  RequestOutput failed = sample_output();
  failed.completions[0].finish_reason = FinishReason::error;
  failed.completions[0].stop_reason = {};
  failed.completions[0].error = "NaN";
  const auto error_line = nlohmann::json::parse(generate_line(0, failed, std::nullopt));
  EXPECT_TRUE(error_line["outputs"][0]["stop_reason"].is_null());
  EXPECT_EQ(error_line["outputs"][0]["error"], "NaN");
  RequestOutput silent = sample_output();
  silent.completions[0].text.reset();
  EXPECT_TRUE(nlohmann::json::parse(generate_line(0, silent, std::nullopt))["outputs"][0]["text"].is_null());
}

TEST(Cli_JsonLines, ScoreLineBeginsWithNull) {
  const auto json = nlohmann::json::parse(score_line(1, sample_output(), 2));
  EXPECT_EQ(json["token_ids"], (std::vector<int>{1, 2}));
  EXPECT_EQ(json["logprobs"].dump(), "[null,-1.25]");
  EXPECT_TRUE(json["top"][0].is_null());
  EXPECT_EQ(json["top"][1][0]["token_id"], 7);
  EXPECT_FALSE(nlohmann::json::parse(score_line(1, sample_output(), 0)).contains("top"));
  RequestOutput single = sample_output();
  single.prompt_token_ids = {1};
  single.prompt_logprobs.clear();
  EXPECT_EQ(nlohmann::json::parse(score_line(1, single, 0))["logprobs"].dump(), "[null]");

  const auto summary = nlohmann::json::parse(score_summary_line(4, -4.0));
  EXPECT_EQ(summary["summary"]["tokens"], 4);
  EXPECT_NEAR(summary["summary"]["perplexity"].get<double>(), 2.718281828, 1e-8);
  EXPECT_TRUE(nlohmann::json::parse(score_summary_line(0, 0.0))["summary"]["perplexity"].is_null());
}

TEST(Cli_Terminal, NumbersAreShownAsPeopleReadThem) {
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 30), "3.00 GiB");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(-1000), "-1,000");
  EXPECT_EQ(format_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(format_seconds(0.001234), "1.23 ms");
}

TEST(Cli_Terminal, KnowsUtf8) {
  for (const char* good : {"", "plain", "Grüße 東京 🙂", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(is_utf8(good)) << good;
  for (const char* bad :
       {"\xff", "\xc3", "a\x80", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"})
    EXPECT_FALSE(is_utf8(bad));
}

TEST(Cli_Terminal, ShortensTextsAtCharacters) {
  EXPECT_EQ(on_one_line("  a\n\nb\t c "), "a b c ");
  EXPECT_EQ(keep_end("äöüäöü", 6), "äöüäöü");
  EXPECT_EQ(keep_end("äöüßxyz", 5), "...yz");
  EXPECT_EQ(keep_end("xyzäöüß", 5), "...üß");
  EXPECT_EQ(keep_begin("äöüßxyz", 5), "äö...");
}

}  // namespace
}  // namespace ladder
