// Prompts computed by one engine and gone on with by another: the answers are those of one engine, and keys and values really
// went over.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <thread>

#include "step7_parallel/hosts/tcp_socket.h"
#include "tests/step6_engine/process/open_files.h"
#include "tests/step7_parallel/workers/worker_program.h"
#include "tests/step8_advanced/disaggregation/connector/handoff_requests.h"
#include "tests/step8_advanced/disaggregation/connector/two_engines.h"
#include "tests/step8_advanced/disaggregation/transport/transport_places.h"
#include "tests/support/memory_files.h"

namespace ladder {
namespace {

using testing::ConnectedEngine;
using testing::consumes;
using testing::engine_with;
using testing::expect_same;
using testing::GoldenCheckpoint;
using testing::Grid;
using testing::num_tokens_to_load;
using testing::produces;
using testing::random_requests;
using testing::same_bits;
using testing::tiny_options;
using testing::with_prompts_at;
using testing::with_ranks;

EngineOptions options_of(const GoldenCheckpoint& checkpoint) {
  EngineOptions options =
      testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len);
  options.enable_prefix_caching = false;  // so that every token has to go over
  return options;
}

// How much shorter it was on the way.
KvBodyCounts expect_handed_over(const GoldenCheckpoint& checkpoint, const KvTransferConfig& config) {
  const EngineOptions options = options_of(checkpoint);
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const auto expected = engine_with(options)->generate(requests);
  ConnectedEngine producer(options, config), consumer(options, consumes());
  const auto outputs = consumer.engine->generate(with_prompts_at(producer, requests));
  for (size_t i = 0; i < outputs.size(); ++i)
    EXPECT_TRUE(same_bits(outputs[i], expected[i])) << checkpoint.name << ", prompt " << i;
  EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, num_tokens_to_load(requests));
  EXPECT_EQ(consumer.engine->scheduler().stats().num_external_tokens, num_tokens_to_load(requests));
  EXPECT_EQ(consumer.connector->stats().num_failed_loads, 0);
  EXPECT_GT(producer.connector->stats().num_sent_bytes, 0);
  EXPECT_EQ(producer.connector->stats().num_sent_bytes, consumer.connector->stats().num_loaded_bytes);
  producer.expect_all_given_back();
  consumer.expect_all_given_back();
  EXPECT_EQ(producer.connector->stats().num_lapsed, 0);
  const KvBodyCounts counts = producer.connector->compression();
  const KvTransferStats stats = producer.connector->stats();  // what /metrics shows
  EXPECT_EQ(stats.num_uncompressed_bytes, counts.num_bytes);
  EXPECT_EQ(stats.num_compressed_bytes, counts.num_packed_bytes);
  EXPECT_EQ(stats.compress_seconds, counts.pack_seconds);
  return counts;
}

class KvHandoffGoldens : public ::testing::TestWithParam<std::string> {};

TEST_P(KvHandoffGoldens, AreWhatOneEngineAnswers) {
  expect_handed_over(testing::load_golden(testing::golden_folder() / GetParam()), produces());
}

INSTANTIATE_TEST_SUITE_P(Goldens, KvHandoffGoldens,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder())),
                         [](const auto& info) { return info.param; });

TEST(KvHandoff, GoesOverEveryTransport) {
  for (const KvTransport& transport : kv_transports()) {
    if (!testing::obstacle_of(transport.name).empty()) continue;
    SCOPED_TRACE(transport.name);
    const testing::TransportPlace place(transport.name);
    expect_handed_over(testing::load_golden(testing::golden_folder() / "llama_linear"),
                       produces(place.address()));
  }
}

TEST(KvHandoff, MayBeShortOnTheWay) {
  const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / "llama_linear");
  KvTransferConfig config = produces("tcp://0?streams=2");
  config.compress = true;
  const KvBodyCounts counts = expect_handed_over(checkpoint, config);
  EXPECT_GT(counts.num_bytes, 0);
  EXPECT_LT(counts.num_packed_bytes, counts.num_bytes);
}

