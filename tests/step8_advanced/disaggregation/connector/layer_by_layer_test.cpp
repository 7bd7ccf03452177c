// What a layer has stored is sent before the next layer is computed; and what happens when somebody goes away in between.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/process/children_of.h"
#include "tests/step6_engine/process/open_files.h"
#include "tests/step7_parallel/workers/worker_program.h"
#include "tests/step8_advanced/disaggregation/connector/handoff_requests.h"
#include "tests/step8_advanced/disaggregation/connector/played_transfer.h"
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
using testing::layout_of;
using testing::num_tokens_to_load;
using testing::PlayedTransfer;
using testing::Random;
using testing::random_requests;
using testing::same_bits;
using testing::tiny_options;

KvTransferConfig gives_layers(std::string listen = "tcp://0") {
  KvTransferConfig config = testing::produces(std::move(listen));
  config.layer_by_layer = true;
  return config;
}

// Until the condition holds. False: it takes too long.
bool becomes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + testing::kKvTestPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// Asked before a layer of so many rows is computed; set after the warm-up.
struct Gate {
  std::function<void(int64_t layer, int64_t rows)> before;
};

EngineOptions gated(EngineOptions options, const std::shared_ptr<Gate>& gate) {
  class GatedAttention final : public Attention {
   public:
    GatedAttention(std::unique_ptr<Attention> inner, std::shared_ptr<Gate> gate, int64_t layer)
        : inner_(std::move(inner)), gate_(std::move(gate)), layer_(layer) {}
    KvCacheSpec kv_cache_spec() const override { return inner_->kv_cache_spec(); }
    void forward(const OpContext& ctx, const QkNormRopeStoreArgs& args, const AttentionMetadata& metadata,
                 double scale, const Tensor& out) const override {
      if (gate_->before) gate_->before(layer_, args.slot_mapping.numel());
      inner_->forward(ctx, args, metadata, scale, out);
    }

   private:
    const std::unique_ptr<Attention> inner_;
    const std::shared_ptr<Gate> gate_;
    const int64_t layer_;
  };
  options.makers.model.attention = [gate](const OpContext& ctx, int64_t layer, const KvCacheSpec& cache) {
    return std::make_unique<GatedAttention>(make_attention({}, ctx, layer, cache), gate, layer);
  };
  return options;
}

// Both engines are told at once: what the one is asked, and the other.
struct AskedAtOnce {
  std::vector<Request> prompts, requests;
};
AskedAtOnce asked_at_once(const ConnectedEngine& producer, std::vector<Request> requests,
                          const std::string& ids) {
  AskedAtOnce asked;
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& prompt = asked.prompts.emplace_back(testing::prompt_alone(requests[i]));
    prompt.kv_transfer->remote_request_id = fmt::format("{}-{}", ids, i);
    requests[i].kv_transfer =
        testing::kept_as(prompt.kv_transfer->remote_request_id, producer.connector->address());
  }
  asked.requests = std::move(requests);
  return asked;
}

std::vector<RequestOutput> answers_of(ConnectedEngine& producer, ConnectedEngine& consumer,
                                      const AskedAtOnce& asked) {
  std::thread computing([&] { producer.engine->generate(asked.prompts); });
  std::vector<RequestOutput> outputs = consumer.engine->generate(asked.requests);
  computing.join();
  return outputs;
}

// Over what is the way between the two engines' devices.
class KvLayerByLayerOn : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    std::string reason;
    if (GetParam() == DeviceType::cuda && cuda_device_count(&reason) == 0)
      GTEST_SKIP() << "a GPU is needed: " << reason;
  }

  const testing::TransportPlace place_{GetParam() == DeviceType::cuda ? "cuda" : "tcp"};
};

INSTANTIATE_TEST_SUITE_P(Devices, KvLayerByLayerOn, ::testing::Values(DeviceType::cpu, DeviceType::cuda),
                         [](const auto& info) { return info.param == DeviceType::cpu ? "cpu" : "cuda"; });

