// Task 6.2: from tokens to text, with the tiny model's tokenizer.
#include "step6_engine/text/completion_text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

const std::filesystem::path kModel = testing::source_folder() / "models" / "tinyworld";

std::shared_ptr<const Tokenizer> tokenizer() {
  static const auto shared = std::make_shared<const Tokenizer>(Tokenizer::load(kModel));
  return shared;
}

struct Spoken {
  CompletionText::Appended end;
  std::vector<int32_t> token_ids;
  std::string text;
  std::vector<std::string> pieces;  // of every step
};

SamplingParams stop_at(const std::vector<std::string>& stop) {
  SamplingParams sampling;
  sampling.stop = stop;
  return sampling;
}

int32_t end_token() {
  return *tokenizer()->token_to_id("<|im_end|>");
}

// The tokens of `text` and then an end token come in steps of `step_size`, as far as the scheduler would let
// them: to the end token, a stop id or `max_tokens`.
Spoken speak(const std::string& text, const SamplingParams& sampling, size_t max_tokens = 200,
             size_t step_size = 1) {
  std::vector<int32_t> script = tokenizer()->encode(text, false);
  script.push_back(end_token());
  CompletionText completion(tokenizer().get(), sampling);
  Spoken spoken;
  for (size_t at = 0; spoken.end.finish_reason == FinishReason::none;) {
    std::vector<int32_t> step;
    FinishReason reason = FinishReason::none;
    while (step.size() < step_size && reason == FinishReason::none) {
      step.push_back(script.at(at++));
      const std::vector<int32_t>& ids = sampling.stop_token_ids;
      if (step.back() == end_token() || std::find(ids.begin(), ids.end(), step.back()) != ids.end())
        reason = FinishReason::stop;
      else if (at == max_tokens)
        reason = FinishReason::length;
    }
    spoken.end = completion.append(step, reason);
    spoken.token_ids.insert(spoken.token_ids.end(), step.begin(), step.begin() + spoken.end.num_tokens);
    spoken.text += spoken.end.text;
    spoken.pieces.push_back(spoken.end.text);
  }
  return spoken;
}

bool whole_characters(const std::string& text) {
  size_t open = 0;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) == 0x80) {
      if (open-- == 0) return false;
      continue;
    }
    if (open != 0) return false;
    open = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc0 ? 1 : 0;
  }
  return open == 0;
}

TEST(Task6_2_CompletionText, PiecesAreWholeCharactersAndAddUp) {
  const std::string text = "Grüße aus Zürich: 東京 🙂👍 naïve – fin";
  for (const size_t step_size : {1, 2, 5}) {
    const Spoken spoken = speak(text, {}, 200, step_size);
    EXPECT_EQ(spoken.text, text);
    for (const std::string& piece : spoken.pieces) EXPECT_TRUE(whole_characters(piece)) << piece;
    EXPECT_EQ(spoken.end.finish_reason, FinishReason::stop);
    EXPECT_EQ(spoken.token_ids.back(), end_token()) << "it stays in the tokens";
  }
}

TEST(Task6_2_CompletionText, ACharacterCutByMaxTokensIsReplacedAtTheEnd) {
  const std::string text = "🙂";
  const auto ids = tokenizer()->encode(text, false);
  ASSERT_GT(ids.size(), 1u) << "the tokenizer has a token for the whole character";
  const Spoken spoken = speak(text, {}, ids.size() - 1);
  EXPECT_EQ(spoken.text, tokenizer()->decode(std::span(ids).first(ids.size() - 1), true));
  EXPECT_EQ(spoken.end.finish_reason, FinishReason::length);
}

TEST(Task6_2_CompletionText, EndsBeforeTheStopStringAndKeepsTheTokensUpToIt) {
  const std::string text = "The home of Nora is Northfield.\nQuestion: Who else?";
  for (const size_t step_size : {1, 2, 3, 100}) {
    const Spoken spoken = speak(text, stop_at({"\nQuest", "never"}), 200, step_size);
    EXPECT_EQ(spoken.text, "The home of Nora is Northfield.");
    EXPECT_EQ(spoken.end.finish_reason, FinishReason::stop);
    EXPECT_EQ(spoken.end.stop_string, "\nQuest");
    const std::string tokens = tokenizer()->decode(spoken.token_ids, true);
    EXPECT_TRUE(text.starts_with(tokens));
    EXPECT_NE(tokens.find("\nQuest"), std::string::npos)
        << "the token that completed the stop string is listed";
    const auto without_last = std::span(spoken.token_ids).first(spoken.token_ids.size() - 1);
    EXPECT_EQ(tokenizer()->decode(without_last, true).find("\nQuest"), std::string::npos)
        << "and none after it, though it came in the same step";
  }
}