TEST(KvHandoff, GoesFromAnyGridToAnyOther) {
  const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / "qwen3_sharded");
  const DecoderSpec spec = load_decoder_spec(checkpoint.directory);
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  EngineOptions options = options_of(checkpoint);
  const auto expected = engine_with(options)->generate(requests);
  for (const Grid from : {Grid{1, 1}, Grid{2, 1}, Grid{4, 1}, Grid{2, 2}})
    for (const Grid to : {Grid{1, 1}, Grid{2, 1}, Grid{4, 1}, Grid{1, 2}}) {
      const std::string what =
          fmt::format("TP {} x {} stages to TP {} x {} stages", from.tp, from.pp, to.tp, to.pp);
      SCOPED_TRACE(what);
      options.runner.batch.block_size = from.tp == to.tp ? 16 : 4;
      options.runner.batch.max_num_batched_tokens = from.pp == 2 ? 7 : 64;  // in chunks
      ConnectedEngine producer(with_ranks(options, from), produces());
      options.runner.batch.block_size = from.tp < to.tp ? 16 : 4;
      options.runner.batch.max_num_batched_tokens = 64;
      ConnectedEngine consumer(with_ranks(options, to), consumes());
      const auto outputs = consumer.engine->generate(with_prompts_at(producer, requests));
      const Grid largest{std::max(from.tp, to.tp), 1, 1};
      for (size_t i = 0; i < outputs.size(); ++i)
        EXPECT_TRUE(testing::answers_as_one_rank(expected[i], outputs[i], largest,
                                                 fmt::format("{}, prompt {}", what, i)));
      EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, num_tokens_to_load(requests));
      producer.expect_all_given_back();
      consumer.expect_all_given_back();
    }
}

// Engines whose ranks are processes of their own, and one of threads, each of which gives to all others. The memory is seen
// here, and goes with them.
TEST(KvHandoff, GoesFromAndToWorkerProcesses) {
  const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / "qwen3_sharded");
  std::vector<Request> requests = testing::greedy_requests(checkpoint);
  for (Request& request : requests) request.sampling.max_tokens = 3;
  EngineOptions options = options_of(checkpoint);
  const auto expected = engine_with(options)->generate(requests);
  KvTransferConfig config = produces();
  config.role = KvTransferRole::both;
  const int files = testing::num_open_files();
  const auto memory = testing::files_of_memory();
  {
    std::map<std::string, ConnectedEngine> engines;
    const auto add = [&](Grid grid, const char* ranks) {
      options.runner.batch.block_size = grid.tp == 2 ? 4 : 16;
      options.runner.batch.max_num_batched_tokens = grid.pp == 2 ? 7 : 64;  // in chunks
      const EngineOptions mine = with_ranks(options, grid);
      engines.try_emplace(fmt::format("TP {} x {} stages, {}", grid.tp, grid.pp, ranks),
                          ranks == std::string("processes") ? testing::on_workers(mine) : mine, config);
    };
    for (const Grid grid : {Grid{1, 1}, Grid{2, 1}, Grid{4, 1}, Grid{1, 2}}) add(grid, "processes");
    add({2, 1}, "threads");
    for (auto& [from_name, from] : engines)
      for (auto& [to_name, to] : engines) {
        if (&from == &to) continue;
        const std::string what = from_name + " to " + to_name;
        SCOPED_TRACE(what);
        const int64_t loaded = to.connector->stats().num_loaded_tokens;
        const auto outputs = to.engine->generate(with_prompts_at(from, requests));
        for (size_t i = 0; i < outputs.size(); ++i)
          EXPECT_TRUE(testing::answers_as_one_rank(expected[i], outputs[i], {4, 1, 1},
                                                   fmt::format("{}, prompt {}", what, i)));
        EXPECT_EQ(to.connector->stats().num_loaded_tokens - loaded, num_tokens_to_load(requests));
        from.expect_all_given_back();
        to.expect_all_given_back();
      }
  }
  EXPECT_EQ(testing::num_open_files(), files);
  EXPECT_EQ(testing::files_of_memory(), memory);
}