// No layer is computed (on a GPU: launched) before the one in front of it has been sent, in two chunks of a prompt: an engine
// that hands over when a step is over would wait here for ever.
TEST_P(KvLayerByLayerOn, IsSentBeforeTheNextLayerIsComputed) {
  const GoldenCheckpoint checkpoint =
      testing::load_golden(testing::golden_folder() / "qwen2_moe_some_layers");
  EngineOptions options = testing::small_options(checkpoint.directory, GetParam(), checkpoint.max_model_len);
  options.runner.batch.max_num_batched_tokens = 16;
  options.runner.cuda_graphs = false;  // so few rows would be replayed, and told as a whole
  Request request = testing::greedy_request(checkpoint.prompts.front());
  request.prompt_token_ids.resize(29, request.prompt_token_ids.front());
  const auto expected = engine_with(options)->generate({request});

  const auto gate = std::make_shared<Gate>();
  ConnectedEngine producer(gated(options, gate), gives_layers(place_.address()));
  ConnectedEngine consumer(options, consumes());
  const int64_t num_layers = load_decoder_spec(checkpoint.directory).num_layers;
  const int64_t bytes = producer.connector->bytes_per_block() /
                        (options.runner.batch.block_size * num_layers);  // of a token in a layer
  ASSERT_GE(num_layers, 4);
  int64_t num_gated = 0;
  gate->before = [&](int64_t layer, int64_t rows) {
    if (layer == 0 || HasFailure()) return;
    ++num_gated;
    const bool is_first = rows == 16;  // of the two chunks; the prompt's last token is not asked for
    const int64_t sent = (is_first ? layer * 16 : num_layers * 16 + layer * 12) * bytes;
    EXPECT_TRUE(becomes_true([&] { return producer.connector->stats().num_sent_bytes >= sent; }))
        << "layer " << layer - 1 << " of " << rows << " rows";
    EXPECT_EQ(producer.connector->stats().num_sent_bytes, sent);
  };
  const auto outputs = answers_of(producer, consumer, asked_at_once(producer, {request}, "gated"));
  EXPECT_EQ(num_gated, 2 * (num_layers - 1));
  EXPECT_TRUE(same_bits(outputs[0], expected[0]));
  EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, 28);
  EXPECT_EQ(consumer.connector->stats().num_loaded_bytes, 28 * num_layers * bytes);
  producer.expect_all_given_back();
  consumer.expect_all_given_back();
}

// Steps of more than 1,024 rows, which are launched kernel by kernel, between others that are replayed from graphs.
TEST_P(KvLayerByLayerOn, LongPromptsAreAnsweredAsByOneEngine) {
  Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Request> requests = random_requests(random, 4);
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t>& prompt = requests[i].prompt_token_ids;
    while (prompt.size() < (i % 2 == 0 ? 1300 : 8) ||
           prompt.size() % 4 != 0)  // so that always something is to be loaded
      prompt.push_back(static_cast<int32_t>(random.integer(300, 2000)));
  }
  EngineOptions options = tiny_options();
  options.runner.device = {GetParam(), 0};
  options.runner.batch.max_model_len = 1400;
  options.runner.batch.max_num_batched_tokens = 1200;
  options.runner.kv_memory = int64_t{8} << 20;
  const auto expected = engine_with(options)->generate(requests);
  ConnectedEngine producer(options, gives_layers(place_.address())), consumer(options, consumes());
  for (const std::string ids : {"first", "second"})
    expect_same(answers_of(producer, consumer, asked_at_once(producer, requests, ids)), expected);
  EXPECT_EQ(consumer.connector->stats().num_failed_loads, 0);
  EXPECT_GT(consumer.connector->stats().num_loads, 0);
  producer.expect_all_given_back();
  consumer.expect_all_given_back();
}

// Twice the same: the second time each finds the whole blocks of its own cache.
TEST(KvLayerByLayer, AnswersAsOneEngine) {
  Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Request> requests = random_requests(random, 10);
  for (Request& request : requests)  // so that of the last block there is always something to load
    request.prompt_token_ids.resize((request.prompt_token_ids.size() + 3) / 4 * 4, 700);
  for (const KvCacheDType kept_as : {KvCacheDType::automatic, KvCacheDType::int4}) {
    EngineOptions options = tiny_options();
    options.runner.kv_cache_dtype = kept_as;
    const auto expected = engine_with(options)->generate(requests);
    EngineOptions chunked = options;
    chunked.runner.batch.max_num_batched_tokens = 16;
    ConnectedEngine producer(chunked, gives_layers()), consumer(options, consumes());
    for (const std::string ids : {"first", "second"})
      expect_same(answers_of(producer, consumer, asked_at_once(producer, requests, ids)), expected);
    EXPECT_GT(producer.engine->scheduler().stats().num_prefix_hit_tokens, 0);
    EXPECT_GT(consumer.engine->scheduler().stats().num_prefix_hit_tokens, 0);
    EXPECT_EQ(consumer.connector->stats().num_failed_loads, 0);
    // Who comes when the prompt is computed gets it whole, as ever.
    ConnectedEngine late(options, consumes());
    expect_same(late.engine->generate(testing::with_prompts_at(producer, requests)), expected);
    EXPECT_EQ(late.connector->stats().num_failed_loads, 0);
    producer.expect_all_given_back();
    consumer.expect_all_given_back();
  }
}