TEST(Task6_2_CompletionText, NothingOfAStopStringIsEverLetOut) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const std::string text = "Nora has a hawk called Inky, and Hugo turned 85 this year. Grüße, 東京!";
  for (int round = 0; round < 60; ++round) {
    // A stop string from the text, at character borders.
    size_t begin = static_cast<size_t>(random.integer(0, static_cast<int64_t>(text.size()) - 12));
    size_t end = begin + static_cast<size_t>(random.integer(1, 12));
    while ((static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
    const std::string stop = text.substr(begin, end - begin);
    const Spoken spoken = speak(text, stop_at({stop}), 200, static_cast<size_t>(random.integer(1, 3)));
    EXPECT_EQ(spoken.text, text.substr(0, text.find(stop))) << "stop string " << stop;
  }
}

TEST(Task6_2_CompletionText, AStopTokenHasNoText) {
  const auto ids = tokenizer()->encode("Nora lives in", false);
  SamplingParams sampling;
  sampling.stop_token_ids = {ids.back()};
  const Spoken spoken = speak("Nora lives in", sampling);
  EXPECT_EQ(spoken.token_ids, ids);
  EXPECT_EQ(spoken.text, tokenizer()->decode(std::span(ids).first(ids.size() - 1), true));
  EXPECT_EQ(spoken.end.finish_reason, FinishReason::stop);
  EXPECT_EQ(spoken.end.stop_string, std::nullopt);
}

TEST(Task6_2_CompletionText, TextHeldBackComesOutWhenTheTokensEnd) {
  for (const size_t max_tokens : {200, 2}) {  // by an end token, by their number
    const std::string text = "one two";
    const Spoken spoken = speak(text, stop_at({"two three"}), max_tokens);
    const auto ids = tokenizer()->encode(text, false);
    EXPECT_EQ(spoken.text, tokenizer()->decode(std::span(ids).first(std::min(ids.size(), max_tokens)), true));
  }
}

TEST(Task6_2_CompletionText, WhatStopsMayBeIncluded) {
  SamplingParams sampling = stop_at({"lives"});
  sampling.include_stop_str_in_output = true;
  const std::string text = "Nora lives in Northfield";
  EXPECT_EQ(speak(text, sampling).text, "Nora lives");
  // A stop id is included too; special tokens are still skipped.
  const auto ids = tokenizer()->encode(text, false);
  sampling.stop = {};
  sampling.stop_token_ids = {ids.back()};
  EXPECT_EQ(speak(text, sampling).text, text);
  sampling.stop_token_ids = {};
  EXPECT_EQ(speak(text, sampling).text, text);
}

TEST(Task6_2_CompletionText, SpecialTokensMayBeKept) {
  const auto script = tokenizer()->encode("a<|im_start|>b", false);
  ASSERT_TRUE(
      std::any_of(script.begin(), script.end(), [](int32_t id) { return tokenizer()->is_special(id); }));
  EXPECT_EQ(speak("a<|im_start|>b", {}).text, "ab");
  SamplingParams sampling;
  sampling.skip_special_tokens = false;
  EXPECT_EQ(speak("a<|im_start|>b", sampling).text, "a<|im_start|>b");
  sampling.include_stop_str_in_output = true;
  EXPECT_EQ(speak("a<|im_start|>b", sampling).text, "a<|im_start|>b<|im_end|>");
}

TEST(Task6_2_CompletionText, AStopStringThatEndsBeforeMinTokensDoesNotCount) {
  const std::string text = "one two one two one two";
  const auto ids = tokenizer()->encode(text, false);
  for (int64_t min_tokens = 0; min_tokens < std::ssize(ids); ++min_tokens) {
    SamplingParams sampling = stop_at({"two"});
    sampling.min_tokens = min_tokens;
    const Spoken spoken = speak(text, sampling);
    // By the definition: the first "two" whose last character comes with a token after min_tokens.
    std::string expected = text;
    for (size_t at = text.find("two"); at != std::string::npos; at = text.find("two", at + 1)) {
      int64_t num_tokens = 0;
      while (tokenizer()->decode(std::span(ids).first(static_cast<size_t>(num_tokens)), true).size() < at + 3)
        ++num_tokens;
      if (num_tokens <= min_tokens) continue;
      expected = text.substr(0, at);
      break;
    }
    EXPECT_EQ(spoken.text, expected) << "min_tokens " << min_tokens;
  }
}

TEST(Task6_2_CompletionText, ATokenThatTheTokenizerLacksHasNoText) {
  CompletionText text(tokenizer().get(), {});
  const auto appended = text.append(std::vector<int32_t>{static_cast<int32_t>(tokenizer()->vocab_size()) + 5},
                                    FinishReason::none);
  EXPECT_EQ(appended.num_tokens, 1);
  EXPECT_EQ(appended.text, "");
}

}  // namespace
}  // namespace ladder
