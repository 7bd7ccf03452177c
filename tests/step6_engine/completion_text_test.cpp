// Task 6.2: from tokens to text, with the tiny model's tokenizer.
#include "step6_engine/text/completion_text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step6_engine/engine.h"
#include "tests/step6_engine/fake_executor.h"
#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

const std::filesystem::path kModel = testing::source_folder() / "models" / "tinyworld";

std::shared_ptr<const Tokenizer> tokenizer() {
  static const auto shared = std::make_shared<const Tokenizer>(Tokenizer::load(kModel));
  return shared;
}

// Gives out the tokens of `text`, then end tokens.
testing::FakeExecutor::NextToken speak(const std::string& text) {
  const std::vector<int32_t> script = tokenizer()->encode(text, false);
  return [script](const std::vector<int32_t>& token_ids, int64_t num_prompt) {
    const size_t at = token_ids.size() - static_cast<size_t>(num_prompt);
    return at < script.size() ? script[at] : *tokenizer()->token_to_id("<|im_end|>");
  };
}

struct Spoken {
  CompletionOutput output;
  std::vector<std::string> pieces;  // of every step
};

SamplingParams stop_at(const std::vector<std::string>& stop) {
  SamplingParams sampling;
  sampling.stop = stop;
  return sampling;
}

// `sampling` without temperature and max_tokens.
Spoken speak_through_engine(const std::string& text, SamplingParams sampling, int64_t max_tokens = 200,
                            int max_in_flight = 1) {
  SchedulerConfig config;
  config.batch.max_num_seqs = 4;
  config.batch.max_num_batched_tokens = 64;
  config.batch.max_model_len = 512;
  config.vocab_size = tokenizer()->vocab_size();
  config.batch.num_kv_blocks = 64;
  config.eos_token_ids = {*tokenizer()->token_to_id("<|im_end|>")};
  Engine engine(std::make_unique<testing::FakeExecutor>(speak(text), max_in_flight), config, tokenizer());
  Request request;
  request.prompt = "Say it:";
  request.sampling = std::move(sampling);
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = max_tokens;
  Spoken spoken;
  spoken.output = engine
                      .generate({request},
                                [&](const StepResult& step) {
                                  for (const CompletionUpdate& update : step.updates)
                                    spoken.pieces.push_back(update.text);
                                })[0]
                      .completions[0];
  EXPECT_EQ(engine.scheduler().blocks().num_used_blocks(), 0);
  return spoken;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
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
  for (int depth : {1, 2}) {
    const Spoken spoken = speak_through_engine(text, {}, 200, depth);
    EXPECT_EQ(spoken.output.text, text);
    EXPECT_EQ(joined(spoken.pieces), text);
    for (const std::string& piece : spoken.pieces) EXPECT_TRUE(whole_characters(piece)) << piece;
    EXPECT_EQ(spoken.output.finish_reason, FinishReason::stop);
    EXPECT_EQ(spoken.output.token_ids.back(), *tokenizer()->token_to_id("<|im_end|>"));
  }
}

TEST(Task6_2_CompletionText, ACharacterCutByMaxTokensIsReplacedAtTheEnd) {
  const std::string text = "🙂";
  const auto ids = tokenizer()->encode(text, false);
  ASSERT_GT(ids.size(), 1u) << "the tokenizer has a token for the whole character";
  const Spoken spoken = speak_through_engine(text, {}, static_cast<int64_t>(ids.size()) - 1);
  EXPECT_EQ(spoken.output.text, tokenizer()->decode(std::span(ids).first(ids.size() - 1), true));
  EXPECT_EQ(spoken.output.finish_reason, FinishReason::length);
  EXPECT_EQ(joined(spoken.pieces), *spoken.output.text);
}

TEST(Task6_2_CompletionText, EndsBeforeTheStopStringAndKeepsTheTokensUpToIt) {
  const std::string text = "The home of Nora is Northfield.\nQuestion: Who else?";
  for (int depth : {1, 2, 3}) {
    const Spoken spoken = speak_through_engine(text, stop_at({"\nQuest", "never"}), 200, depth);
    EXPECT_EQ(spoken.output.text, "The home of Nora is Northfield.");
    EXPECT_EQ(joined(spoken.pieces), *spoken.output.text);
    EXPECT_EQ(spoken.output.finish_reason, FinishReason::stop);
    const std::string tokens = tokenizer()->decode(spoken.output.token_ids, true);
    EXPECT_TRUE(text.starts_with(tokens));
    EXPECT_NE(tokens.find("\nQuest"), std::string::npos)
        << "the token that completed the stop string is listed";
    const auto without_last = std::span(spoken.output.token_ids).first(spoken.output.token_ids.size() - 1);
    EXPECT_EQ(tokenizer()->decode(without_last, true).find("\nQuest"), std::string::npos)
        << "and none after it";
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
    const Spoken spoken =
        speak_through_engine(text, stop_at({stop}), 200, static_cast<int>(random.integer(1, 3)));
    EXPECT_EQ(spoken.output.text, text.substr(0, text.find(stop))) << "stop string " << stop;
    EXPECT_EQ(joined(spoken.pieces), *spoken.output.text);
  }
}

TEST(Task6_2_CompletionText, AStopTokenHasNoText) {
  const auto ids = tokenizer()->encode("Nora lives in", false);
  SamplingParams sampling;
  sampling.stop_token_ids = {ids.back()};
  const Spoken spoken = speak_through_engine("Nora lives in", sampling);
  EXPECT_EQ(spoken.output.token_ids, ids);
  EXPECT_EQ(spoken.output.text, tokenizer()->decode(std::span(ids).first(ids.size() - 1), true));
  EXPECT_EQ(spoken.output.finish_reason, FinishReason::stop);
}