TEST(KvHandoff, GivesRequestsWhatTheyAskFor) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const std::vector<Request> requests = random_requests(random, 16);
  const auto expected = engine_with(tiny_options())->generate(requests);
  ConnectedEngine producer(tiny_options(), produces()), consumer(tiny_options(), consumes());
  expect_same(consumer.engine->generate(with_prompts_at(producer, requests)), expected);
  EXPECT_EQ(consumer.connector->stats().num_loads, std::ssize(requests));  // n of them load once
  EXPECT_EQ(consumer.connector->stats().num_failed_loads, 0);
  producer.expect_all_given_back();
  consumer.expect_all_given_back();
}

TEST(KvHandoff, GoesFromAndToWorkerProcessesInCodes) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const std::vector<Request> requests = random_requests(random, 4);
  EngineOptions options = tiny_options();
  options.runner.kv_cache_dtype = KvCacheDType::int8;
  const auto expected = engine_with(options)->generate(requests);
  ConnectedEngine producer(testing::on_workers(options), produces());
  ConnectedEngine consumer(testing::on_workers(options), consumes());
  expect_same(consumer.engine->generate(with_prompts_at(producer, requests)), expected);
  EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, num_tokens_to_load(requests));
  EXPECT_EQ(consumer.connector->bytes_per_block(), producer.connector->bytes_per_block());
}

TEST(KvHandoff, TakesOverOnlyWhatIsNotHereYet) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Request> requests = random_requests(random, 1);
  requests[0].sampling.n = 1;
  requests[0].prompt_token_ids.resize(23, 500);
  const auto expected = engine_with(tiny_options())->generate(requests);
  ConnectedEngine producer(tiny_options(), produces()), consumer(tiny_options(), consumes());
  expect_same(consumer.engine->generate(with_prompts_at(producer, requests)), expected);
  EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, 22);
  // Both know the five whole blocks by now.
  expect_same(consumer.engine->generate(with_prompts_at(producer, requests)), expected);
  EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, 22 + 2);
  // With a last block of one token nothing is missing but that one, which is computed; the producer is told all the same.
  requests[0].prompt_token_ids.resize(21);
  const auto shorter = engine_with(tiny_options())->generate(requests);
  expect_same(consumer.engine->generate(with_prompts_at(producer, requests)), shorter);
  EXPECT_EQ(consumer.connector->stats().num_loads, 2);
  producer.expect_all_given_back();
  consumer.expect_all_given_back();
  EXPECT_EQ(producer.connector->stats().num_lapsed, 0);
}

TEST(KvHandoff, ComputesWhatIsTooLittleToLoad) {
  testing::Random random;
  const std::vector<Request> requests = random_requests(random, 8);
  int64_t expected_tokens = 0;
  for (const Request& request : requests)
    if (std::ssize(request.prompt_token_ids) > 20)
      expected_tokens += std::ssize(request.prompt_token_ids) - 1;
  EngineOptions options = tiny_options();
  options.enable_prefix_caching = false;
  const auto expected = engine_with(options)->generate(requests);
  KvTransferConfig config = consumes();
  config.recompute_threshold = 20;
  ConnectedEngine producer(options, produces()), consumer(options, config);
  expect_same(consumer.engine->generate(with_prompts_at(producer, requests)), expected);
  EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, expected_tokens);
  producer.expect_all_given_back();
}

TEST(KvHandoff, WorksInSmallPools) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Request> requests = random_requests(random, 8);
  for (Request& request : requests) {
    request.sampling.max_tokens = 30;
    request.sampling.stop.clear();
  }
  EngineOptions options = tiny_options();
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = 33;
  const auto expected = engine_with(options)->generate(requests);
  EngineOptions large = tiny_options();
  ConnectedEngine producer(large, produces()), consumer(options, consumes());
  expect_same(consumer.engine->generate(with_prompts_at(producer, requests)), expected);
  EXPECT_GT(consumer.connector->stats().num_loaded_tokens, 0);
  EXPECT_GT(consumer.engine->scheduler().stats().num_preemptions, 0);
  producer.expect_all_given_back();
  consumer.expect_all_given_back();
}

