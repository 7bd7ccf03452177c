// Tasks 6.1 to 6.3: days of an engine whose executor takes several steps, texts cut by stop strings that overlap, and the
// clock of requests, each against its definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "step6_engine/engine.h"
#include "step6_engine/metrics/metrics.h"
#include "step6_engine/text/completion_text.h"
#include "step6_engine/text/stop_strings.h"
#include "tests/step6_engine/cut_at_stop.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using namespace ladder::testing;

std::vector<int32_t> random_prompt(Random& random) {
  std::vector<int32_t> prompt(static_cast<size_t>(random.integer(1, 40)));
  for (int32_t& id : prompt) id = static_cast<int32_t>(random.integer(0, 2));
  return prompt;
}

// What a request was told so far.
struct Told {
  Request request;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<FinishReason> reasons;
  bool aborted = false;
};

TEST(Hidden6_1_Engine, EveryUpdateAndOutputIsThatOfTheRequestAlone) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int day = 0; day < 12 && !HasFailure(); ++day) {
    const int depth = static_cast<int>(random.integer(1, 4));
    int in_flight = 0, most = 0;
    SchedulerConfig config = fake_config();
    config.batch.num_kv_blocks = random.integer(20, 70);
    config.batch.max_num_batched_tokens = random.integer(8, 60);
    Engine engine = make_engine(depth, config, mixed, [&](std::string_view call, int64_t) {
      most = std::max(most, in_flight += call == "submit" ? 1 : -1);
    });
    std::map<RequestId, Told> told;
    int64_t added = 0, ended = 0, num_tokens = 0;
    while (added < 30 || engine.has_unfinished()) {
      if (added < 30 && random.integer(0, 2) == 0) {
        Request request = token_request(random_prompt(random), random.integer(1, 24));
        request.sampling.n = static_cast<int32_t>(random.integer(1, 3));
        const auto n = static_cast<size_t>(request.sampling.n);
        told[engine.add_request(request)] = {request, std::vector<std::vector<int32_t>>(n),
                                             std::vector<FinishReason>(n, FinishReason::none)};
        ++added;
      }
      if (!told.empty() && random.integer(0, 9) == 0) {
        auto& [id, one] = *std::next(told.begin(), random.integer(0, std::ssize(told) - 1));
        engine.abort(id);
        one.aborted = true;
      }
      const StepResult result = engine.step();
      for (const CompletionUpdate& update : result.updates) {
        Told& one = told.at(update.request_id);
        auto& tokens = one.tokens.at(static_cast<size_t>(update.completion));
        tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
        EXPECT_EQ(one.reasons[update.completion], FinishReason::none) << "something after the end";
        one.reasons[update.completion] = update.finish_reason;
      }
      for (const RequestOutput& output : result.finished) {
        const Told& one = told.at(output.request_id);
        const auto expected = expected_tokens(one.request.prompt_token_ids, *one.request.sampling.max_tokens);
        ASSERT_EQ(output.completions.size(), one.tokens.size());
        for (size_t i = 0; i < one.tokens.size(); ++i) {
          const CompletionOutput& completion = output.completions[i];
          EXPECT_EQ(completion.token_ids, one.tokens[i]) << "updates add up to the output";
          num_tokens += std::ssize(completion.token_ids);
          if (completion.finish_reason == FinishReason::length) {
            EXPECT_EQ(completion.token_ids, expected);
            EXPECT_EQ(one.reasons[i], FinishReason::length) << "the last update says why";
          } else {
            EXPECT_TRUE(one.aborted);
            EXPECT_EQ(completion.finish_reason, FinishReason::abort);
            EXPECT_TRUE(
                std::equal(completion.token_ids.begin(), completion.token_ids.end(), expected.begin()));
          }
        }
        told.erase(output.request_id);
        ++ended;
      }
    }
    EXPECT_EQ(ended, 30);
    EXPECT_TRUE(told.empty());
    EXPECT_EQ(most, depth) << "as many steps in flight as the executor takes";
    EXPECT_EQ(engine.metrics().num_output_tokens, num_tokens);
    expect_books_closed(engine.scheduler());
  }
}

// Completions after the first share its prompt; only what was there before counts as cached.
TEST(Hidden6_1_Engine, CachedTokensAreThoseOfTheFirstCompletion) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 20; ++round) {
    Engine engine = make_engine(static_cast<int>(random.integer(1, 3)));
    Request request = token_request(std::vector<int32_t>(static_cast<size_t>(random.integer(5, 40)), 7), 3);
    request.sampling.n = static_cast<int32_t>(random.integer(2, 5));
    const int64_t shared = (std::ssize(request.prompt_token_ids) - 1) / 4 * 4;
    EXPECT_EQ(engine.generate({request})[0].metrics.num_cached_tokens, 0);
    EXPECT_EQ(engine.generate({request})[0].metrics.num_cached_tokens, shared);
  }
}