TEST(Task6_2_CompletionText, TextHeldBackComesOutWhenTheTokensEnd) {
  const std::string text = "one two";
  const Spoken spoken = speak_through_engine(text, stop_at({"two three"}));
  EXPECT_EQ(spoken.output.text, text);
  EXPECT_EQ(joined(spoken.pieces), text);
}

TEST(Task6_2_CompletionText, TheReasonOfAStopIsNamed) {
  const int32_t end = *tokenizer()->token_to_id("<|im_end|>");
  const std::string text = "Nora lives in Northfield";
  const auto ids = tokenizer()->encode(text, false);
  const auto reason_with = [&](const SamplingParams& sampling) {
    const Spoken spoken = speak_through_engine(text, sampling);
    EXPECT_EQ(spoken.output.finish_reason, FinishReason::stop);
    return spoken.output.stop_reason;
  };
  EXPECT_EQ(reason_with({}), StopReason()) << "an end token of the model";
  SamplingParams by_id;
  by_id.stop_token_ids = {end, ids[2]};
  EXPECT_EQ(reason_with(by_id), StopReason(ids[2]));
  by_id.stop_token_ids = {end};
  EXPECT_EQ(reason_with(by_id), StopReason()) << "still an end token of the model";
  by_id.ignore_eos = true;
  EXPECT_EQ(reason_with(by_id), StopReason(end));
  EXPECT_EQ(reason_with(stop_at({"never", "lives", "Nora li"})), StopReason(std::string("Nora li")));
  const Spoken whole = speak_through_engine(text, {}, 2);
  EXPECT_EQ(whole.output.finish_reason, FinishReason::length);
  EXPECT_EQ(whole.output.stop_reason, StopReason());
}

TEST(Task6_2_CompletionText, WhatStopsMayBeIncluded) {
  SamplingParams sampling = stop_at({"lives"});
  sampling.include_stop_str_in_output = true;
  const std::string text = "Nora lives in Northfield";
  Spoken spoken = speak_through_engine(text, sampling);
  EXPECT_EQ(spoken.output.text, "Nora lives");
  EXPECT_EQ(joined(spoken.pieces), "Nora lives");
  // A stop id is included too; special tokens are still skipped.
  const auto ids = tokenizer()->encode(text, false);
  sampling.stop = {};
  sampling.stop_token_ids = {ids.back()};
  spoken = speak_through_engine(text, sampling);
  EXPECT_EQ(spoken.output.text, text);
  sampling.stop_token_ids = {};
  EXPECT_EQ(speak_through_engine(text, sampling).output.text, text);
}

TEST(Task6_2_CompletionText, SpecialTokensMayBeKept) {
  const auto script = tokenizer()->encode("a<|im_start|>b", false);
  ASSERT_TRUE(
      std::any_of(script.begin(), script.end(), [](int32_t id) { return tokenizer()->is_special(id); }));
  EXPECT_EQ(speak_through_engine("a<|im_start|>b", {}).output.text, "ab");
  SamplingParams sampling;
  sampling.skip_special_tokens = false;
  EXPECT_EQ(speak_through_engine("a<|im_start|>b", sampling).output.text, "a<|im_start|>b");
  sampling.include_stop_str_in_output = true;
  EXPECT_EQ(speak_through_engine("a<|im_start|>b", sampling).output.text, "a<|im_start|>b<|im_end|>");
}

TEST(Task6_2_CompletionText, AStopStringThatEndsBeforeMinTokensDoesNotCount) {
  const std::string text = "one two one two one two";
  const auto ids = tokenizer()->encode(text, false);
  for (int64_t min_tokens = 0; min_tokens < std::ssize(ids); ++min_tokens) {
    SamplingParams sampling = stop_at({"two"});
    sampling.min_tokens = min_tokens;
    const Spoken spoken = speak_through_engine(text, sampling);
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
    EXPECT_EQ(spoken.output.text, expected) << "min_tokens " << min_tokens;
    EXPECT_EQ(joined(spoken.pieces), expected);
  }
}

TEST(Task6_2_CompletionText, BadWordsAreWrittenAsAtTheBeginningOfATextAndAfterASpace) {
  SchedulerConfig config;
  config.batch = {.max_num_seqs = 4, .max_num_batched_tokens = 64, .max_model_len = 512, .num_kv_blocks = 64};
  config.vocab_size = tokenizer()->vocab_size();
  const Scheduler scheduler(config);
  Request request;
  request.prompt = "Say it:";
  request.sampling.bad_words = {"Nora", "  lives in", "in"};
  const PreparedRequest prepared = prepare_request(request, tokenizer().get(), scheduler);
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& word : {std::string("Nora"), std::string("lives in"), std::string("in")}) {
    const auto bare = tokenizer()->encode(word, false), spaced = tokenizer()->encode(" " + word, false);
    ASSERT_NE(bare[0], spaced[0]) << "the test wants a tokenizer that tells them apart";
    expected.push_back(bare);
    if (spaced.size() == bare.size()) expected.push_back(spaced);
  }
  EXPECT_GT(expected.size(), 3u) << "the test wants a word that has both";
  EXPECT_EQ(prepared.sampling.bad_words_token_ids, expected);
  EXPECT_EQ(prepared.prompt_token_ids, tokenizer()->encode("Say it:", true));

  const auto refused = [&](std::vector<std::string> words, const Tokenizer* with) {
    request.sampling.bad_words = std::move(words);
    try {
      prepare_request(request, with, scheduler);
    } catch (const Error& error) {
      return std::string(error.what()).find("bad_words") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused({"   "}, tokenizer().get()));
  EXPECT_TRUE(refused({""}, tokenizer().get()));
  request.prompt.reset();
  request.prompt_token_ids = {1};
  EXPECT_TRUE(refused({"Nora"}, nullptr));
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