// The router may tell both engines at once: the one reads what the other is still computing.
TEST(KvHandoff, ReadsAPromptChunkByChunk) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Request> requests = random_requests(random, 6);
  EngineOptions options = tiny_options();
  options.runner.batch.num_kv_blocks = 34;  // the producer has not room for all at once
  options.runner.kv_memory = 0;
  const auto expected = engine_with(tiny_options())->generate(requests);
  options.runner.batch.max_num_batched_tokens = 16;
  ConnectedEngine producer(options, produces()), consumer(tiny_options(), consumes());
  std::vector<Request> prompts;
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& prompt = prompts.emplace_back(testing::prompt_alone(requests[i]));
    prompt.kv_transfer->remote_request_id = fmt::format("both-{}", i);
    requests[i].kv_transfer =
        testing::kept_as(prompt.kv_transfer->remote_request_id, producer.connector->address());
  }
  std::thread computing([&] { producer.engine->generate(prompts); });
  const auto outputs = consumer.engine->generate(requests);
  computing.join();
  expect_same(outputs, expected);
  EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, num_tokens_to_load(requests));
  producer.expect_all_given_back();
  consumer.expect_all_given_back();
}

// Four engines with room for one prompt each, told in orders that do not agree: what a decode engine has room for waits for blocks that
// a prefill engine keeps for the other decode engine, which has room for what waits in the other prefill engine. One
// of the prompts, or two of them, must be computed where they are wanted before the others can go over.
TEST(KvHandoff, PairsThatKeepRoomForEachOthersPromptsDoNotStandStill) {
  testing::Random random;
  std::vector<Request> requests = random_requests(random, 4);
  for (Request& request : requests) {
    request.prompt_token_ids.resize(40, 700);
    request.sampling.max_tokens = 4;
    request.sampling.n = 1;
    request.sampling.stop.clear();
  }
  const auto expected = engine_with(tiny_options())->generate(requests);
  EngineOptions options = tiny_options();
  options.enable_prefix_caching = false;
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = 12;
  options.runner.batch.max_model_len = 48;
  KvTransferConfig gives = produces(), takes = consumes();
  gives.start_patience = std::chrono::milliseconds(100);
  gives.lease = gives.load_timeout = takes.load_timeout = std::chrono::hours(1);
  ConnectedEngine prefill[2] = {{options, gives}, {options, gives}},
                  decode[2] = {{options, takes}, {options, takes}};
  // Of each decode engine the first prompt is its prefill engine's second one.
  struct Told {
    size_t request;
    int prefill, decode;
  };
  constexpr Told kOrderOfDecodes[] = {{0, 1, 0}, {1, 0, 1}, {2, 0, 0}, {3, 1, 1}};
  constexpr Told kOrderOfPrefills[] = {{2, 0, 0}, {3, 1, 1}, {0, 1, 0}, {1, 0, 1}};
  std::map<RequestId, size_t> asked[2];
  for (const Told& told : kOrderOfDecodes) {
    Request request = requests[told.request];
    request.kv_transfer =
        testing::kept_as(fmt::format("both-{}", told.request), prefill[told.prefill].connector->address());
    asked[told.decode][decode[told.decode].engine->add_request(request)] = told.request;
    decode[told.decode].engine->step();
  }
  for (ConnectedEngine& engine : decode) EXPECT_EQ(engine.engine->scheduler().stats().num_waiting_for_kv, 1);
  for (const Told& told : kOrderOfPrefills) {
    Request prompt = testing::prompt_alone(requests[told.request]);
    prompt.kv_transfer->remote_request_id = fmt::format("both-{}", told.request);
    prefill[told.prefill].engine->add_request(prompt);
  }
  std::vector<RequestOutput> outputs(4);
  size_t num_answered = 0;
  const auto deadline = std::chrono::steady_clock::now() + testing::kKvTestPatience;
  while (num_answered < 4) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << num_answered << " are answered";
    for (ConnectedEngine& engine : prefill) engine.engine->step();
    for (int i = 0; i < 2; ++i)
      for (RequestOutput& output : decode[i].engine->step().finished) {
        outputs[asked[i].at(output.request_id)] = std::move(output);
        ++num_answered;
      }
  }
  expect_same(outputs, expected);
  int64_t num_failed = 0;
  for (ConnectedEngine& engine : decode) {
    EXPECT_EQ(engine.connector->stats().num_loads, 2);
    num_failed += engine.connector->stats().num_failed_loads;
    engine.expect_all_given_back();
  }
  EXPECT_GE(num_failed, 1);
  EXPECT_LE(num_failed, 2);
  for (ConnectedEngine& engine : prefill) {
    while (engine.engine->has_unfinished()) engine.engine->step();
    engine.expect_all_given_back();
  }
}

