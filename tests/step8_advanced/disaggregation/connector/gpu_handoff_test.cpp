// Engines on GPUs that hand prompts to each other: on one GPU and between two, over cuda:// and over the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "step1_layers/attention/kv_codes.h"
#include "tests/step8_advanced/disaggregation/connector/handoff_requests.h"
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
using testing::same_bits;
using testing::with_prompts_at;

EngineOptions on_gpu(EngineOptions options, int index) {
  options.runner.device = {DeviceType::cuda, index};
  return options;
}
EngineOptions options_of(const GoldenCheckpoint& checkpoint) {
  EngineOptions options =
      testing::small_options(checkpoint.directory, DeviceType::cuda, checkpoint.max_model_len);
  options.enable_prefix_caching = false;  // so that every token has to go over
  return options;
}

// The consumer's GPU; the producer's is 0.
class GpuHandoff : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::string reason;
    const int gpus = cuda_device_count(&reason);
    if (gpus <= GetParam())
      GTEST_SKIP() << GetParam() + 1 << " GPUs are needed, there are " << gpus << " " << reason;
  }

  void expect_handed_over(const GoldenCheckpoint& checkpoint, EngineOptions from, EngineOptions to,
                          const std::string& address) {
    const std::vector<Request> requests = testing::greedy_requests(checkpoint);
    const auto expected = engine_with(options_of(checkpoint))->generate(requests);
    ConnectedEngine producer(on_gpu(std::move(from), 0), produces(address));
    ConnectedEngine consumer(on_gpu(std::move(to), GetParam()), consumes());
    const auto outputs = consumer.engine->generate(with_prompts_at(producer, requests));
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(same_bits(outputs[i], expected[i])) << checkpoint.name << ", prompt " << i;
    EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, num_tokens_to_load(requests));
    EXPECT_EQ(consumer.connector->stats().num_failed_loads, 0);
    EXPECT_EQ(producer.connector->stats().num_sent_bytes, consumer.connector->stats().num_loaded_bytes);
    producer.expect_all_given_back();
    consumer.expect_all_given_back();
  }
  void expect_handed_over(const GoldenCheckpoint& checkpoint, const std::string& address) {
    expect_handed_over(checkpoint, options_of(checkpoint), options_of(checkpoint), address);
  }
};

const Request& longest(const std::vector<Request>& requests) {
  return *std::ranges::max_element(requests, {},
                                   [](const Request& one) { return one.prompt_token_ids.size(); });
}

INSTANTIATE_TEST_SUITE_P(Task8_7, GpuHandoff, ::testing::Values(0, 1),
                         [](const auto& info) { return fmt::format("from_0_to_{}", info.param); });

TEST_P(GpuHandoff, GoldensAreWhatOneEngineAnswers) {
  for (const std::string& name : testing::golden_names(testing::golden_folder())) {
    const testing::TransportPlace place("cuda");
    expect_handed_over(testing::load_golden(testing::golden_folder() / name), place.address());
  }
}

TEST_P(GpuHandoff, GoesOverTheHostToo) {
  for (const char* transport : {"tcp", "shm", "file"}) {
    SCOPED_TRACE(transport);
    const testing::TransportPlace place(transport);
    expect_handed_over(testing::load_golden(testing::golden_folder() / "llama_linear"), place.address());
  }
}

TEST_P(GpuHandoff, GoesByNccl) {
  if (GetParam() == 0) GTEST_SKIP() << "two GPUs are needed: each is one rank";
  if (const std::string obstacle = testing::obstacle_of("nccl"); !obstacle.empty()) GTEST_SKIP() << obstacle;
  const testing::TransportPlace place("nccl");
  const auto checkpoint = testing::load_golden(testing::golden_folder() / "llama_linear");
  EngineOptions from = options_of(checkpoint);
  from.runner.batch.max_num_batched_tokens = 7;
  expect_handed_over(checkpoint, from, options_of(checkpoint), place.address());
}

// The step that stores a token has ended before it is told as computed: else a reader beside it would see the cache before it.
// In chunks, to blocks of another size, while asynchronous steps of other requests run.
TEST_P(GpuHandoff, ReadsNothingThatIsNotStoredYet) {
  const auto checkpoint = testing::load_golden(testing::golden_folder() / "llama_linear");
  EngineOptions from = options_of(checkpoint), to = from;
  from.runner.batch.max_num_batched_tokens = 7;
  to.runner.batch.block_size = 4;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const testing::TransportPlace place("cuda");
    expect_handed_over(checkpoint, from, to, place.address());
  }
}