std::shared_ptr<const Tokenizer> tokenizer() {
  static const auto shared =
      std::make_shared<const Tokenizer>(Tokenizer::load(source_folder() / "models" / "tinyworld"));
  return shared;
}

int32_t end_token() {
  return *tokenizer()->token_to_id("<|im_end|>");
}

std::string random_text(Random& random) {
  std::string text;
  for (int64_t i = random.integer(2, 14); i > 0; --i)
    text += random.one_of<std::string>({" one", " two", " on", "e t", "o", "w", " Nora", " lives"});
  return text;
}

// Pieces of the text, often such that begin alike, and some that do not occur.
std::vector<std::string> random_stops(Random& random, const std::string& text) {
  std::vector<std::string> stops;
  for (int64_t i = random.integer(0, 4); i > 0; --i)
    stops.push_back(text.substr(static_cast<size_t>(random.integer(0, std::ssize(text) - 1)),
                                static_cast<size_t>(random.integer(1, 7))) +
                    (random.integer(0, 2) ? "" : "x"));
  return stops;
}

TEST(Hidden6_1_Engine, AStopStringEndsTheSequence) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 40; ++round) {
    const std::string text = random_text(random);
    const auto script = tokenizer()->encode(text, false);
    SchedulerConfig config = fake_config();
    config.vocab_size = tokenizer()->vocab_size();
    config.eos_token_ids = {end_token()};
    Engine engine(std::make_unique<FakeExecutor>(
                      [script](const std::vector<int32_t>& ids, int64_t num_prompt) {
                        const auto at = ids.size() - static_cast<size_t>(num_prompt);
                        return at < script.size() ? script[at] : end_token();
                      },
                      static_cast<int>(random.integer(1, 3))),
                  config, tokenizer());
    Request request = token_request({1, 2}, 50);
    request.sampling.stop = random_stops(random, text);
    std::string updates;
    const auto output = engine
                            .generate({request},
                                      [&](const StepResult& step) {
                                        for (const CompletionUpdate& update : step.updates)
                                          updates += update.text;
                                      })[0]
                            .completions[0];
    const CutText expected = cut_at_stop(text, request.sampling.stop);
    EXPECT_EQ(output.text, expected.text);
    EXPECT_EQ(updates, expected.text);
    EXPECT_EQ(output.finish_reason, FinishReason::stop);
    EXPECT_EQ(std::holds_alternative<std::string>(output.stop_reason), expected.matched);
    if (!expected.matched) {
      EXPECT_EQ(std::ssize(output.token_ids), std::ssize(script) + 1);
    }
    expect_books_closed(engine.scheduler());
  }
}

// Three letters, up to six stop strings of up to twelve.
TEST(Hidden6_2_StopStrings, CutAsDefined) {
  Random random;
  SCOPED_TRACE(random.describe());
  const auto letters = [&](int64_t least, int64_t most) {
    std::string text;
    for (int64_t i = random.integer(least, most); i > 0; --i) text += "aab"[random.integer(0, 2)];
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(static_cast<size_t>(random.integer(1, 6)));
    for (std::string& stop : stops) stop = letters(1, 12);
    const std::string text = letters(0, 60);
    StopStrings stream(stops);
    std::string out;
    for (size_t at = 0; at < text.size() && !stream.matched();) {
      const auto length = static_cast<size_t>(random.integer(1, 9));
      out += stream.append(std::string_view(text).substr(at, length));
      at += length;
    }
    out += stream.finish();
    ASSERT_EQ((CutText{out, stream.matched()}), cut_at_stop(text, stops)) << "text " << text;
  }
}

TEST(Hidden6_2_CompletionText, TokensBecomeTextAsDefined) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 600; ++round) {
    const std::string text = random_text(random);
    const auto ids = tokenizer()->encode(text, false);
    SamplingParams sampling;
    sampling.stop = random_stops(random, text);
    sampling.min_tokens = random.integer(0, 1) ? random.integer(0, std::ssize(ids)) : 0;
    const bool stops_at_id = random.integer(0, 2) == 0;
    if (stops_at_id) sampling.stop_token_ids = {ids.back()};
    const FinishReason last = stops_at_id ? FinishReason::stop : FinishReason::length;

    // Stop strings count that end in the text of a token after min_tokens; the stop token has no text.
    const auto text_of = [&](int64_t count) {
      return tokenizer()->decode(std::span(ids).first(static_cast<size_t>(
                                     stops_at_id && count == std::ssize(ids) ? count - 1 : count)),
                                 true);
    };
    const CutText expected =
        cut_at_stop(text_of(std::ssize(ids)), sampling.stop, text_of(sampling.min_tokens).size());
    int64_t num_expected = std::ssize(ids);
    if (expected.matched)
      while (
          cut_at_stop(text_of(num_expected - 1), sampling.stop, text_of(sampling.min_tokens).size()).matched)
        --num_expected;

    CompletionText completion(tokenizer().get(), sampling);
    std::string out;
    int64_t num_tokens = 0;
    CompletionText::Appended appended;
    for (size_t at = 0; at < ids.size() && appended.finish_reason == FinishReason::none;) {
      const size_t size = std::min<size_t>(ids.size() - at, static_cast<size_t>(random.integer(1, 4)));
      appended = completion.append(std::span(ids).subspan(at, size),
                                   at + size == ids.size() ? last : FinishReason::none);
      out += appended.text;
      num_tokens += appended.num_tokens;
      at += size;
    }
    ASSERT_EQ(out, expected.text) << "text " << text << ", min_tokens " << sampling.min_tokens;
    ASSERT_EQ(appended.stop_string.has_value(), expected.matched) << text;
    ASSERT_EQ(num_tokens, num_expected) << text;
    ASSERT_EQ(appended.finish_reason, expected.matched ? FinishReason::stop : last);
  }
}

