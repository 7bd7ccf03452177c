// Engines on GPUs whose ranks are processes hand prompts to each other: the engine's process sees the caches of all its ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "tests/step6_engine/process/children_of.h"
#include "tests/step7_parallel/workers/worker_program.h"
#include "tests/step8_advanced/disaggregation/connector/two_engines.h"
#include "tests/step8_advanced/disaggregation/transport/transport_places.h"

namespace ladder {
namespace {

using testing::ConnectedEngine;
using testing::consumes;
using testing::engine_with;
using testing::GoldenCheckpoint;
using testing::kKvTestPatience;
using testing::num_tokens_to_load;
using testing::produces;
using testing::with_prompts_at;

// Tensor ranks of both ends. The producer has the first GPUs, the consumer those behind; or both have the first.
struct Ends {
  int from = 1, to = 1;
  bool on_one_gpu = false;

  int num_gpus() const { return on_one_gpu ? 1 : from + to; }
  std::string name() const { return fmt::format("{}_to_{}{}", from, to, on_one_gpu ? "_on_one_gpu" : ""); }
};
void PrintTo(const Ends& ends, std::ostream* out) {
  *out << ends.name();
}

class GpuWorkersHandoff : public ::testing::TestWithParam<Ends> {
 protected:
  void SetUp() override {
    std::string reason;
    const int gpus = cuda_device_count(&reason);
    if (gpus < GetParam().num_gpus())
      GTEST_SKIP() << GetParam().num_gpus() << " GPUs are needed, there are " << gpus << " " << reason;
    checkpoint_ = testing::load_golden(testing::golden_folder() / "qwen3_sharded");
    requests_ = testing::greedy_requests(checkpoint_);
    expected_ = engine_with(options(0, 1))->generate(requests_);
  }

  EngineOptions options(int first_gpu, int ranks) const {
    EngineOptions options =
        testing::small_options(checkpoint_.directory, DeviceType::cuda, checkpoint_.max_model_len);
    options.enable_prefix_caching = false;  // so that every token has to go over
    options.runner.device.index = first_gpu;
    options.runner.tensor_parallel_size = ranks;
    return options;
  }
  std::unique_ptr<ConnectedEngine> producer(const std::string& address) const {
    EngineOptions mine = options(0, GetParam().from);
    mine.runner.batch.block_size = 4;
    KvTransferConfig config = produces(address);
    config.lease = std::chrono::hours(1);  // what comes back does so because somebody has said so
    return std::make_unique<ConnectedEngine>(testing::on_workers(mine), config);
  }
  std::unique_ptr<ConnectedEngine> consumer() const {
    return std::make_unique<ConnectedEngine>(
        testing::on_workers(options(GetParam().on_one_gpu ? 0 : GetParam().from, GetParam().to)), consumes());
  }
  void expect_answers(ConnectedEngine& consumer, const std::vector<Request>& at, const std::string& what) {
    const auto outputs = consumer.engine->generate(at);
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(testing::answers_as_one_rank(expected_[i], outputs[i], {4, 1, 1},
                                               fmt::format("{}, prompt {}", what, i)));
    consumer.expect_all_given_back();
  }
  std::vector<int64_t> free_bytes() const {
    std::vector<int64_t> bytes;
    for (int i = 0; i < GetParam().num_gpus(); ++i) bytes.push_back(cuda_device_info(i).free_bytes);
    return bytes;
  }
  // The driver takes back what a dead process had when it has seen that it is dead.
  void expect_free(const std::vector<int64_t>& before) const {
    const auto until = std::chrono::steady_clock::now() + kKvTestPatience;
    for (size_t i = 0; i < before.size(); ++i)
      while (cuda_device_info(static_cast<int>(i)).free_bytes < before[i])
        ASSERT_LT(std::chrono::steady_clock::now(), until)
            << "GPU " << i << ": " << before[i] - cuda_device_info(static_cast<int>(i)).free_bytes
            << " bytes are not free any more";
  }

  GoldenCheckpoint checkpoint_;
  std::vector<Request> requests_;
  std::vector<RequestOutput> expected_;
};

INSTANTIATE_TEST_SUITE_P(Task8_7, GpuWorkersHandoff,
                         ::testing::Values(Ends{1, 1, true}, Ends{1, 1}, Ends{1, 2}, Ends{2, 1}, Ends{2, 2},
                                           Ends{2, 4}, Ends{4, 2}, Ends{4, 4}),
                         [](const auto& info) { return info.param.name(); });

TEST_P(GpuWorkersHandoff, GoldensAreWhatOneEngineAnswers) {
  for (const char* transport : {"cuda", "tcp", "shm"}) {
    SCOPED_TRACE(transport);
    const testing::TransportPlace place(transport);
    const auto from = producer(place.address()), to = consumer();
    expect_answers(*to, with_prompts_at(*from, requests_), transport);
    EXPECT_EQ(to->connector->stats().num_loaded_tokens, num_tokens_to_load(requests_));
    EXPECT_EQ(to->connector->stats().num_failed_loads, 0);
    EXPECT_EQ(from->connector->stats().num_sent_bytes, to->connector->stats().num_loaded_bytes);
    from->expect_all_given_back();
  }
}

// A rank's process of the producer dies when its prompts are kept, and one of the consumer when it has blocks that are to be
// written: every request is answered by the one that is there, and the GPUs are as before.
TEST_P(GpuWorkersHandoff, WhoeverDiesLeavesNothing) {
  const auto run = [&] {
    const testing::TransportPlace place("cuda");
    const std::set<int> others = testing::children_of(::getpid());
    auto from = producer(place.address());
    std::set<int> of_producer = testing::children_of(::getpid());
    for (const int other : others) of_producer.erase(other);
    ASSERT_EQ(std::ssize(of_producer), GetParam().from);
    auto to = consumer();
    std::set<int> of_consumer = testing::children_of(::getpid());
    for (const std::set<int>& not_its : {others, of_producer})
      for (const int other : not_its) of_consumer.erase(other);
    ASSERT_EQ(std::ssize(of_consumer), GetParam().to);

    const std::vector<Request> at = with_prompts_at(*from, requests_);
    ::kill(*of_producer.rbegin(), SIGKILL);
    expect_answers(*to, at, "the producer's rank is dead");  // its keys are still seen, or are computed
    EXPECT_THROW(from->engine->generate({requests_[0]}), std::exception);
    from = nullptr;

    from = producer(place.address());
    // A load that does not end by itself: nobody computes that prompt. (One of a single token would not be loaded.)
    Request forever = *std::ranges::max_element(
        requests_, {}, [](const Request& request) { return request.prompt_token_ids.size(); });
    forever.kv_transfer = testing::kept_as("never", from->connector->address());
    to->engine->add_request(forever);
    to->engine->step();
    EXPECT_EQ(to->engine->scheduler().stats().num_waiting_for_kv, 1);
    ::kill(*of_consumer.begin(), SIGKILL);
    EXPECT_THROW(to->engine->generate({requests_[1]}), std::exception);
    to = nullptr;
    to = consumer();
    expect_answers(*to, with_prompts_at(*from, requests_), "another consumer");
    EXPECT_EQ(to->connector->stats().num_failed_loads, 0);
    from->expect_all_given_back();
  };
  run();  // what the first one takes for good
  const std::vector<int64_t> before = free_bytes();
  run();
  expect_free(before);
}

}  // namespace
}  // namespace ladder
