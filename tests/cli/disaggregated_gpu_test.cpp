// Servers on GPUs that hand prompts to each other, and are killed.
#ifdef LADDER_HAS_SERVER
#include <gmock/gmock.h>

#include "step1_layers/core/device.h"
#include "step1_layers/core/error.h"
#include "tests/cli/running_server.h"

namespace ladder::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> on_gpu(int index, std::vector<std::string> more) {
  more.insert(more.end(), {fmt::format("--device=cuda:{}", index), "--dtype=f32", "--num-kv-blocks=512"});
  return more;
}

Json body(int number) {
  std::string prompt = "One day number " + std::to_string(number) + " went to the market.";
  for (int i = 0; i < 8; ++i) prompt += " On the way there was a long story to be told about it.";
  return {{"prompt", prompt}, {"max_tokens", 12 + number}, {"ignore_eos", true}, {"seed", number}};
}

std::string text_of(const std::string& answer) {
  const Json whole = Json::parse(body_of(answer), nullptr, false);
  return whole.is_object() && whole.contains("choices") ? whole["choices"][0]["text"].get<std::string>()
                                                        : answer;
}

class CliDisaggregateOnGpus : public ::testing::Test {
 protected:
  static constexpr int kRequests = 4;

  void SetUp() override {
    std::string reason;
    gpus_ = cuda_device_count(&reason);
    if (gpus_ == 0) GTEST_SKIP() << "a GPU is needed: " << reason;
    RunningServer one(RunningServer::Command{"serve"}, on_gpu(0, {}));
    ASSERT_TRUE(one.ready());
    for (int i = 0; i < kRequests; ++i) expected_.push_back(text_of(one.post(body(i))));
  }
  int gpus_ = 0;
  std::vector<std::string> expected_;
};

// Each has a GPU of its own, or both have the one that there is.
TEST_F(CliDisaggregateOnGpus, AnswersAreThoseOfOneServer) {
  RunningServer server(RunningServer::Command{"serve"},
                       on_gpu(0, {"--disaggregate=1P1D", "--no-prefix-caching", "--drain-timeout=5"}));
  ASSERT_TRUE(server.ready());
  EXPECT_THAT(server.err(), HasSubstr("other engines read keys and values at cuda://"));
  for (int i = 0; i < kRequests; ++i)
    EXPECT_EQ(text_of(server.post(body(i))), expected_[static_cast<size_t>(i)]) << i;
  EXPECT_EQ(server.metric("router_transfers_total"), kRequests);
  EXPECT_EQ(server.metric("router_fallbacks_total"), 0);

  std::set<std::string> devices;
  const std::vector<int> children = server.children("disaggregated-server");
  ASSERT_EQ(children.size(), 2u);
  for (const int child : children) {
    const std::string words = read_file(std::filesystem::path("/proc") / std::to_string(child) / "cmdline");
    const size_t at = words.find("--device=");
    devices.insert(words.substr(at, words.find('\0', at) - at));
  }
  EXPECT_EQ(devices.size(), gpus_ == 1 ? 1u : 2u);
  for (const int child : children) {
    ::kill(child, SIGKILL);
    EXPECT_TRUE(eventually([&] { return text_of(server.post(body(0))) == expected_[0]; }, kStartPatience))
        << server.err();
  }
  server.kill(SIGTERM);
  EXPECT_EQ(server.exit_code(), 0) << server.err();
}