TEST(KvLayerByLayer, GoesOverEveryTransport) {
  Random random;
  SCOPED_TRACE(random.describe());
  const std::vector<Request> requests = random_requests(random, 2);
  const auto expected = engine_with(tiny_options())->generate(requests);
  for (const KvTransport& transport : kv_transports()) {
    if (!testing::obstacle_of(transport.name).empty()) continue;
    SCOPED_TRACE(transport.name);
    const testing::TransportPlace place(transport.name);
    EngineOptions options = tiny_options();
    options.runner.batch.max_num_batched_tokens = 16;
    ConnectedEngine producer(options, gives_layers(place.address()));
    ConnectedEngine consumer(tiny_options(), consumes());
    expect_same(answers_of(producer, consumer, asked_at_once(producer, requests, "over")), expected);
    EXPECT_EQ(consumer.connector->stats().num_failed_loads, 0);
    producer.expect_all_given_back();
  }
}

// The producer's ranks are threads, or processes.
class KvLayerByLayerOfRanks : public ::testing::TestWithParam<bool> {
 protected:
  EngineOptions of_ranks(const EngineOptions& options) const {
    return GetParam() ? testing::on_workers(options) : options;
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, KvLayerByLayerOfRanks, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "processes" : "threads"; });

TEST_P(KvLayerByLayerOfRanks, GoesFromAnyGridToAnyOther) {
  const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / "qwen3_sharded");
  std::vector<Request> requests = testing::greedy_requests(checkpoint);
  // Of a single token nothing is loaded, and that nobody wants it is said before the producer knows of it: its lease would end.
  std::erase_if(requests, [](const Request& request) { return request.prompt_token_ids.size() < 2; });
  EngineOptions options =
      testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len);
  const auto expected = engine_with(options)->generate(requests);
  const int files = testing::num_open_files();
  const auto memory = testing::files_of_memory();
  for (const auto& [from, to] : {std::pair{Grid{2, 1}, Grid{1, 2}},
                                 {Grid{1, 2}, Grid{2, 1}},
                                 {Grid{2, 2}, Grid{4, 1}},
                                 {Grid{4, 1}, Grid{1, 1}},
                                 {Grid{1, 1}, Grid{2, 1}}}) {
    const std::string what =
        fmt::format("TP {} x {} stages to TP {} x {} stages", from.tp, from.pp, to.tp, to.pp);
    SCOPED_TRACE(what);
    options.runner.batch.max_num_batched_tokens = 7;  // in chunks
    ConnectedEngine producer(of_ranks(testing::with_ranks(options, from)), gives_layers());
    options.runner.batch.max_num_batched_tokens = 64;
    ConnectedEngine consumer(testing::with_ranks(options, to), consumes());
    const auto outputs = answers_of(producer, consumer, asked_at_once(producer, requests, "grid"));
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(testing::answers_as_one_rank(expected[i], outputs[i], {4, 1, 1},
                                               fmt::format("{}, prompt {}", what, i)));
    EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, num_tokens_to_load(requests));
    producer.expect_all_given_back();
    consumer.expect_all_given_back();
  }
  EXPECT_EQ(testing::num_open_files(), files);
  EXPECT_EQ(testing::files_of_memory(), memory);
}