// Nothing of it goes over, so that the reader is done before the prompt is here.
TEST(KvHandoff, APromptOfOneTokenThatIsToldToBothIsNotKept) {
  Request request;
  request.prompt_token_ids = {300};
  request.sampling.temperature = 0;
  request.sampling.logprobs = 3;  // compared
  request.sampling.max_tokens = 2;
  request.sampling.ignore_eos = true;
  const auto expected = engine_with(tiny_options())->generate({request});
  KvTransferConfig config = produces();
  config.lease = std::chrono::hours(1);
  ConnectedEngine producer(tiny_options(), config), consumer(tiny_options(), consumes());
  for (int i = 0; i < 8; ++i) {
    Request prompt = testing::prompt_alone(request), answer = request;
    prompt.kv_transfer->remote_request_id = fmt::format("both-{}", i);
    answer.kv_transfer =
        testing::kept_as(prompt.kv_transfer->remote_request_id, producer.connector->address());
    expect_same(consumer.engine->generate({answer}), expected);
    producer.engine->generate({prompt});
  }
  producer.expect_all_given_back();
  EXPECT_EQ(consumer.connector->stats().num_loads, 0);
}

// A producer that was started again at the same place may have something under the same id: that is another reader's.
TEST(KvHandoff, NothingIsGivenUpAtAnEngineThatWasStartedAgain) {
  testing::Random random;
  std::vector<Request> requests = random_requests(random, 2);
  KvTransferConfig config = consumes();
  config.num_loaders = 1;  // what the two have to say is said in order
  ConnectedEngine producer(tiny_options(), produces()), consumer(tiny_options(), config);
  std::vector<int64_t> held;
  for (Request& request : requests) {
    request = with_prompts_at(producer, {request})[0];
    request.sampling.prompt_logprobs = 1;  // computed here: nothing is to be had
    held.push_back(producer.engine->scheduler().stats().num_held_blocks);
  }
  requests[0].kv_transfer->remote_engine_id = "the one before";
  consumer.engine->generate(requests);
  const auto deadline = std::chrono::steady_clock::now() + testing::kKvTestPatience;
  while (producer.engine->scheduler().stats().num_held_blocks == held[1]) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the second one is not given up";
    producer.connector->wait(std::chrono::milliseconds(20));
    producer.engine->take_kv_events();
  }
  EXPECT_EQ(producer.engine->scheduler().stats().num_held_blocks, held[0]);
}

// What goes wrong over there costs time here, and nothing else.
class KvHandoffFailures : public ::testing::Test {
 protected:
  KvHandoffFailures() {
    testing::Random random;
    requests = random_requests(random, 3);
    expected = engine_with(tiny_options())->generate(requests);
  }

  void expect_computed_here(ConnectedEngine& consumer, const std::vector<Request>& at) {
    expect_same(consumer.engine->generate(at), expected);
    EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, 0);
    EXPECT_EQ(consumer.connector->stats().num_failed_loads, std::ssize(requests));
    EXPECT_EQ(consumer.connector->stats().num_missed_tokens, num_tokens_to_load(requests));
    consumer.expect_all_given_back();
  }

  std::vector<Request> requests;
  std::vector<RequestOutput> expected;
};