// Of each server, or of the one for prompts, as many GPUs as there are: with four both have two.
TEST_F(CliDisaggregateOnGpus, RanksMayBeProcessesAndTheEndOfOneIsThatOfItsServer) {
  std::vector<std::string> flags = {"--disaggregate=1P1D", "--no-prefix-caching", "--drain-timeout=5",
                                    "--distributed-executor-backend=mp"};
  if (gpus_ >= 3)
    flags.emplace_back(gpus_ >= 4 ? "--tensor-parallel-size=2" : "--prefill-tensor-parallel-size=2");
  const int used = std::min(gpus_, 4);
  std::vector<int64_t> free_before;
  for (int i = 0; i < used; ++i) free_before.push_back(cuda_device_info(i).free_bytes);
  {
    RunningServer server(RunningServer::Command{"serve"}, on_gpu(0, flags));
    ASSERT_TRUE(server.ready());
    for (int i = 0; i < kRequests; ++i)
      EXPECT_EQ(text_of(server.post(body(i))), expected_[static_cast<size_t>(i)]) << i;
    EXPECT_EQ(server.metric("router_transfers_total"), kRequests);
    EXPECT_EQ(server.metric("router_fallbacks_total"), 0);
    const std::vector<int> engines = server.children("disaggregated-server");
    ASSERT_EQ(engines.size(), 2u);
    std::set<int> workers;
    for (const int engine : engines) workers.merge(children_of(engine));
    EXPECT_EQ(std::ssize(workers), std::max(used, 2));
    for (const int engine : engines) {
      const auto own = children_of(engine);
      ASSERT_FALSE(own.empty());
      ::kill(*own.rbegin(), SIGKILL);
      EXPECT_TRUE(eventually([&] { return ::kill(engine, 0) != 0; })) << server.err();
      EXPECT_TRUE(eventually([&] { return text_of(server.post(body(0))) == expected_[0]; }, kStartPatience))
          << server.err();
    }
    int number = kRequests;  // each time a prompt that the router does not think to be cached
    EXPECT_TRUE(eventually(
        [&] {
          const double before = server.metric("router_transfers_total");
          return status_of(server.post(body(number++))) == 200 &&
                 server.metric("router_transfers_total") > before;
        },
        kStartPatience))
        << "prompts are handed over again";
    server.kill(SIGTERM);
    EXPECT_EQ(server.exit_code(), 0) << server.err();
  }
  for (int i = 0; i < used; ++i)
    EXPECT_TRUE(
        eventually([&] { return cuda_device_info(i).free_bytes >= free_before[static_cast<size_t>(i)]; },
                   kStartPatience))
        << "GPU " << i;
}

TEST_F(CliDisaggregateOnGpus, WhoeverIsKilledTheOtherGoesOn) {
  const std::string listen = fmt::format("--kv-listen=cuda://cli-test-{}", ::getpid());
  const auto start = [&](bool producer) {
    return std::make_unique<RunningServer>(
        RunningServer::Command{"serve"},
        producer ? on_gpu(0, {"--kv-role=producer", "--kv-lease=2", listen, "--no-prefix-caching"})
                 : on_gpu(gpus_ > 1 ? 1 : 0, {"--kv-role=consumer", "--no-prefix-caching"}));
  };
  auto producer = start(true), consumer = start(false);
  ASSERT_TRUE(producer->ready() && consumer->ready());
  const auto kept = [&](int number) {
    Json prompt = body(number), answer = body(number);
    prompt["max_tokens"] = 1;
    prompt["kv_transfer_params"] = {{"do_remote_decode", true}};
    answer["kv_transfer_params"] = Json::parse(body_of(producer->post(prompt)))["kv_transfer_params"];
    return answer;
  };
  const auto expect_loads = [&](int loads, int failed) {
    EXPECT_EQ(consumer->metric("kv_transfer_loads_total"), loads);
    EXPECT_EQ(consumer->metric("kv_transfer_failed_loads_total"), failed);
  };
  for (int i = 0; i < kRequests; ++i)
    EXPECT_EQ(text_of(consumer->post(kept(i))), expected_[static_cast<size_t>(i)]) << i;
  expect_loads(kRequests, 0);

  const Json of_the_dead = kept(1);
  producer->kill(SIGKILL);
  EXPECT_TRUE(eventually([&] { return producer->exited(); }));
  EXPECT_EQ(text_of(consumer->post(of_the_dead)), expected_[1]) << "computed";
  expect_loads(kRequests + 1, 1);
  producer = start(true);  // at the same address
  ASSERT_TRUE(producer->ready());
  EXPECT_EQ(text_of(consumer->post(kept(2))), expected_[2]);
  expect_loads(kRequests + 2, 1);

  const Json of_nobody = kept(3);
  consumer->kill(SIGKILL);
  consumer = start(false);
  ASSERT_TRUE(consumer->ready());
  EXPECT_EQ(text_of(consumer->post(kept(0))), expected_[0]);
  expect_loads(1, 0);
  EXPECT_TRUE(eventually([&] { return producer->metric("num_held_kv_blocks") == 0; }, kStartPatience))
      << "what the dead one was to read";
}

}  // namespace
}  // namespace ladder::testing
#endif