// The producer's ranks are played, and say what they store in any order that ranks may: nothing is sent before its layer, on
// its rank, is stored, and what is sent is right.
TEST(KvLayerByLayer, EachRanksLayersAreWaitedFor) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const Grid grid : {Grid{1, 1}, Grid{2, 1}, Grid{1, 2}, Grid{2, 2}}) {
    const std::vector<int64_t> stages = grid.pp == 2 ? std::vector<int64_t>{1, 4} : std::vector<int64_t>{4};
    PlayedTransfer transfer(layout_of(4, grid.tp, stages), layout_of(4, 1), 40, random);
    std::map<std::pair<int, int64_t>, std::atomic<int64_t>> stored;  // by rank and layer, up to this token
    for (const RankKvCaches& rank : transfer.theirs.ranks)
      for (int64_t layer = rank.layers.begin; layer < rank.layers.end; ++layer)
        stored[{rank.rank, layer}] = 0;
    const auto change = [&](KvMessage& message, auto&) {
      const auto& head = std::get<KvPartsHead>(message);
      const int rank = transfer.reads[static_cast<size_t>(head.read)].from_rank;
      for (int64_t i = 0; i < head.num_layers; ++i)
        EXPECT_LE(head.first_token + head.num_tokens, stored.at({rank, head.first_layer + i}));
    };
    const auto compute = [&] {
      for (const int64_t up_to : {5, 17, 18, 40})
        transfer.compute_by_layers(up_to, random, [&](int rank, int64_t layer) {
          stored[{rank, layer}] = up_to;
        });
    };
    EXPECT_EQ(transfer.run(change, compute), "");
    EXPECT_EQ(transfer.received.num_tokens, 40);
    EXPECT_EQ(transfer.difference_after(40), "") << "TP " << grid.tp << " x " << grid.pp << " stages";
  }
}

// The request ends, or is preempted, while half of a step's layers are sent.
TEST(KvLayerByLayer, EndsWithItsRequestBetweenTwoLayers) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const bool preempted : {false, true}) {
    std::atomic<bool> is_computed_again = false;
    PlayedTransfer transfer(layout_of(4, 1), layout_of(4, 1), 20, random);
    const auto change = [&](KvMessage& message, auto&) {
      const auto& head = std::get<KvPartsHead>(message);
      if (head.first_token < 9) return;
      if (head.first_layer + head.num_layers == 2) transfer.let_go();
      EXPECT_TRUE(head.first_layer + head.num_layers <= 2 || is_computed_again);
    };
    const std::string error = transfer.run(change, [&] {
      transfer.begin_step(0, 9);
      transfer.compute(9);
      transfer.begin_step(9, 20);
      transfer.theirs.fill(9, 11);
      transfer.save_layer(0, 0, 9, 20);
      transfer.save_layer(0, 1, 9, 20);
      transfer.first_is_through.wait(false);
      if (!preempted) {
        transfer.leases.retract(transfer.sequence.id);
      } else {
        transfer.leases.computed(transfer.sequence, "it", 0);
        transfer.computed = 0;
      }
      // The step runs on, and its blocks are another's soon: nothing more is sent.
      transfer.save_layer(0, 2, 9, 20);
      transfer.save_layer(0, 3, 9, 20);
      for (int64_t layer = 0; layer < 4; ++layer) transfer.save_layer(0, layer, 0, 20);
      if (!preempted) return;
      is_computed_again = true;
      transfer.compute(20);
    });
    EXPECT_EQ(error.empty(), preempted) << error;
    EXPECT_EQ(transfer.received.num_tokens, preempted ? 20 : 9);
    if (preempted) {
      EXPECT_EQ(transfer.difference_after(20), "");
    }
  }
}

class KvLayerByLayerFailures : public ::testing::Test {
 protected:
  KvLayerByLayerFailures() {
    Random random;
    requests = random_requests(random, 1);
    requests[0].prompt_token_ids.resize(40, 600);
    requests[0].sampling.n = 1;
    expected = engine_with(tiny_options())->generate(requests);
  }

  // The producer stops before the second of its two layers, when the first one is sent, until open().
  void stop_between_layers(std::chrono::milliseconds lease = std::chrono::hours(1)) {
    KvTransferConfig config = gives_layers();
    config.lease = lease;
    producer = std::make_unique<ConnectedEngine>(gated(tiny_options(), gate), config);
    connector = producer->connector;
    asked = asked_at_once(*producer, requests, "it");
    const int64_t bytes = 39 * connector->bytes_per_block() / 4 / 2;
    gate->before = [this, bytes](int64_t layer, int64_t) {
      if (layer == 0 || is_open) return;
      EXPECT_TRUE(becomes_true([&] { return connector->stats().num_sent_bytes == bytes; }));
      has_stopped = true;
      has_stopped.notify_all();
      is_open.wait(false);
      if (fails) fail("this rank stops here");
    };
  }
  void open() {
    is_open = true;
    is_open.notify_all();
  }

