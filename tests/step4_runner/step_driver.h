#pragma once
// A scheduler for tests of the runner: it steps a list of requests through a ModelRunner in a random manner
// (chunks, order, preemptions, shared prefixes) and collects what came out. It knows nothing of efficiency;
// step 5 does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "step4_runner/model_runner.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

struct DrivenRequest {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
};

struct DrivenResult {
  std::vector<int32_t> token_ids;                 // the output
  std::vector<std::vector<float>> logits;         // raw, one row per token of the output
  std::vector<PositionLogprobs> logprobs;         // if asked for
  std::vector<PositionLogprobs> prompt_logprobs;  // if asked for
};

struct DriveOptions {
  int64_t max_running = 1;
  int64_t max_chunk = 1 << 30;       // tokens of one sequence in one step
  bool random_chunks = false;        // 1 to max_chunk, at random
  double skip_probability = 0.0;     // that a running sequence sits a step out
  double preempt_probability = 0.0;  // per sequence and step
  bool shuffle = false;              // a new order of the batch in every step
  bool share_prefixes = false;       // full blocks of a running sequence with the same beginning are shared
  int64_t padding_rows = 0;          // in every step
};

// Requests of which several share a beginning, with every kind of sampling.
inline std::vector<DrivenRequest> random_requests(Random& random, int64_t count, int64_t vocab,
                                                  int64_t longest = 60) {
  std::vector<int32_t> common;
  for (int i = 0; i < longest; ++i) common.push_back(static_cast<int32_t>(random.integer(0, vocab - 1)));
  std::vector<DrivenRequest> requests(static_cast<size_t>(count));
  for (DrivenRequest& request : requests) {
    const int64_t length = random.integer(1, longest);
    const int64_t shared = random.integer(0, 2) ? random.integer(0, length) : 0;
    request.prompt.assign(common.begin(), common.begin() + shared);
    while (static_cast<int64_t>(request.prompt.size()) < length)
      request.prompt.push_back(static_cast<int32_t>(random.integer(0, vocab - 1)));
    SamplingParams& p = request.sampling;
    p.seed = static_cast<uint64_t>(random.integer(0, INT64_MAX));
    p.max_tokens = random.integer(1, 20);
    p.temperature = random.integer(0, 2) ? random.uniform(0.3, 1.5) : 0.0;
    if (random.integer(0, 2) == 0) p.top_k = random.integer(1, 20);
    if (random.integer(0, 2) == 0) p.top_p = random.uniform(0.3, 1.0);
    if (random.integer(0, 2) == 0) p.repetition_penalty = random.uniform(0.8, 1.5);
    if (random.integer(0, 2) == 0) p.logprobs = random.integer(0, 4);
    if (random.integer(0, 1) == 0) p.prompt_logprobs = random.integer(0, 4);
  }
  return requests;
}

inline void expect_same(const PositionLogprobs& a, const PositionLogprobs& b) {
  EXPECT_EQ(a.chosen.token_id, b.chosen.token_id);
  EXPECT_EQ(a.chosen.logprob, b.chosen.logprob);
  ASSERT_EQ(a.top.size(), b.top.size());
  for (size_t i = 0; i < a.top.size(); ++i) {
    EXPECT_EQ(a.top[i].token_id, b.top[i].token_id);
    EXPECT_EQ(a.top[i].logprob, b.top[i].logprob);
  }
}

inline void expect_same(const DrivenResult& a, const DrivenResult& b) {
  EXPECT_EQ(a.token_ids, b.token_ids);
  ASSERT_EQ(a.logits.size(), b.logits.size());
  for (size_t i = 0; i < a.logits.size(); ++i)  // bits, so that -0 is not 0
    ASSERT_EQ(std::memcmp(a.logits[i].data(), b.logits[i].data(), a.logits[i].size() * sizeof(float)), 0)
        << "logits of output token " << i << " of " << a.logits.size();
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i) expect_same(a.logprobs[i], b.logprobs[i]);
  ASSERT_EQ(a.prompt_logprobs.size(), b.prompt_logprobs.size());
  for (size_t i = 0; i < a.prompt_logprobs.size(); ++i)
    expect_same(a.prompt_logprobs[i], b.prompt_logprobs[i]);
}