TEST_P(GpuHandoff, GoesInCodes) {
  const auto checkpoint = testing::load_golden(testing::golden_folder() / "llama_linear");
  for (const KvCacheDType kept_as : {KvCacheDType::fp8, KvCacheDType::int8}) {
    EngineOptions options = options_of(checkpoint);
    options.runner.kv_cache_dtype = kept_as;
    const std::vector<Request> requests = testing::greedy_requests(checkpoint);
    const auto expected = engine_with(options)->generate(requests);
    const testing::TransportPlace place("cuda");
    ConnectedEngine producer(on_gpu(options, 0), produces(place.address()));
    ConnectedEngine consumer(on_gpu(options, GetParam()), consumes());
    const auto outputs = consumer.engine->generate(with_prompts_at(producer, requests));
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_EQ(outputs[i].completions.at(0).token_ids, expected[i].completions.at(0).token_ids)
          << kv_cache_dtype_name(kept_as) << ", prompt " << i;
    EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, num_tokens_to_load(requests));
  }
}

TEST_P(GpuHandoff, TakesOverOnlyWhatIsNotHereYet) {
  const auto checkpoint = testing::load_golden(testing::golden_folder() / "llama_linear");
  EngineOptions options = options_of(checkpoint);
  options.enable_prefix_caching = true;
  options.runner.batch.block_size = 4;
  Request request = longest(testing::greedy_requests(checkpoint));
  ASSERT_GE(request.prompt_token_ids.size(), 23u);
  request.prompt_token_ids.resize(23);
  request.sampling.max_tokens = 4;
  const auto expected = engine_with(options)->generate({request});
  const testing::TransportPlace place("cuda");
  ConnectedEngine producer(on_gpu(options, 0), produces(place.address()));
  ConnectedEngine consumer(on_gpu(options, GetParam()), consumes());
  for (const int64_t loaded : {22, 22 + 2}) {  // the second time the five whole blocks are known
    const auto outputs = consumer.engine->generate(with_prompts_at(producer, {request}));
    EXPECT_EQ(outputs[0].completions.at(0).token_ids, expected[0].completions.at(0).token_ids);
    EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, loaded);
  }
  producer.expect_all_given_back();
  consumer.expect_all_given_back();
}

// An abort while a prompt comes, a producer that is gone, a consumer that is: books are closed, and the GPUs are as before.
TEST_P(GpuHandoff, LeavesNothingWhateverHappens) {
  const auto checkpoint = testing::load_golden(testing::golden_folder() / "llama_linear");
  const EngineOptions options = options_of(checkpoint);
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const auto expected = engine_with(options)->generate(requests);
  KvTransferConfig config;
  const auto run = [&] {
    const testing::TransportPlace place("cuda");
    config = produces(place.address());
    config.lease = std::chrono::hours(1);  // what comes back does so because somebody has said so
    auto producer = std::make_unique<ConnectedEngine>(on_gpu(options, 0), config);
    auto consumer = std::make_unique<ConnectedEngine>(on_gpu(options, GetParam()), consumes());
    std::vector<Request> at = with_prompts_at(*producer, requests);
    Request forever = longest(requests);  // a load that does not end by itself: nobody computes that prompt
    forever.kv_transfer = testing::kept_as("never", producer->connector->address());
    const RequestId loading = consumer->engine->add_request(forever);
    consumer->engine->step();
    EXPECT_EQ(consumer->engine->scheduler().stats().num_waiting_for_kv, 1);
    consumer->engine->abort(loading);
    const auto outputs = consumer->engine->generate(at);
    for (size_t i = 0; i < outputs.size(); ++i) EXPECT_TRUE(same_bits(outputs[i], expected[i])) << i;
    consumer->expect_all_given_back();
    producer->expect_all_given_back();
    // The consumer goes, with prompts kept for it; another one comes.
    at = with_prompts_at(*producer, requests);
    consumer = std::make_unique<ConnectedEngine>(on_gpu(options, GetParam()), consumes());
    consumer->engine->generate({at[0]});
    EXPECT_EQ(consumer->connector->stats().num_failed_loads, 0);
    // The producer goes, and what it keeps; the consumer has it open.
    producer.reset();
    at.erase(at.begin());
    const auto computed = consumer->engine->generate(at);
    for (size_t i = 0; i < computed.size(); ++i) EXPECT_TRUE(same_bits(computed[i], expected[i + 1])) << i;
    EXPECT_EQ(consumer->connector->stats().num_failed_loads, std::ssize(at));
    consumer->expect_all_given_back();
  };
  const auto free_bytes = [](int index) { return cuda_device_info(index).free_bytes; };
  run();  // what the first one takes for good
  const int64_t before[] = {free_bytes(0), free_bytes(GetParam())};
  run();
  EXPECT_GE(free_bytes(0), before[0]);
  EXPECT_GE(free_bytes(GetParam()), before[1]);
}

}  // namespace
}  // namespace ladder