  std::vector<Request> requests;
  std::vector<RequestOutput> expected;
  AskedAtOnce asked;
  const std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  std::atomic<bool> has_stopped = false, is_open = false, fails = false;
  std::shared_ptr<KvTransferConnector> connector;
  std::unique_ptr<ConnectedEngine> producer;
};

TEST_F(KvLayerByLayerFailures, AReaderThatGivesUp) {
  stop_between_layers();
  ConnectedEngine consumer(tiny_options(), consumes());
  std::thread computing([&] { producer->engine->generate(asked.prompts); });
  const RequestId id = consumer.engine->add_request(asked.requests[0]);
  consumer.engine->step();
  has_stopped.wait(false);
  consumer.engine->abort(id);
  consumer.engine->take_results();
  // Its blocks come back though the producer has not gone on.
  EXPECT_TRUE(becomes_true([&] {
    consumer.engine->take_kv_events();
    return consumer.engine->scheduler().blocks().num_used_blocks() == 0;
  }));
  open();
  computing.join();
  EXPECT_EQ(consumer.connector->stats().num_failed_loads, 0);
  producer->expect_all_given_back();
  // And the next one gets all of it.
  asked = asked_at_once(*producer, requests, "again");
  expect_same(answers_of(*producer, consumer, asked), expected);
  EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, 39);
  producer->expect_all_given_back();
  consumer.expect_all_given_back();
}

TEST_F(KvLayerByLayerFailures, AReaderThatIsGone) {
  stop_between_layers(std::chrono::milliseconds(200));  // from the prompt's end on
  auto consumer = std::make_unique<ConnectedEngine>(tiny_options(), consumes());
  std::thread computing([&] { producer->engine->generate(asked.prompts); });
  consumer->engine->add_request(asked.requests[0]);
  consumer->engine->step();
  has_stopped.wait(false);
  consumer = nullptr;
  open();
  computing.join();
  producer->expect_all_given_back();
  EXPECT_EQ(producer->connector->stats().num_lapsed, 1);
}

TEST_F(KvLayerByLayerFailures, AProducerThatIsGone) {
  stop_between_layers();
  fails = true;
  ConnectedEngine consumer(tiny_options(), consumes());
  std::thread computing([&] {
    EXPECT_THROW(producer->engine->generate(asked.prompts), std::exception);
    producer = nullptr;
    connector = nullptr;
  });
  consumer.engine->add_request(asked.requests[0]);
  consumer.engine->step();
  has_stopped.wait(false);
  open();
  computing.join();
  std::vector<RequestOutput> outputs;
  EXPECT_TRUE(becomes_true([&] {
    for (RequestOutput& output : consumer.engine->step().finished) outputs.push_back(std::move(output));
    return !outputs.empty();
  }));
  expect_same(outputs, expected);
  EXPECT_EQ(consumer.connector->stats().num_failed_loads, 1);
  EXPECT_EQ(consumer.connector->stats().num_missed_tokens, 39) << "one layer of two is nothing";
  consumer.expect_all_given_back();
}