TEST(Hidden6_3_RequestTimer, CountsFromItsMoments) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 300; ++round) {
    double now = random.uniform(0, 1000);
    const double arrival = now;
    RequestTimer timer(arrival);
    double scheduled = -1, first = -1, last = -1;
    std::map<int64_t, double> last_of;
    std::vector<double> gaps;
    int64_t num_tokens = 0;
    for (int64_t events = random.integer(0, 30); events > 0; --events) {
      now += random.uniform(0, 2);
      if (scheduled < 0 || random.integer(0, 5) == 0) {
        timer.on_scheduled(now);
        if (scheduled < 0) scheduled = now;
        continue;
      }
      const int64_t completion = random.integer(0, 3), count = random.integer(0, 4);
      timer.on_tokens(completion, count, now);
      if (count == 0) continue;
      if (first < 0) first = now;
      last = now;
      num_tokens += count;
      if (const auto before = last_of.find(completion); before != last_of.end())
        gaps.insert(gaps.end(), static_cast<size_t>(count),
                    (now - before->second) / static_cast<double>(count));
      last_of[completion] = now;
    }
    RequestMetrics seen;
    timer.fill(seen);
    EXPECT_NEAR(seen.queue_seconds, scheduled < 0 ? 0 : scheduled - arrival, 1e-9);
    EXPECT_NEAR(seen.time_to_first_token, first < 0 ? 0 : first - arrival, 1e-9);
    EXPECT_NEAR(seen.end_to_end_seconds, last < 0 ? 0 : last - arrival, 1e-9);
    EXPECT_EQ(seen.num_output_tokens, num_tokens);
    const double sum = std::accumulate(gaps.begin(), gaps.end(), 0.0);
    EXPECT_NEAR(seen.inter_token_latency_mean, gaps.empty() ? 0 : sum / static_cast<double>(gaps.size()),
                1e-9);
    EXPECT_NEAR(seen.inter_token_latency_max, gaps.empty() ? 0 : *std::ranges::max_element(gaps), 1e-9);
  }
}

TEST(Hidden6_3_EngineMetrics, AddUp) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 50; ++round) {
    EngineMetrics metrics;
    const int64_t block_size = random.integer(1, 32);
    int64_t tokens = 0, running = 0, blocks = 0, cached = 0, prompts = 0;
    double shares = 0, used_steps = 0, seconds = 0;
    for (int64_t steps = random.integer(1, 40); steps > 0; --steps) {
      StepMetrics step;
      step.num_tokens = random.integer(0, 99);
      step.num_running = random.integer(0, 20);
      step.num_kv_blocks_used = random.integer(0, 3);
      step.num_kv_tokens = random.integer(0, step.num_kv_blocks_used * block_size);
      step.seconds = random.uniform(0, 1);
      metrics.add(step, block_size);
      tokens += step.num_tokens;
      running = std::max(running, step.num_running);
      blocks = std::max(blocks, step.num_kv_blocks_used);
      seconds += step.seconds;
      if (step.num_kv_blocks_used == 0) continue;
      shares +=
          static_cast<double>(step.num_kv_tokens) / static_cast<double>(step.num_kv_blocks_used * block_size);
      ++used_steps;
      RequestMetrics request;
      prompts += request.num_prompt_tokens = random.integer(1, 99);
      cached += request.num_cached_tokens = random.integer(0, request.num_prompt_tokens);
      metrics.add(request);
    }
    EXPECT_EQ(metrics.num_tokens, tokens);
    EXPECT_EQ(metrics.peak_running, running);
    EXPECT_EQ(metrics.peak_kv_blocks, blocks);
    EXPECT_NEAR(metrics.step_seconds, seconds, 1e-9);
    EXPECT_NEAR(metrics.kv_live_share(), used_steps == 0 ? 0 : shares / used_steps, 1e-9);
    EXPECT_NEAR(metrics.prefix_hit_rate(),
                prompts == 0 ? 0 : static_cast<double>(cached) / static_cast<double>(prompts), 1e-9);
  }
}

}  // namespace
}  // namespace ladder
