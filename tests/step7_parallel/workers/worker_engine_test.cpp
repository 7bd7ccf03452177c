// An engine whose ranks are processes answers what one answers whose ranks are threads, to the bit.
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/process/open_files.h"
#include "tests/step7_parallel/workers/worker_program.h"
#include "tests/support/memory_files.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::fits;
using testing::Grid;
using testing::on_grid;
using testing::on_workers;
using testing::same_bits;

class Task7_6_Workers : public ::testing::TestWithParam<std::string> {};

TEST_P(Task7_6_Workers, AnswerWhatThreadsAnswer) {
  const auto checkpoint = testing::load_golden(testing::golden_folder() / GetParam());
  const DecoderSpec spec = load_decoder_spec(checkpoint.directory);
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  for (const Grid grid :
       {Grid{1, 1}, Grid{2, 1}, Grid{4, 1}, Grid{1, 2}, Grid{1, 3}, Grid{1, 4}, Grid{2, 2}}) {
    if (!fits(spec, grid)) continue;
    EngineOptions options = on_grid(
        testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len), grid);
    options.runner.batch.max_num_batched_tokens = 24;  // prompts in chunks
    const auto expected = engine_with(options)->generate(requests);
    const std::unique_ptr<Engine> engine = engine_with(on_workers(options));
    for (const char* cache : {"cold", "warm"}) {
      const auto outputs = engine->generate(requests);
      for (size_t i = 0; i < outputs.size(); ++i)
        EXPECT_TRUE(same_bits(outputs[i], expected[i]))
            << "tensor " << grid.tp << " x pipeline " << grid.pp << ", " << cache << " cache, prompt " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Task7_6_Workers,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder(), false)),
                         [](const auto& info) { return info.param; });
// Of no task: they run layers with experts, too, which 7.6 does not need.
INSTANTIATE_TEST_SUITE_P(Experts, Task7_6_Workers,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder(), true)),
                         [](const auto& info) { return info.param; });

EngineOptions tiny(Grid grid) {
  return on_grid(testing::small_options(testing::tiny_model(), DeviceType::cpu, 96), grid);
}

TEST(Task7_12_Workers, AnswerWhatThreadsAnswer) {
  for (const Grid grid : {Grid{1, 1, 2}, Grid{2, 2, 2}}) {
    const EngineOptions options = tiny(grid);
    std::vector<Request> requests(5);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].prompt_token_ids.assign(3 + 5 * i, static_cast<int32_t>(600 + i));
      requests[i].sampling.temperature = 0.0;
      requests[i].sampling.max_tokens = 6;
      requests[i].sampling.ignore_eos = true;
      requests[i].sampling.logprobs = 2;
    }
    const auto expected = engine_with(options)->generate(requests);
    const auto outputs = engine_with(on_workers(options))->generate(requests);
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(same_bits(outputs[i], expected[i])) << "tensor " << grid.tp << " x pipeline " << grid.pp
                                                      << " x context " << grid.cp << ", request " << i;
  }
}

// Everything that requests may ask for, too few blocks, and aborts while steps are in flight.
TEST(Task7_6_Workers, ServeACrowdWithAborts) {
  EngineOptions options = tiny({2, 2});
  options.runner.batch.block_size = 4;
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = 60;
  options.runner.batch.max_num_seqs = 6;
  options.runner.batch.max_num_batched_tokens = 24;
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const uint64_t seed = static_cast<uint64_t>(random.integer(0, 1 << 30));
  const auto run = [&](const EngineOptions& with) {
    testing::Random same(seed);
    const std::unique_ptr<Engine> engine = engine_with(with);
    std::vector<RequestOutput> outputs;
    std::vector<RequestId> running;
    for (int added = 0; added < 60 || engine->has_unfinished();) {
      for (; added < 60 && std::ssize(running) < 12; ++added) {
        Request request;
        request.request_id = std::to_string(added);
        request.prompt_token_ids.resize(static_cast<size_t>(same.integer(1, 30)));
        for (int32_t& id : request.prompt_token_ids) id = static_cast<int32_t>(same.integer(300, 303));
        request.sampling.max_tokens = same.integer(1, 20);
        request.sampling.ignore_eos = true;
        request.sampling.temperature = added % 3 == 0 ? 0.7 : 0.0;
        request.sampling.seed = added;
        request.sampling.logprobs = 2;
        if (added % 5 == 2) request.sampling.prompt_logprobs = 3;
        if (added % 4 == 3) request.sampling.n = 3;
        running.push_back(engine->add_request(request));
      }
      if (same.integer(0, 7) == 0 && !running.empty())
        engine->abort(running[static_cast<size_t>(same.integer(0, std::ssize(running) - 1))]);
      for (RequestOutput& output : engine->step().finished) {
        std::erase(running, output.request_id);
        outputs.push_back(std::move(output));
      }
    }
    testing::expect_books_closed(engine->scheduler());
    return outputs;
  };
  const auto expected = run(options), outputs = run(on_workers(options));
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i].request_id, expected[i].request_id);
    EXPECT_TRUE(same_bits(outputs[i], expected[i])) << "request " << outputs[i].request_id;
  }
}

TEST(Task7_6_Workers, TellOfTheirLoadingTogetherAndLeaveNothing) {
  const int files = testing::num_open_files(), threads = testing::num_threads();
  const auto memory = testing::files_of_memory();
  {
    EngineOptions options = on_workers(tiny({2, 1}));
    int64_t most_done = 0, last_total = 0;
    options.progress = [&](int64_t done, int64_t total) {
      EXPECT_GE(done, most_done);
      EXPECT_LE(done, total);
      most_done = done;
      last_total = total;
    };
    engine_with(options);
    int64_t total_of_one = 0;
    EngineOptions alone = tiny({1, 1});
    alone.progress = [&](int64_t, int64_t total) { total_of_one = total; };
    engine_with(alone);
    EXPECT_EQ(most_done, last_total);
    EXPECT_EQ(last_total, 2 * total_of_one);  // each rank's share of the work that it counts
  }
  EXPECT_EQ(testing::num_open_files(), files);
  EXPECT_TRUE(testing::threads_end(threads));
  EXPECT_EQ(testing::files_of_memory(), memory);
}

// A request whose prompt is longer than the ring of steps.
TEST(Task7_6_Workers, TakeAStepThatIsLongerThanTheirRing) {
  EngineOptions options = tiny({1, 1});
  Request request;
  request.prompt_token_ids = {5, 6, 7};
  request.sampling.max_tokens = 4;
  request.sampling.temperature = 0.0;
  request.sampling.logprobs = 2;
  request.sampling.ignore_eos = true;
  for (int32_t id = 0; id < 300; ++id) request.sampling.logit_bias[id] = static_cast<float>(id % 7);
  std::vector<Request> requests(200, request);
  options.runner.batch.max_num_seqs = 200;
  options.runner.batch.max_num_batched_tokens = 1024;
  const auto expected = engine_with(options)->generate(requests);
  const auto outputs = engine_with(on_workers(options))->generate(requests);
  for (size_t i = 0; i < outputs.size(); ++i) EXPECT_TRUE(same_bits(outputs[i], expected[i]));
}

}  // namespace
}  // namespace ladder