// A rank's process hangs between the first layer and the second, of the prompt's first step or of its second, until the other engine
// has all that the ranks have stored. Then it is killed.
TEST_P(KvLayerByLayerOn, AWorkerThatDiesBetweenTwoLayers) {
  Random random;
  SCOPED_TRACE(random.describe());
  const bool on_cpu = GetParam() == DeviceType::cpu;
  EngineOptions options = tiny_options();
  options.runner.device = {GetParam(), 0};
  options.runner.batch.max_num_batched_tokens = 32;
  options.runner.cuda_graphs = false;  // so few rows would be replayed, and told as a whole
  EngineOptions of_ranks = options;
  of_ranks.runner.tensor_parallel_size = on_cpu ? 2 : std::min(cuda_device_count(), 2);
  const int last_rank = of_ranks.runner.tensor_parallel_size - 1;
  const int files = testing::num_open_files();
  const auto memory = testing::files_of_memory();
  for (const int64_t before : {0, 32}) {  // tokens that are there before the step
    SCOPED_TRACE(fmt::format("behind {} tokens", before));
    std::vector<Request> requests = random_requests(random, 1);
    requests[0].prompt_token_ids.resize(static_cast<size_t>(before + 29), 600);
    requests[0].sampling.n = 1;
    const auto expected = engine_with(options)->generate(requests);
    ConnectedEngine consumer(options, consumes());
    const std::set<int> others = testing::children_of(::getpid());
    // No warm-up has a step of 29 rows (row_classes(), step1_layers/linear/matmul.h).
    auto producer = std::make_unique<ConnectedEngine>(
        testing::on_workers(of_ranks, fmt::format("{} hang 1 29", last_rank)),
        gives_layers(place_.address()));
    std::set<int> workers = testing::children_of(::getpid());
    for (const int other : others) workers.erase(other);
    ASSERT_EQ(std::ssize(workers), last_rank + 1);
    const auto connector = producer->connector;
    const AskedAtOnce asked = asked_at_once(*producer, requests, "it");
    std::thread computing([&] {
      EXPECT_THROW(producer->engine->generate(asked.prompts), std::exception);
      producer = nullptr;
    });
    consumer.engine->add_request(asked.requests[0]);
    consumer.engine->step();
    const int64_t token_bytes = connector->bytes_per_block() / options.runner.batch.block_size;
    const int64_t sent = before * token_bytes + 28 * token_bytes / 2;  // of two layers
    EXPECT_TRUE(becomes_true([&] { return connector->stats().num_sent_bytes >= sent; }));
    EXPECT_EQ(connector->stats().num_sent_bytes, sent);
    ::kill(*workers.rbegin(), SIGKILL);
    computing.join();
    std::vector<RequestOutput> outputs;
    EXPECT_TRUE(becomes_true([&] {
      for (RequestOutput& output : consumer.engine->step().finished) outputs.push_back(std::move(output));
      return !outputs.empty();
    }));
    ASSERT_EQ(outputs.size(), 1u);
    EXPECT_TRUE(testing::answers_as_one_rank(expected[0], outputs[0], {last_rank + 1, 1, 1}, "the consumer"));
    EXPECT_EQ(consumer.connector->stats().num_failed_loads, 1);
    EXPECT_EQ(consumer.connector->stats().num_missed_tokens, before + 28)
        << "nobody says that its lease was valid";
    consumer.expect_all_given_back();
  }
  if (on_cpu) {
    EXPECT_EQ(testing::num_open_files(), files);
  }
  EXPECT_EQ(testing::files_of_memory(), memory);
}

// On GPUs, as many as there are up to two; steps that are replayed from graphs between others that are not.
TEST_P(KvLayerByLayerOn, WorkersAnswerAsOneEngine) {
  const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / "qwen3_sharded");
  std::vector<Request> requests = testing::greedy_requests(checkpoint);
  std::erase_if(requests, [](const Request& request) { return request.prompt_token_ids.size() < 2; });
  EngineOptions options = testing::small_options(checkpoint.directory, GetParam(), checkpoint.max_model_len);
  const auto expected = engine_with(options)->generate(requests);
  EngineOptions of_ranks = options;
  of_ranks.runner.tensor_parallel_size = GetParam() == DeviceType::cpu ? 2 : std::min(cuda_device_count(), 2);
  for (const bool graphs : {false, true}) {
    if (graphs && GetParam() == DeviceType::cpu) continue;
    of_ranks.runner.cuda_graphs = graphs;
    ConnectedEngine producer(testing::on_workers(of_ranks), gives_layers(place_.address()));
    ConnectedEngine consumer(options, consumes());
    const auto outputs = answers_of(producer, consumer, asked_at_once(producer, requests, "it"));
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(
          testing::answers_as_one_rank(expected[i], outputs[i], {2, 1, 1}, fmt::format("prompt {}", i)));
    EXPECT_EQ(consumer.connector->stats().num_loaded_tokens, num_tokens_to_load(requests));
    EXPECT_EQ(consumer.connector->stats().num_failed_loads, 0);
    producer.expect_all_given_back();
    consumer.expect_all_given_back();
  }
}

}  // namespace
}  // namespace ladder