TEST_F(KvHandoffFailures, ALeaseThatIsOver) {
  KvTransferConfig config = produces();
  config.lease = std::chrono::milliseconds(20);
  ConnectedEngine producer(tiny_options(), config), consumer(tiny_options(), consumes());
  const std::vector<Request> at = with_prompts_at(producer, requests);
  producer.expect_all_given_back();
  EXPECT_EQ(producer.connector->stats().num_lapsed, std::ssize(requests));
  // Its blocks are others' by now.
  testing::Random random;
  producer.engine->generate(random_requests(random, 8));
  expect_computed_here(consumer, at);
}

TEST_F(KvHandoffFailures, AProducerThatIsGoneOrAnotherOne) {
  ConnectedEngine consumer(tiny_options(), consumes());
  auto producer = std::make_unique<ConnectedEngine>(tiny_options(), produces());
  std::vector<Request> at = with_prompts_at(*producer, requests);
  producer.reset();
  KvTransferConfig config = produces(at[0].kv_transfer->remote_address);
  ConnectedEngine next(tiny_options(), config);  // on the same port
  expect_computed_here(consumer, at);
}

// Who has named its address was there: that nobody listens there any more is known at once. One that says nothing may be slow.
TEST_F(KvHandoffFailures, AProducerThatIsGoneIsNotWaitedForAndASilentOneIs) {
  KvTransferConfig config = consumes();
  config.connect_timeout = testing::kKvTestPatience;
  ConnectedEngine consumer(tiny_options(), config);
  auto producer = std::make_unique<ConnectedEngine>(tiny_options(), produces());
  std::vector<Request> at = with_prompts_at(*producer, requests);
  producer = nullptr;
  expect_computed_here(consumer, at);
  EXPECT_LT(consumer.connector->stats().load_seconds, 30.0);

  const FileDescriptor silent = listen_on({"127.0.0.1", 0}, 8);
  for (Request& request : at)
    request.kv_transfer->remote_address = "tcp://" + local_address(silent.number()).str();
  config.connect_timeout = std::chrono::milliseconds(200);
  ConnectedEngine patient(tiny_options(), config);
  expect_computed_here(patient, at);
  EXPECT_GT(patient.connector->stats().load_seconds, 3 * 0.19);
}

