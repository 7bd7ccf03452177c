// Grids of ranks under what a server does to them: chunks, shared prefixes, preemption, aborts with steps in flight, all at
// once; and the small and odd ones. Rows of FIELD_BUGS.md (this folder's parent) are named where a test stands for one.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "step1_layers/attention/kv_codes.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step7_parallel/engine_on_grid.h"

namespace ladder {
namespace {

using testing::answers_as_one_rank;
using testing::engine_with;
using testing::GoldenCheckpoint;
using testing::Grid;
using testing::on_grid;

Request greedy_request(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.prompt_token_ids = std::move(prompt);
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 4;
  return request;
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<int, int, int>>& info) {
  const auto [tp, pp, cp] = info.param;
  return fmt::format("tp{}_pp{}{}", tp, pp, cp == 1 ? "" : fmt::format("_cp{}", cp));
}

// What the steps of an engine did.
struct Events : EngineObserver {
  void on_submit(const Engine& engine, const SchedulerOutput& step) override {
    preemptions += std::ssize(step.preempted);
    padding_rows += step.num_static_padding_rows;
    std::map<SequenceId, int64_t> computes;
    for (const ScheduledSequence& sequence : step.scheduled) computes[sequence.id] = sequence.num_tokens;
    for (const NewSequence& added : step.new_sequences) {
      hit_tokens.push_back(added.num_computed_tokens);
      chunks +=
          computes[added.id] > 0 && added.num_computed_tokens + computes[added.id] < added.num_prompt_tokens;
    }
    auto& requests = in_steps.emplace_back();
    for (const ScheduledSequence& sequence : step.scheduled)
      if (const auto owner = engine.find_owner(sequence.id)) requests.insert(owner->request_id);
  }
  void on_results(const Engine&, const StepResult&) override {}

