// An engine whose requests wait for another engine's keys, which come when the test says so.
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "step1_layers/core/error.h"
#include "step6_engine/kv_transfer_json.h"
#include "step6_engine/remote/engine_wire_forms.h"
#include "step6_engine/thread_engine_client.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace ladder::testing;

// All of a prompt can be had from outside, but for its last token.
class LateConnector final : public KvConnector {
 public:
  int64_t num_external_tokens(const Sequence& sequence, int64_t num_local) const override {
    return sequence.num_prompt_tokens - 1 - num_local;
  }
  void start_load(KvLoad load) override {
    std::lock_guard lock(mutex_);
    loads_.push_back({load.id, load.num_tokens, ""});
    started_.notify_all();
  }
  KvConnectorEvents poll() override {
    std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }
  void wait(std::chrono::milliseconds at_most) override {
    std::unique_lock lock(mutex_);
    ++num_waits_;
    came_.wait_for(lock, at_most, [this] { return !events_.loads.empty(); });
  }
  void on_event(std::function<void()> wake) override { wake_ = std::move(wake); }

  // When so many loads have begun, they end.
  void let_come(size_t count) {
    {
      std::unique_lock lock(mutex_);
      started_.wait(lock, [&] { return loads_.size() >= count; });
      events_.loads = std::exchange(loads_, {});
      if (is_lost)
        for (FinishedKvLoad& load : events_.loads) load = {load.id, 0, "the other engine is gone", true};
      came_.notify_all();
    }
    if (wake_) wake_();
  }
  bool is_lost = false;  // what comes from now on, with the requests that wanted it
  int64_t num_waits() {
    std::lock_guard lock(mutex_);
    return num_waits_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable started_, came_;
  std::vector<FinishedKvLoad> loads_;
  KvConnectorEvents events_;
  std::function<void()> wake_;
  int64_t num_waits_ = 0;
};

Request loaded_request(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request = token_request(std::move(prompt), max_tokens);
  request.kv_transfer.emplace().do_remote_prefill = true;
  return request;
}

std::unique_ptr<Engine> connected_engine(const std::shared_ptr<LateConnector>& connector) {
  return std::make_unique<Engine>(std::make_unique<FakeExecutor>(mixed, 1, FakeExecutor::Fault{}),
                                  fake_config(), nullptr, connector);
}

TEST(ExternalKvEngine, GenerateWaitsForKeysAndGoesOn) {
  const auto connector = std::make_shared<LateConnector>();
  const auto made = connected_engine(connector);
  Engine& engine = *made;
  const std::vector<int32_t> prompt{5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  std::thread other([&] { connector->let_come(2); });
  const auto outputs = engine.generate({loaded_request(prompt, 3), loaded_request({1, 2, 3}, 2)});
  other.join();
  EXPECT_EQ(outputs.at(0).completions.at(0).token_ids, expected_tokens(prompt, 3));
  EXPECT_EQ(outputs.at(0).metrics.num_cached_tokens, 9);
  EXPECT_EQ(outputs.at(1).completions.at(0).token_ids, expected_tokens({1, 2, 3}, 2));
  EXPECT_EQ(outputs.at(1).metrics.num_cached_tokens, 2);
  expect_books_closed(engine.scheduler());
}

TEST(ExternalKvEngine, OthersGoOnWhileOneWaits) {
  const auto connector = std::make_shared<LateConnector>();
  const auto made = connected_engine(connector);
  Engine& engine = *made;
  engine.add_request(loaded_request({1, 2, 3, 4, 5, 6}, 2));
  const auto outputs = engine.generate({token_request({7, 8, 9}, 4)});
  EXPECT_EQ(outputs.at(0).completions.at(0).token_ids, expected_tokens({7, 8, 9}, 4));
  EXPECT_TRUE(engine.has_unfinished());
  connector->let_come(1);
  int64_t finished = 0;
  while (engine.has_unfinished()) finished += std::ssize(engine.step().finished);
  EXPECT_EQ(finished, 1);
}

// With all its completions, those that were waiting for the first one too; what others are doing goes on.
TEST(ExternalKvEngine, AFailedLoadEndsItsRequestWithTheReason) {
  const auto connector = std::make_shared<LateConnector>();
  connector->is_lost = true;
  const auto made = connected_engine(connector);
  Engine& engine = *made;
  const RequestId other = engine.add_request(token_request({7, 8, 9}, 6));
  Request request = loaded_request({1, 2, 3, 4, 5, 6}, 2);
  request.sampling.n = 3;
  const RequestId lost = engine.add_request(request);
  engine.step();
  connector->let_come(1);
  std::map<RequestId, RequestOutput> outputs;
  while (engine.has_unfinished())
    for (RequestOutput& output : engine.step().finished) outputs[output.request_id] = std::move(output);
  ASSERT_EQ(outputs.size(), 2u);
  for (const CompletionOutput& completion : outputs.at(lost).completions) {
    EXPECT_EQ(completion.finish_reason, FinishReason::error);
    EXPECT_NE(completion.error.find("the other engine is gone"), std::string::npos) << completion.error;
  }
  EXPECT_EQ(outputs.at(other).completions.at(0).token_ids, expected_tokens({7, 8, 9}, 6));
  EXPECT_EQ(engine.metrics().num_requests_failed, 1);
  EXPECT_FALSE(engine.dead());
  expect_books_closed(engine.scheduler());
}

TEST(ExternalKvEngine, AFailedLoadIsToldAnEngineAtRest) {
  const auto connector = std::make_shared<LateConnector>();
  connector->is_lost = true;
  ThreadEngineClient client(connected_engine(connector));
  RequestStream stream = client.submit(loaded_request({5, 6, 7, 8}, 3));
  connector->let_come(1);
  EXPECT_EQ(stream.output().completions.at(0).finish_reason, FinishReason::error);
}

TEST(ExternalKvEngine, TheLoopOfAClientSleepsUntilKeysHaveCome) {
  const auto connector = std::make_shared<LateConnector>();
  ThreadEngineClient client(connected_engine(connector));
  const std::vector<int32_t> prompt{5, 6, 7, 8, 9, 10, 11};
  RequestStream stream = client.submit(loaded_request(prompt, 3));
  EXPECT_FALSE(stream.next(std::chrono::milliseconds(100)).has_value());
  EXPECT_LE(connector->num_waits(), 3) << "it steps, and there is nothing to compute";
  connector->let_come(1);
  EXPECT_EQ(stream.output().completions.at(0).token_ids, expected_tokens(prompt, 3));
}

// Keeps what ends with an answer, for a reader that never comes.
struct KeepingConnector final : KvConnector {
  std::optional<KvTransferParams> hold(const Sequence& sequence) override {
    ends.push_back(sequence.finish_reason);
    if (sequence.finish_reason == FinishReason::abort) return std::nullopt;
    return KvTransferParams{};
  }
  std::vector<FinishReason> ends;
};

// The client leaves in the last step of its prompt: nobody would ever tell the engine that the blocks are not wanted.
TEST(ExternalKvEngine, NothingIsKeptForWhoLeavesWhileTheLastStepIsComputed) {
  const auto connector = std::make_shared<KeepingConnector>();
  std::promise<void> computing, left;
  const auto fault = [&](std::string_view call, int64_t step) {
    if (call != "collect" || step != 0) return;
    computing.set_value();
    left.get_future().wait();
  };
  auto engine = std::make_unique<Engine>(std::make_unique<FakeExecutor>(mixed, 1, fault), fake_config(),
                                         nullptr, connector);
  const Engine& watched = *engine;
  ThreadEngineClient client(std::move(engine));
  Request request = token_request({5, 6, 7, 8, 9}, 1, "first");
  request.kv_transfer.emplace().do_remote_decode = true;
  RequestStream stream = client.submit(request);
  computing.get_future().wait();
  client.abort("first");
  left.set_value();
  EXPECT_EQ(stream.output().completions.at(0).finish_reason, FinishReason::abort);
  RequestStream next = client.submit(token_request({5, 6, 7}, 2, "first"));
  EXPECT_EQ(next.output().completions.at(0).token_ids, expected_tokens({5, 6, 7}, 2)) << "it has the same id";
  client.stop();
  EXPECT_EQ(connector->ends, std::vector{FinishReason::abort});
  expect_books_closed(watched.scheduler());
}

TEST(ExternalKvEngine, WithoutAConnectorItIsRefused) {
  Engine engine = make_engine();
  try {
    engine.add_request(loaded_request({1, 2, 3}, 2));
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("kv_transfer_params"), std::string::npos) << error.what();
  }
}

TEST(KvTransferJson, ComesBack) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < 50; ++i) {
    const auto word = [&] { return std::to_string(random.integer(0, 1'000'000)) + "\"\\\n"; };
    const bool decode = random.integer(0, 1) == 1;
    const KvTransferParams params{decode,
                                  !decode || random.integer(0, 1) == 1,
                                  word(),
                                  word(),
                                  "tcp://" + word(),
                                  random.integer(0, 1'000'000)};
    EXPECT_EQ(parse_kv_transfer(Json::parse(kv_transfer_text(params)), "x"), params);
  }
  const Json mostly_null{
      {"do_remote_decode", true}, {"remote_engine_id", nullptr}, {"remote_num_tokens", nullptr}};
  KvTransferParams expected;
  expected.do_remote_decode = true;
  EXPECT_EQ(parse_kv_transfer(mostly_null, "x"), expected);
}