// A worker of the producer is killed in the third step, when two chunks have gone over. Its engine keeps nothing any more.
TEST_F(KvHandoffFailures, AWorkerThatDiesWhileItsPromptIsRead) {
  requests.resize(1);
  requests[0].prompt_token_ids.resize(60, 600);
  requests[0].sampling.n = 1;
  expected = engine_with(tiny_options())->generate(requests);
  EngineOptions options = tiny_options();
  options.runner.batch.max_num_batched_tokens = 16;
  options.runner.tensor_parallel_size = 2;
  ConnectedEngine producer(testing::on_workers(options, "1 kill 4"), produces());
  ConnectedEngine consumer(tiny_options(), consumes());
  Request prompt = testing::prompt_alone(requests[0]);
  prompt.kv_transfer->remote_request_id = "half of it";
  requests[0].kv_transfer = testing::kept_as("half of it", producer.connector->address());
  producer.engine->add_request(prompt);
  producer.engine->step();
  producer.engine->step();
  std::thread dies([&] {
    const auto deadline = std::chrono::steady_clock::now() + testing::kKvTestPatience;
    while (producer.connector->stats().num_sent_bytes < 32 * producer.connector->bytes_per_block() / 4 &&
           std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    EXPECT_THROW(producer.engine->step(), std::exception);
    producer.engine = nullptr;
  });
  const auto outputs = consumer.engine->generate(requests);
  dies.join();
  expect_same(outputs, expected);
  EXPECT_GT(consumer.connector->stats().num_loaded_bytes, 0);
  EXPECT_EQ(consumer.connector->stats().num_missed_tokens, 59);
  consumer.expect_all_given_back();
}

// ... and of the consumer, while its blocks are written: they are there until nobody writes them.
TEST_F(KvHandoffFailures, AWorkerThatDiesWhileItsPromptComes) {
  KvTransferConfig config = produces();
  config.lease = std::chrono::hours(1);
  EngineOptions options = tiny_options();
  options.runner.tensor_parallel_size = 2;
  ConnectedEngine producer(tiny_options(), config);
  ConnectedEngine consumer(testing::on_workers(options, "0 kill 2"), consumes());
  const std::vector<Request> at = with_prompts_at(producer, requests);
  requests[1].kv_transfer = testing::kept_as("never", producer.connector->address());
  consumer.engine->add_request(requests[1]);
  consumer.engine->step();
  EXPECT_EQ(consumer.engine->scheduler().stats().num_waiting_for_kv, 1);
  EXPECT_THROW(consumer.engine->generate({at[0]}), std::exception);
  consumer.engine = nullptr;
  ConnectedEngine other(tiny_options(), consumes());
  expect_same(other.engine->generate(at), expected);
  EXPECT_EQ(other.connector->stats().num_failed_loads, 1);  // it had taken over the first one
  producer.expect_all_given_back();
}

TEST_F(KvHandoffFailures, ARequestOfAnotherPromptOrOfNone) {
  ConnectedEngine producer(tiny_options(), produces()), consumer(tiny_options(), consumes());
  std::vector<Request> at = with_prompts_at(producer, requests);
  std::swap(at[0].kv_transfer->remote_request_id, at[1].kv_transfer->remote_request_id);
  at[2].kv_transfer->remote_request_id += "?";
  expect_computed_here(consumer, at);
}

TEST_F(KvHandoffFailures, AnotherModel) {
  const GoldenCheckpoint other = testing::load_golden(testing::golden_folder() / "llama_linear");
  ConnectedEngine producer(options_of(other), produces()), consumer(tiny_options(), consumes());
  std::mutex mutex;
  std::vector<std::string> lines;
  consumer.connector->on_failed_load([&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  });
  std::vector<Request> at = requests;
  for (Request& request : at) request.kv_transfer = testing::kept_as("x", producer.connector->address());
  expect_computed_here(consumer, at);
  const std::lock_guard lock(mutex);
  ASSERT_FALSE(lines.empty()) << "all answers are right, and nobody would notice";
  EXPECT_NE(lines[0].find("from " + producer.connector->address() + ": the other engine has another model"),
            std::string::npos)
      << lines[0];
}

TEST_F(KvHandoffFailures, AnAddressThatIsNone) {
  KvTransferConfig config = consumes();
  config.connect_timeout = std::chrono::milliseconds(100);
  ConnectedEngine consumer(tiny_options(), config);
  std::vector<Request> at = requests;
  const std::vector<std::string> addresses = {"", "carrier://pigeon", "tcp://127.0.0.1:1"};
  for (size_t i = 0; i < at.size(); ++i) at[i].kv_transfer = testing::kept_as("x", addresses[i]);
  expect_computed_here(consumer, at);
}

TEST_F(KvHandoffFailures, EndTheirRequestsWhereTheConsumerIsToldSo) {
  KvTransferConfig config = consumes();
  config.load_failure_policy = KvLoadFailurePolicy::fail;
  ConnectedEngine producer(tiny_options(), produces()), consumer(tiny_options(), config);
  std::vector<Request> at = with_prompts_at(producer, requests);
  at[1].kv_transfer->remote_request_id += "?";
  const auto outputs = consumer.engine->generate(at);
  expect_same({outputs[0], outputs[2]}, {expected[0], expected[2]});
  for (const CompletionOutput& completion : outputs[1].completions)
    EXPECT_EQ(completion.finish_reason, FinishReason::error);
  EXPECT_EQ(consumer.engine->scheduler().stats().kv_transfer.num_loads, 3);
  EXPECT_EQ(consumer.engine->scheduler().stats().kv_transfer.num_failed_loads, 1);
  consumer.expect_all_given_back();
}

TEST_F(KvHandoffFailures, AnIdThatIsTooLong) {
  ConnectedEngine producer(tiny_options(), produces()), consumer(tiny_options(), consumes());
  std::vector<Request> at = requests;
  for (Request& request : at)
    request.kv_transfer = testing::kept_as(std::string(size_t{1} << 20, 'x'), producer.connector->address());
  expect_same(consumer.engine->generate(at), expected);
  EXPECT_EQ(consumer.connector->stats().num_loads, 0);
  Request kept = testing::prompt_alone(requests[0]);
  kept.kv_transfer->remote_request_id = at[0].kv_transfer->remote_request_id;
  EXPECT_FALSE(producer.engine->generate({kept})[0].kv_transfer.has_value());
  producer.expect_all_given_back();
}

// An id that is asked for twice is the first one's: the second is not kept, and nobody reads it for the first.
TEST_F(KvHandoffFailures, AnIdThatIsTaken) {
  ConnectedEngine producer(tiny_options(), produces());
  std::vector<Request> prompts;
  for (const Request& request : requests) {
    prompts.push_back(testing::prompt_alone(request));
    prompts.back().kv_transfer->remote_request_id = "mine";
  }
  const auto outputs = producer.engine->generate(prompts);
  EXPECT_TRUE(outputs[0].kv_transfer.has_value());
  EXPECT_FALSE(outputs[1].kv_transfer.has_value());
  EXPECT_FALSE(outputs[2].kv_transfer.has_value());
}

TEST_F(KvHandoffFailures, ARequestThatIsAborted) {
  KvTransferConfig config = produces();
  config.lease = std::chrono::hours(1);  // what comes back does so because somebody has said so
  ConnectedEngine producer(tiny_options(), config), consumer(tiny_options(), consumes());
  const std::vector<Request> at = with_prompts_at(producer, requests);
  // While it waits.
  const RequestId waiting = consumer.engine->add_request(at[0]);
  consumer.engine->abort(waiting);
  // While it is loaded, which does not end by itself: nobody computes that prompt.
  Request forever = requests[1];
  forever.kv_transfer = testing::kept_as("never", producer.connector->address());
  const RequestId loading = consumer.engine->add_request(forever);
  consumer.engine->step();
  EXPECT_EQ(consumer.engine->scheduler().stats().num_waiting_for_kv, 1);
  consumer.engine->abort(loading);
  consumer.engine->take_results();
  const auto deadline = std::chrono::steady_clock::now() + testing::kKvTestPatience;
  while (consumer.engine->scheduler().blocks().num_used_blocks() > 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    consumer.connector->wait(std::chrono::milliseconds(20));
    consumer.engine->take_kv_events();
  }
  // After it was loaded.
  consumer.engine->generate({at[1], at[2]});
  EXPECT_EQ(consumer.connector->stats().num_failed_loads, 0);
  producer.expect_all_given_back();
  consumer.expect_all_given_back();
  // Over there, before it is kept.
  const RequestId computing = producer.engine->add_request(testing::prompt_alone(requests[0]));
  producer.engine->abort(computing);
  EXPECT_FALSE(producer.engine->take_results().finished.at(0).kv_transfer.has_value());
  producer.expect_all_given_back();
}

// Kept blocks are bounded: further prompts wait until some were read.
TEST(KvHandoff, KeepsNoMoreThanItMay) {
  testing::Random random;
  std::vector<Request> requests = random_requests(random, 6);
  for (Request& request : requests) request.prompt_token_ids.resize(32, 700);
  KvTransferConfig config = produces();
  config.lease = std::chrono::hours(1);
  ConnectedEngine measure(tiny_options(), config);
  config.max_held_bytes = 20 * measure.connector->bytes_per_block();  // two prompts of 8 blocks
  ConnectedEngine producer(tiny_options(), config), consumer(tiny_options(), consumes());
  for (const Request& request : requests) producer.engine->add_request(testing::prompt_alone(request));
  int num_read = 0;
  const auto deadline = std::chrono::steady_clock::now() + testing::kKvTestPatience;
  while (num_read < std::ssize(requests)) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    const StepResult result = producer.engine->step();
    EXPECT_LE(producer.engine->scheduler().stats().num_held_blocks, 20);
    for (const RequestOutput& output : result.finished) {
      Request request = requests[0];
      request.prompt_token_ids = output.prompt_token_ids;
      request.sampling.max_tokens = 1;
      request.kv_transfer = output.kv_transfer;
      consumer.engine->generate({request});
      ++num_read;
    }
  }
  producer.expect_all_given_back();
}

}  // namespace
}  // namespace ladder
