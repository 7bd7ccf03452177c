// What generate, score and demo share: all requests in, outputs in the order of the input.
#include "cli/run_requests.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <stdexcept>

#include "step1_layers/core/error.h"
#include "step6_engine/thread_engine_client.h"
#include "tests/step6_engine/fake_engine.h"

namespace ladder {
namespace {

using testing::expected_tokens;
using testing::FakeExecutor;
using testing::token_request;

std::unique_ptr<Engine> engine_with(FakeExecutor::Fault fault) {
  return std::make_unique<Engine>(std::make_unique<FakeExecutor>(testing::mixed, 1, std::move(fault)),
                                  testing::fake_config(), nullptr);
}

// The first takes longest, so the others have to wait for it.
std::vector<RequestLine> three_lines() {
  return {{"lines:1", token_request({1, 2, 3}, 40)},
          {"lines:2", token_request({4, 5}, 2, "same")},
          {"lines:3", token_request({6}, 9, "same")}};
}

TEST(Cli_RunRequests, OutputsComeInTheOrderOfTheInputEachAfterItsUpdates) {
  const std::vector<RequestLine> lines = three_lines();
  for (bool with_updates : {false, true}) {
    ThreadEngineClient client(engine_with({}));
    std::vector<std::vector<int32_t>> updates(lines.size());
    std::vector<int64_t> order;
    RunCallbacks callbacks;
    if (with_updates)
      callbacks.on_update = [&](int64_t index, const StreamUpdate& update) {
        auto& tokens = updates.at(static_cast<size_t>(index));
        for (const CompletionUpdate& completion : update.updates)
          tokens.insert(tokens.end(), completion.token_ids.begin(), completion.token_ids.end());
      };
    callbacks.on_output = [&](int64_t index, RequestOutput& output) {
      order.push_back(index);
      const Request& request = lines.at(static_cast<size_t>(index)).request;
      const auto expected = expected_tokens(request.prompt_token_ids, *request.sampling.max_tokens);
      EXPECT_EQ(output.completions.at(0).token_ids, expected);
      if (with_updates) {
        EXPECT_EQ(updates.at(static_cast<size_t>(index)), expected);
      }
    };
    run_requests(client, lines, callbacks);
    EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2}));
  }
}

// Counts the requests that come while the engine might step.
class WatchedClient final : public EngineClient {
 public:
  explicit WatchedClient(std::unique_ptr<Engine> engine) : inner_(std::move(engine)) {}
  RequestStream submit(const Request& request, std::function<void()> on_ready) override {
    num_submitted_while_running += inner_.stats().paused ? 0 : 1;
    return inner_.submit(request, std::move(on_ready));
  }
  void abort(const RequestId& id) override { inner_.abort(id); }
  EngineStats stats() const override { return inner_.stats(); }
  void pause() override { inner_.pause(); }
  void resume() override { inner_.resume(); }
  bool reset_prefix_cache() override { return inner_.reset_prefix_cache(); }
  void stop(std::chrono::milliseconds drain) override { inner_.stop(drain); }

  int num_submitted_while_running = 0;

 private:
  ThreadEngineClient inner_;
};

TEST(Cli_RunRequests, TheFirstStepSeesAllRequests) {
  WatchedClient client(engine_with({}));
  run_requests(client, three_lines(), {});
  EXPECT_EQ(client.num_submitted_while_running, 0);
  EXPECT_FALSE(client.stats().paused);
}

TEST(Cli_RunRequests, AWrongRequestIsNamedByItsLineAndNothingHasRun) {
  std::vector<RequestLine> lines = three_lines();
  lines[2].request.prompt_token_ids = std::vector<int32_t>(200, 1);  // longer than max_model_len
  std::atomic<int> num_calls = 0;
  try {
    ThreadEngineClient client(engine_with([&](std::string_view, int64_t) { ++num_calls; }));
    run_requests(client, lines, {});
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("lines:3: ")) << error.what();
  }
  EXPECT_EQ(num_calls, 0);
}

// The exit code and the line on standard error depend on the type.
TEST(Cli_RunRequests, ThrowsWhatTheEngineDiesOfAfterTheOutputsThatCameBefore) {
  const auto outputs_before = [](const auto& exception, std::vector<RequestLine> lines) {
    ThreadEngineClient client(engine_with([&](std::string_view call, int64_t step) {
      if (call == "submit" && step >= 5) throw exception;
    }));
    std::vector<int64_t> outputs;
    RunCallbacks callbacks;
    callbacks.on_output = [&](int64_t index, RequestOutput&) { outputs.push_back(index); };
    EXPECT_THROW(run_requests(client, lines, callbacks), std::decay_t<decltype(exception)>);
    return outputs;
  };
  std::vector<RequestLine> lines = three_lines();
  EXPECT_EQ(outputs_before(std::bad_alloc(), lines), std::vector<int64_t>{});
  EXPECT_EQ(outputs_before(std::out_of_range("a defect"), lines), std::vector<int64_t>{});
  std::swap(lines[0], lines[1]);
  EXPECT_EQ(outputs_before(Error("the executor failed"), lines), std::vector<int64_t>{0});
}

}  // namespace
}  // namespace ladder