// Every way to cut the same requests into steps that the tests try.
inline std::vector<DriveOptions> ways_to_drive() {
  DriveOptions together, one_token, chunks, unsteady, preempted, shared, everything, padded;
  together.max_running = 8;
  one_token.max_running = 3;
  one_token.max_chunk = 1;
  chunks.max_running = 5;
  chunks.max_chunk = 7;
  unsteady = {8, 11, true, 0.3, 0.0, true, false, 0};
  preempted = {6, 1 << 30, false, 0.0, 0.05, false, false, 0};
  shared = {6, 1 << 30, false, 0.0, 0.0, false, true, 0};
  everything = {8, 13, true, 0.1, 0.05, true, true, 0};
  padded.max_running = 8;
  padded.padding_rows = 9;
  return {together, one_token, chunks, unsteady, preempted, shared, everything, padded};
}

class StepDriver {
 public:
  // `ctx`: what the runner was made with.
  StepDriver(ModelRunner& runner, const RunnerConfig& config, Random& random, const OpContext& ctx = {})
      : runner_(runner),
        ctx_(ctx),
        config_(config),
        random_(random),
        references_(static_cast<size_t>(config.batch.num_kv_blocks)) {}

  int64_t num_shared_blocks() const { return num_shared_; }
  int64_t num_preemptions() const { return num_preemptions_; }

  std::vector<DrivenResult> run(const std::vector<DrivenRequest>& requests, const DriveOptions& options) {
    std::vector<DrivenResult> results(requests.size());
    std::vector<Running> waiting, running;
    for (size_t i = 0; i < requests.size(); ++i)
      waiting.push_back({next_id_++, i, requests[i].prompt, {}, 0, false});
    std::reverse(waiting.begin(), waiting.end());
    while (!waiting.empty() || !running.empty()) {
      SchedulerOutput step;
      step.step = num_steps_++;
      for (size_t i = running.size(); i-- > 0;) {
        if (random_.uniform(0, 1) >= options.preempt_probability) continue;
        if (running[i].known) preempted_.push_back(running[i].id);
        release(running[i]);
        running[i].known = false;
        running[i].num_computed = 0;
        waiting.push_back(running[i]);
        running.erase(running.begin() + static_cast<int64_t>(i));
        ++num_preemptions_;
      }
      while (static_cast<int64_t>(running.size()) < options.max_running && !waiting.empty()) {
        running.push_back(waiting.back());
        waiting.pop_back();
        if (options.share_prefixes) share_prefix(running.back(), running);
      }
      if (options.shuffle) std::shuffle(running.begin(), running.end(), random_.engine());

      int64_t budget = config_.batch.max_num_batched_tokens - options.padding_rows;
      std::vector<Running*> scheduled;
      for (Running& sequence : running) {
        if (budget == 0 || random_.uniform(0, 1) < options.skip_probability) continue;
        const auto left = static_cast<int64_t>(sequence.tokens.size()) - sequence.num_computed;
        int64_t count = std::min({left, budget, options.max_chunk});
        if (options.random_chunks) count = random_.integer(1, count);
        schedule(sequence, count, requests[sequence.request], step);
        scheduled.push_back(&sequence);
        budget -= count;
      }
      step.num_static_padding_rows = options.padding_rows;
      if (!scheduled.empty()) {  // a step of nothing is not submitted
        step.finished = std::exchange(finished_, {});
        step.preempted = std::exchange(preempted_, {});
        take_in(step, scheduled, requests, results);
      }
      for (size_t i = running.size(); i-- > 0;) {
        const size_t request = running[i].request;
        if (static_cast<int64_t>(results[request].token_ids.size()) < *requests[request].sampling.max_tokens)
          continue;
        finished_.push_back(running[i].id);
        release(running[i]);
        running.erase(running.begin() + static_cast<int64_t>(i));
      }
    }
    return results;
  }

 private:
  struct Running {
    SequenceId id = 0;
    size_t request = 0;
    std::vector<int32_t> tokens, table;
    int64_t num_computed = 0;
    bool known = false;
  };

  int32_t take_block() {
    std::vector<int32_t> free;
    for (size_t block = 0; block < references_.size(); ++block)
      if (references_[block] == 0) free.push_back(static_cast<int32_t>(block));
    EXPECT_FALSE(free.empty()) << "the test needs more blocks";
    const int32_t block =
        free[static_cast<size_t>(random_.integer(0, static_cast<int64_t>(free.size()) - 1))];
    ++references_[static_cast<size_t>(block)];
    return block;
  }

  void release(Running& sequence) {
    for (int32_t block : sequence.table) --references_[static_cast<size_t>(block)];
    sequence.table.clear();
  }