// To an engine in a process of its own.
TEST(KvTransferWireForm, ComesBackWholeOrNotAtAll) {
  Request request = loaded_request({1, 2, 3}, 2);
  *request.kv_transfer = {true, true, "engine", "request", "tcp://127.0.0.1:7", 41};
  RequestOutput output;
  output.kv_transfer = request.kv_transfer;
  EXPECT_EQ(from_bytes<RequestOutput>(to_bytes(output)).kv_transfer, request.kv_transfer);
  const std::string bytes = to_bytes(request);
  EXPECT_EQ(from_bytes<Request>(bytes).kv_transfer, request.kv_transfer);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(from_bytes<Request>(bytes.substr(0, size)), Error) << size;
  EXPECT_THROW(from_bytes<Request>(bytes + '\0'), Error);
  for (size_t at = 0; at < bytes.size(); ++at) {  // lengths that lie are never believed
    std::string wrong = bytes;
    wrong[at] = '\xff';
    try {
      from_bytes<Request>(wrong);
    } catch (const Error&) {
    }
  }
}

TEST(KvTransferJson, MistakesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "x: expected an object"},
      {"{}", "x: expected do_remote_decode or do_remote_prefill"},
      {R"({"do_remote_decode": false})", "x: expected do_remote_decode or do_remote_prefill"},
      {R"({"do_remote_decode": 1})", "x.do_remote_decode"},
      {R"({"do_remote_prefill": true, "remote_address": 5})", "x.remote_address"},
      {R"({"do_remote_prefill": true, "remote_num_tokens": -1})", "x.remote_num_tokens"},
      {R"({"do_remote_prefill": true, "remote_num_tokens": 1.5})", "x.remote_num_tokens"},
      {R"({"do_remote_prefill": true, "remote_port": 5})", "remote_port"}};
  for (const auto& [text, said] : cases) {
    try {
      parse_kv_transfer(Json::parse(text), "x");
      ADD_FAILURE() << text << " was taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << text << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace ladder