  int64_t preemptions = 0, chunks = 0, padding_rows = 0;
  std::vector<int64_t> hit_tokens;           // of each sequence that came
  std::deque<std::set<RequestId>> in_steps;  // whose sequences are in each step
};

class GridCrowd : public ::testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(GridCrowd, WhoIsNotAbortedGetsWhatOneRankGives) {
  const auto [tp, pp, cp] = GetParam();
  const Grid grid{tp, pp, cp};
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
  options.runner.batch.block_size = 4;
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = 26;
  options.runner.batch.max_num_seqs = 6;
  options.runner.batch.max_num_batched_tokens = 12;
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const auto ids = [&](int64_t count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) id = static_cast<int32_t>(random.integer(300, 2000));
    return ids;
  };
  // A beginning of two blocks that all share, of which two go on for two more that half of them share each.
  const auto with = [](std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const std::vector<int32_t> first = ids(8);
  const std::vector<std::vector<int32_t>> second = {with(first, ids(8)), with(first, ids(8))};
  std::vector<Request> requests;
  for (int i = 0; i < 28; ++i) {
    requests.push_back(greedy_request(
        with(i % 7 == 0 ? first : second[static_cast<size_t>(i % 2)], ids(random.integer(1, 14))),
        random.integer(4, 24)));
    requests.back().request_id = std::to_string(i);
    if (i % 6 == 5) requests.back().sampling.n = 2;
    if (i % 5 == 3) requests.back().sampling.prompt_logprobs = 2;
  }
  const auto expected = engine_with(options)->generate(requests);

  const std::unique_ptr<Engine> engine = engine_with(on_grid(options, grid));
  const auto events = std::make_shared<Events>();
  engine->add_observer(events);
  std::map<RequestId, RequestOutput> outputs;
  std::set<RequestId> aborted, aborted_in_flight;
  size_t added = 0;
  for (int steps = 1; outputs.size() < requests.size(); ++steps) {
    for (int i = 0; i < 3 && added < requests.size() && added < outputs.size() + 10; ++i)
      engine->add_request(requests[added++]);
    for (RequestOutput& output : engine->step().finished) outputs[output.request_id] = output;
    if (steps % 7 != 0) continue;
    std::set<RequestId> in_flight;
    for (int64_t i = 0; i < engine->num_steps_in_flight(); ++i)
      in_flight.merge(std::set(events->in_steps[events->in_steps.size() - 1 - static_cast<size_t>(i)]));
    if (!in_flight.empty() && aborted.size() < 6) {
      const RequestId id = *std::next(in_flight.begin(), random.integer(0, std::ssize(in_flight) - 1));
      engine->abort(id);
      aborted.insert(id);
    }
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestOutput& output = outputs.at(requests[i].request_id);
    const auto was_aborted =
        std::any_of(output.completions.begin(), output.completions.end(),
                    [](const auto& one) { return one.finish_reason == FinishReason::abort; });
    if (was_aborted) {
      aborted_in_flight.insert(output.request_id);
      continue;
    }
    EXPECT_TRUE(answers_as_one_rank(expected[i], output, grid, fmt::format("request {}", i)));
  }
  testing::expect_books_closed(engine->scheduler());
  // It was that crowded.
  EXPECT_GT(events->preemptions, 0);
  EXPECT_GT(events->chunks, 0);
  EXPECT_GT(std::count(events->hit_tokens.begin(), events->hit_tokens.end(), 8), 0) << "the first beginning";
  EXPECT_GT(
      std::count_if(events->hit_tokens.begin(), events->hit_tokens.end(), [](auto n) { return n >= 16; }), 0)
      << "the second beginning";
  if (grid.pp > 1) {
    EXPECT_GT(aborted_in_flight.size(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, GridCrowd,
                         ::testing::Values(std::tuple(1, 2, 1), std::tuple(1, 4, 1), std::tuple(2, 1, 1),
                                           std::tuple(2, 2, 1), std::tuple(4, 2, 1)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Task7_12_ContextRanks, GridCrowd,
                         ::testing::Values(std::tuple(1, 1, 2), std::tuple(1, 1, 4), std::tuple(2, 1, 2),
                                           std::tuple(1, 2, 2)),
                         name_of);

// Field bugs vLLM 51984 and SGLang 39899: ranks for which there is little or nothing to do. A prompt of one token; one
// token asked for; a prompt in chunks, in whose first steps nobody samples.
class OneRequest : public ::testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(OneRequest, OnManyRanks) {
  const auto [tp, pp, cp] = GetParam();
  const Grid grid{tp, pp, cp};
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
  options.runner.batch.max_num_batched_tokens = 16;
  const std::unique_ptr<Engine> alone = engine_with(options), engine = engine_with(on_grid(options, grid));
  const std::vector<int32_t> prompt(33, 700);
  for (const Request& request : {greedy_request({700}, 1), greedy_request({701}, 5),
                                 greedy_request(prompt, 1), greedy_request(prompt, 4)})
    EXPECT_TRUE(answers_as_one_rank(
        alone->generate({request})[0], engine->generate({request})[0], grid,
        fmt::format("{} of {}", request.sampling.max_tokens.value(), request.prompt_token_ids.size())));
}

INSTANTIATE_TEST_SUITE_P(Grids, OneRequest,
                         ::testing::Values(std::tuple(8, 1, 1), std::tuple(1, 8, 1), std::tuple(4, 2, 1),
                                           std::tuple(2, 4, 1)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Task7_12_ContextRanks, OneRequest,
                         ::testing::Values(std::tuple(1, 1, 8), std::tuple(2, 1, 4), std::tuple(1, 4, 2)),
                         name_of);

// Field bug SGLang 26133: rows that are no tokens, whose content is anything, change no answer. Here the rows of static
// batching, through every collective.
TEST(Grids, RowsOfPaddingChangeNoAnswer) {
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
  options.enable_prefix_caching = false;
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i)
    requests.push_back(
        greedy_request(std::vector<int32_t>(static_cast<size_t>(1 + 3 * i), 600 + i), 3 + 2 * i));
  const auto expected = engine_with(options)->generate(requests);
  options.static_batching = true;
  for (const Grid grid : {Grid{2, 1}, Grid{1, 2}, Grid{2, 2}}) {
    const std::unique_ptr<Engine> engine = engine_with(on_grid(options, grid));
    const auto events = std::make_shared<Events>();
    engine->add_observer(events);
    const auto outputs = engine->generate(requests);
    EXPECT_GT(events->padding_rows, 0);
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(
          answers_as_one_rank(expected[i], outputs[i], grid,
                              fmt::format("tensor {} x pipeline {}, request {}", grid.tp, grid.pp, i)));
  }
}

// Each rank rounds the heads that it has, four ranks of two heads the same ones twice (step 8). Sums of ranks move a number over the
// middle between two codes now and then.
TEST(Grids, KeepTheCodesOfOneRank) {
  const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / "qwen3_sharded");
  EngineOptions options =
      testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len);
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  for (const KvCacheDType kept_as : {KvCacheDType::fp8, KvCacheDType::int8, KvCacheDType::int4}) {
    options.runner.kv_cache_dtype = kept_as;
    const auto expected = engine_with(options)->generate(requests);
    for (const Grid grid : {Grid{1, 2}, Grid{2, 1}, Grid{4, 1}, Grid{2, 2}}) {
      const auto outputs = engine_with(on_grid(options, grid))->generate(requests);
      for (size_t i = 0; i < outputs.size(); ++i) {
        const std::string what = fmt::format("{}, tensor {} x pipeline {}, request {}",
                                             kv_cache_dtype_name(kept_as), grid.tp, grid.pp, i);
        if (grid.tp == 1)
          EXPECT_TRUE(testing::same_bits(outputs[i], expected[i])) << what;
        else
          EXPECT_TRUE(
              testing::equal_or_near_tie(expected[i].completions[0], outputs[i].completions[0], 1e-2, what));
        EXPECT_NEAR(outputs[i].completions[0].logprobs[0].chosen.logprob,
                    expected[i].completions[0].logprobs[0].chosen.logprob, 1e-2)
            << what;
      }
    }
  }
}

TEST(Grids, AnySplitOfTheLayersGivesTheSameBits) {
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i)
    requests.push_back(greedy_request(std::vector<int32_t>(static_cast<size_t>(5 + 9 * i), 600 + i), 8));
  const auto expected = engine_with(options)->generate(requests);
  for (const std::vector<int64_t>& ends :
       std::vector<std::vector<int64_t>>{{1, 8}, {7, 8}, {1, 2, 8}, {6, 7, 8}, {1, 7, 8}, {1, 2, 3, 8}}) {
    EngineOptions split = on_grid(options, {1, static_cast<int>(ends.size())});
    split.runner.stage_ends = ends;
    const auto outputs = engine_with(split)->generate(requests);
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(testing::same_bits(outputs[i], expected[i]))
          << ::testing::PrintToString(ends) << ", request " << i;
  }
}

// Field bugs vLLM 33701 and 53402 (a token broadcast without its receiver), SGLang 36802 (a layer that is summed over
// another group): not only are the calls of all ranks alike, which the end of each engine here asks (WatchedExecutor), they
// are those that a step needs.
TEST(Grids, AStepMakesTheCallsThatItNeedsAndNoOther) {
  EngineOptions options = on_grid(testing::small_options(testing::tiny_model(), DeviceType::cpu, 64), {2, 2});
  options.runner.check_batches = false;
  options.runner.stage_ends = {5, 8};
  const std::unique_ptr<Engine> engine = engine_with(options);
  const auto& trace = dynamic_cast<testing::WatchedExecutor&>(engine->executor()).trace();
  const auto since = [](const CallTrace& group, size_t begin) {
    std::map<std::string, int> counts;
    const auto calls = group.calls(0);
    for (size_t i = begin; i < calls.size(); ++i) ++counts[calls[i].str()];
    return counts;
  };
  std::vector<size_t> before;  // the warm-up's
  for (const CallTrace* group :
       {&trace.tensor_group(0), &trace.tensor_group(1), &trace.column(0), &trace.column(1)})
    before.push_back(group->calls(0).size());
  engine->generate({greedy_request({600, 601, 602}, 1)});
  using Counts = std::map<std::string, int>;
  const std::string hidden = fmt::format("f32[3, {}]", load_decoder_spec(options.model).hidden_size);
  // The embedding; attention and MLP of five layers, each with the norm behind it but the last, whose norm is the next
  // stage's. Then those of three layers, and the logits where one samples, whose token all get.
  EXPECT_EQ(since(trace.tensor_group(0), before[0]),
            (Counts{{"all_reduce " + hidden, 2}, {"all_reduce_add_norm " + hidden, 9}}));
  EXPECT_EQ(since(trace.tensor_group(1), before[1]), (Counts{{"all_reduce_add_norm " + hidden, 6},
                                                             {"gather f32[1, 1536] to 0", 1},
                                                             {"broadcast i32[1] of 0", 1}}));
  EXPECT_EQ(since(trace.column(0), before[2]), (Counts{{"send " + hidden + " to 1", 1}}));
  EXPECT_EQ(since(trace.column(1), before[3]), (Counts{{"send " + hidden + " to 1", 1}}));
}

}  // namespace
}  // namespace ladder