  // Takes the computed full blocks of another sequence as far as the tokens agree, but leaves a token to
  // compute.
  void share_prefix(Running& sequence, const std::vector<Running>& running) {
    for (const Running& other : running) {
      if (other.id == sequence.id) continue;
      int64_t same = 0;
      const auto limit =
          std::min<int64_t>(other.num_computed, static_cast<int64_t>(sequence.tokens.size()) - 1);
      while (same < limit &&
             other.tokens[static_cast<size_t>(same)] == sequence.tokens[static_cast<size_t>(same)])
        ++same;
      const int64_t blocks = same / config_.batch.block_size;
      if (blocks <= static_cast<int64_t>(sequence.table.size())) continue;
      release(sequence);
      sequence.table.assign(other.table.begin(), other.table.begin() + blocks);
      for (int32_t block : sequence.table) ++references_[static_cast<size_t>(block)];
      sequence.num_computed = blocks * config_.batch.block_size;
    }
    num_shared_ += static_cast<int64_t>(sequence.table.size());
  }

  void schedule(Running& sequence, int64_t count, const DrivenRequest& request, SchedulerOutput& step) {
    std::vector<int32_t> added;
    while (static_cast<int64_t>(sequence.table.size()) * config_.batch.block_size <
           sequence.num_computed + count) {
      added.push_back(take_block());
      sequence.table.push_back(added.back());
    }
    if (sequence.known) {
      step.continued.push_back({sequence.id, added, sequence.num_computed});
    } else {
      NewSequence added_sequence;
      added_sequence.id = sequence.id;
      added_sequence.token_ids = sequence.tokens;
      added_sequence.num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
      added_sequence.sampling = request.sampling;
      added_sequence.block_table = sequence.table;
      added_sequence.num_computed_tokens = sequence.num_computed;
      step.new_sequences.push_back(std::move(added_sequence));
      sequence.known = true;
    }
    step.scheduled.push_back({sequence.id, count, {}});
    step.total_num_tokens += count;
  }

  void take_in(const SchedulerOutput& step, const std::vector<Running*>& scheduled,
               const std::vector<DrivenRequest>& requests, std::vector<DrivenResult>& results) {
    ModelRunner::Step launching = runner_.prepare(step);
    runner_.run(launching);
    device_synchronize(ctx_.device, ctx_.stream);
    const Tensor raw = launching.logits.defined() ? launching.logits.to(Device{}).clone() : Tensor();
    runner_.sample(launching);
    StepOutput output = launching.launched->collect();
    ASSERT_EQ(output.step, step.step);
    ASSERT_EQ(output.sequences.size(), scheduled.size());
    int64_t row = 0;
    for (size_t i = 0; i < scheduled.size(); ++i) {
      Running& sequence = *scheduled[i];
      const SequenceStepOutput& got = output.sequences[i];
      DrivenResult& result = results[sequence.request];
      ASSERT_EQ(got.id, sequence.id);
      const int64_t begin = sequence.num_computed;
      sequence.num_computed += step.scheduled[i].num_tokens;
      const bool yields = sequence.num_computed == static_cast<int64_t>(sequence.tokens.size());
      ASSERT_EQ(got.token_ids.size(), yields ? 1u : 0u);
      if (yields) {
        const float* values = raw.select(0, row++).data<float>();
        result.logits.emplace_back(values, values + raw.dim(1));
        result.token_ids.push_back(got.token_ids[0]);
        sequence.tokens.push_back(got.token_ids[0]);
        if (requests[sequence.request].sampling.logprobs) {
          ASSERT_EQ(got.logprobs.size(), 1u);
          result.logprobs.push_back(got.logprobs[0]);
        }
      }
      if (!requests[sequence.request].sampling.prompt_logprobs) continue;
      const auto num_prompt = static_cast<int64_t>(requests[sequence.request].prompt.size());
      const int64_t expected = std::max<int64_t>(std::min(sequence.num_computed, num_prompt - 1) - begin, 0);
      ASSERT_EQ(static_cast<int64_t>(got.prompt_logprobs.size()), expected);
      for (int64_t p = 0; p < expected;
           ++p)  // after a preemption some come again: they must be the next ones once
        if (begin + p == static_cast<int64_t>(result.prompt_logprobs.size()))
          result.prompt_logprobs.push_back(got.prompt_logprobs[static_cast<size_t>(p)]);
    }
  }

  ModelRunner& runner_;
  OpContext ctx_;
  RunnerConfig config_;
  Random& random_;
  std::vector<int> references_;                   // per block
  std::vector<SequenceId> finished_, preempted_;  // the runner does not know yet
  SequenceId next_id_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_shared_ = 0;
  int64_t num_preemptions_ = 0;
};

}  // namespace ladder::testing
