// Task 6.1: text and reasons on their way through the engine; and how words become ids before it.
#include <gtest/gtest.h>

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step6_engine/engine.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

std::shared_ptr<const Tokenizer> tokenizer() {
  static const auto shared =
      std::make_shared<const Tokenizer>(Tokenizer::load(testing::source_folder() / "models" / "tinyworld"));
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

SchedulerConfig spoken_config() {
  SchedulerConfig config;
  config.batch.max_num_seqs = 4;
  config.batch.max_num_batched_tokens = 64;
  config.batch.max_model_len = 512;
  config.batch.num_kv_blocks = 64;
  config.vocab_size = tokenizer()->vocab_size();
  config.eos_token_ids = {*tokenizer()->token_to_id("<|im_end|>")};
  return config;
}

struct Spoken {
  CompletionOutput output;
  std::string updates;  // their text
  StopReason last_reason;
  int64_t num_steps = 0;
};

// `sampling` without temperature and max_tokens.
Spoken speak_through_engine(const std::string& text, SamplingParams sampling, int64_t max_tokens = 200,
                            int max_in_flight = 1) {
  Engine engine(std::make_unique<testing::FakeExecutor>(speak(text), max_in_flight), spoken_config(),
                tokenizer());
  Request request;
  request.prompt = "Say it:";
  request.sampling = std::move(sampling);
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = max_tokens;
  Spoken spoken;
  const auto see = [&](const StepResult& step) {
    for (const CompletionUpdate& update : step.updates) {
      spoken.updates += update.text;
      spoken.last_reason = update.stop_reason;
    }
  };
  spoken.output = engine.generate({request}, see)[0].completions[0];
  spoken.num_steps = engine.metrics().num_steps;
  testing::expect_books_closed(engine.scheduler());
  return spoken;
}

SamplingParams stop_at(const std::vector<std::string>& stop) {
  SamplingParams sampling;
  sampling.stop = stop;
  return sampling;
}

TEST(Task6_1_EngineText, UpdatesAndOutputHoldTheSameText) {
  const std::string text = "Grüße aus Zürich: 東京 🙂👍 naïve – fin";
  for (const int depth : {1, 2, 3}) {
    const Spoken spoken = speak_through_engine(text, {}, 200, depth);
    EXPECT_EQ(spoken.output.text, text);
    EXPECT_EQ(spoken.updates, text);
    EXPECT_EQ(spoken.output.finish_reason, FinishReason::stop);
  }
}

// A stop string is unknown to the scheduler: the engine ends the sequence there, and nothing more is computed.
TEST(Task6_1_EngineText, AStopStringEndsTheSequenceInTheSchedulerToo) {
  const std::string text = "The home of Nora is Northfield.\nQuestion: Who else?";
  for (const int depth : {1, 2, 3}) {
    const Spoken spoken = speak_through_engine(text, stop_at({"\nQuest", "never"}), 200, depth);
    EXPECT_EQ(spoken.output.text, "The home of Nora is Northfield.");
    EXPECT_EQ(spoken.updates, *spoken.output.text);
    EXPECT_EQ(spoken.output.finish_reason, FinishReason::stop);
    EXPECT_EQ(spoken.output.stop_reason, StopReason(std::string("\nQuest")));
    EXPECT_EQ(spoken.num_steps, std::ssize(spoken.output.token_ids) + depth - 1)
        << "one step for each token, and those that were in flight";
  }
}

TEST(Task6_1_EngineText, TheReasonOfAStopIsNamed) {
  const int32_t end = *tokenizer()->token_to_id("<|im_end|>");
  const std::string text = "Nora lives in Northfield";
  const auto ids = tokenizer()->encode(text, false);
  const auto reason_with = [&](const SamplingParams& sampling) {
    const Spoken spoken = speak_through_engine(text, sampling);
    EXPECT_EQ(spoken.output.finish_reason, FinishReason::stop);
    EXPECT_EQ(spoken.last_reason, spoken.output.stop_reason) << "the last update says the same";
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

TEST(PrepareRequest, BadWordsAreWrittenAsAtTheBeginningOfATextAndAfterASpace) {
  const Scheduler scheduler(spoken_config());
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

}  // namespace
}  // namespace ladder
