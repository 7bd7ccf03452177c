// Task 6.1: a storm of random requests and random aborts on a cache that is too small for them, with a real
// model on each device. At the end the books must balance: every request that was not aborted has an answer, and nothing is
// held, known or in flight.
#include <gtest/gtest.h>
#include <algorithm>

#include <map>
#include <set>

#include "tests/step5_scheduler/harness.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/support/model_devices.h"

namespace ladder {
namespace {

using testing::Random;

struct Storm {
  DeviceType device;
  DType dtype;
  int num_requests;
};

class RandomRequests : public ::testing::TestWithParam<Storm> {
 protected:
  void SetUp() override { testing::need_device(GetParam().device); }
};

constexpr int64_t kMaxModelLen = 192;

EngineOptions cramped_options(const Storm& storm) {
  EngineOptions options = testing::small_options(testing::tiny_model(), storm.device, kMaxModelLen);
  options.dtype = storm.dtype;
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = 48;  // 768 tokens, for 24 sequences of 110 on average
  options.runner.batch.max_num_seqs = 24;
  options.runner.batch.max_num_batched_tokens = 128;
  options.runner.threads = 0;
  return options;
}

std::vector<int32_t> random_ids(Random& random, int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.integer(0, 3000));
  return ids;
}

Request random_request(Random& random, const std::vector<int32_t>& shared_prefix) {
  Request request;
  SamplingParams& sampling = request.sampling;
  if (random.integer(0, 2) == 0)
    request.prompt_token_ids.assign(shared_prefix.begin(), shared_prefix.begin() + random.integer(1, 64));
  const auto own = random_ids(random, random.integer(1, 60));
  request.prompt_token_ids.insert(request.prompt_token_ids.end(), own.begin(), own.end());
  sampling.max_tokens = random.integer(1, 60);
  sampling.temperature = random.integer(0, 3) == 0 ? 0.0 : random.uniform(0.1, 1.5);
  sampling.seed = static_cast<uint64_t>(random.integer(0, 1 << 30));
  if (random.integer(0, 3) == 0) sampling.top_k = random.integer(1, 50);
  if (random.integer(0, 3) == 0) sampling.top_p = random.uniform(0.1, 1.0);
  if (random.integer(0, 7) == 0) sampling.min_p = random.uniform(0.0, 0.2);
  if (random.integer(0, 7) == 0) sampling.repetition_penalty = random.uniform(0.8, 1.5);
  if (random.integer(0, 7) == 0) sampling.presence_penalty = random.uniform(-1.0, 1.0);
  if (random.integer(0, 7) == 0) sampling.logprobs = random.integer(0, 5);
  if (random.integer(0, 15) == 0) sampling.prompt_logprobs = random.integer(0, 2);
  if (random.integer(0, 7) == 0) sampling.n = random.integer(2, 4);
  if (random.integer(0, 3) == 0) sampling.stop_token_ids = random_ids(random, 40);
  if (random.integer(0, 7) == 0) sampling.stop = {"e", "the"};
  sampling.ignore_eos = random.integer(0, 1) == 0;
  sampling.priority = random.integer(0, 2);
  return request;
}

void expect_answers(const Request& request, const RequestOutput& output) {
  const SamplingParams& sampling = request.sampling;
  ASSERT_EQ(output.completions.size(), static_cast<size_t>(sampling.n));
  const auto prompt = static_cast<int64_t>(request.prompt_token_ids.size());
  for (const CompletionOutput& completion : output.completions) {
    const auto count = static_cast<int64_t>(completion.token_ids.size());
    EXPECT_GE(count, 1);
    EXPECT_LE(count, std::min(*sampling.max_tokens, kMaxModelLen - prompt));
    EXPECT_NE(completion.finish_reason, FinishReason::none);
    if (completion.finish_reason == FinishReason::length) {
      EXPECT_EQ(count, std::min(*sampling.max_tokens, kMaxModelLen - prompt));
    }
    EXPECT_EQ(completion.logprobs.size(), sampling.logprobs ? completion.token_ids.size() : 0u);
  }
  EXPECT_EQ(output.prompt_logprobs.size(), sampling.prompt_logprobs ? static_cast<size_t>(prompt - 1) : 0u);
}

TEST_P(RandomRequests, TheBooksBalanceAfterAbortsAndPreemptions) {
  const Storm storm = GetParam();
  Random random;
  SCOPED_TRACE(random.describe());
  const std::unique_ptr<Engine> engine = testing::engine_with(cramped_options(storm));
  const std::vector<int32_t> shared_prefix = random_ids(random, 64);

  // Greedy requests whose answer is known, to be found again in the middle of the storm.
  std::vector<Request> known;
  std::vector<std::vector<int32_t>> known_answers;
  for (int i = 0; i < 8; ++i) {
    Request& request = known.emplace_back(random_request(random, shared_prefix));
    request.sampling = {};
    request.sampling.temperature = 0.0;
    request.sampling.max_tokens = random.integer(10, 60);
    request.sampling.ignore_eos = true;
    known_answers.push_back(engine->generate({request})[0].completions[0].token_ids);
  }

  struct Pending {
    Request request;
    int known = -1;
  };
  std::map<RequestId, Pending> pending;
  std::set<RequestId> taken_back;  // aborted, and their outputs have not come
  std::vector<RequestId> seen;
  int64_t added = 0, finished = 0, aborted = 0, num_steps = 0, num_known = 0;
  while (added < storm.num_requests || engine->has_unfinished()) {
    // Requests come in bursts, so that the queue is long at times and empty at others.
    for (int64_t burst = random.integer(0, 20) == 0 ? random.integer(1, 60) : 0;
         burst > 0 && added < storm.num_requests; --burst, ++added) {
      const int which = random.integer(0, 9) == 0 ? static_cast<int>(random.integer(0, 7)) : -1;
      Pending one{which >= 0 ? known[static_cast<size_t>(which)] : random_request(random, shared_prefix),
                  which};
      const RequestId id = engine->add_request(one.request);
      pending.emplace(id, std::move(one));
      seen.push_back(id);
    }
    if (!seen.empty() && random.integer(0, 4) == 0) {
      const RequestId id = seen[static_cast<size_t>(random.integer(0, std::ssize(seen) - 1))];
      // Most of them have long ended; the newest are worth another try.
      const RequestId victim = random.integer(0, 1) == 0 ? id : seen.back();
      engine->abort(victim);
      if (pending.erase(victim) > 0) taken_back.insert(victim);
    }
    const StepResult result = engine->step();
    ++num_steps;
    for (const CompletionUpdate& update : result.updates)
      ASSERT_TRUE(pending.contains(update.request_id) || taken_back.contains(update.request_id))
          << "an update for a request that has ended";
    for (const RequestOutput& output : result.finished) {
      if (taken_back.erase(output.request_id) > 0) {
        // Some of its completions may have ended before; a request all of whose did would not be taken back.
        EXPECT_TRUE(std::any_of(
            output.completions.begin(), output.completions.end(),
            [](const auto& completion) { return completion.finish_reason == FinishReason::abort; }));
        ++aborted;
        continue;
      }
      const auto position = pending.find(output.request_id);
      ASSERT_NE(position, pending.end()) << "a request has ended twice";
      expect_answers(position->second.request, output);
      // In f32 nothing around a request changes a bit of it.
      if (const int which = position->second.known; which >= 0 && storm.dtype == DType::f32) {
        EXPECT_EQ(output.completions[0].token_ids, known_answers[static_cast<size_t>(which)]);
        ++num_known;
      }
      pending.erase(position);
      ++finished;
    }
    if (num_steps % 50 == 0) expect_books_balance(engine->scheduler());
    if (::testing::Test::HasFailure()) return;
  }

  EXPECT_TRUE(pending.empty());
  EXPECT_TRUE(taken_back.empty());
  EXPECT_EQ(finished + aborted, storm.num_requests);
  EXPECT_GT(aborted, storm.num_requests / 20);
  const Scheduler& scheduler = engine->scheduler();
  const SchedulerStats stats = scheduler.stats();
  EXPECT_GT(stats.num_preemptions, storm.num_requests / 20);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(scheduler.num_steps_in_flight(), 0);
  EXPECT_EQ(scheduler.blocks().num_used_blocks(), 0);
  EXPECT_TRUE(scheduler.block_tables().empty());
  expect_books_balance(scheduler);
  for (SequenceId id = 0; id < 4 * (storm.num_requests + 8); ++id)
    ASSERT_EQ(scheduler.find(id), nullptr) << "sequence " << id << " is still known";
  std::printf(
      "%lld requests, %lld finished, %lld aborted, %lld known answers, %lld preemptions, %lld steps\n",
      static_cast<long long>(storm.num_requests), static_cast<long long>(finished),
      static_cast<long long>(aborted), static_cast<long long>(num_known),
      static_cast<long long>(stats.num_preemptions), static_cast<long long>(num_steps));
}

INSTANTIATE_TEST_SUITE_P(Devices, RandomRequests,
                         ::testing::Values(Storm{DeviceType::cpu, DType::f32, 400},
                                           Storm{DeviceType::cuda, DType::f32, 2000},
                                           Storm{DeviceType::cuda, DType::bf16, 10000}),
                         [](const auto& info) {
                           return testing::device_word(info.param.device) + "_" +
                                  std::string(dtype_name(info.param.dtype));
                         });

}  // namespace
}  // namespace ladder
