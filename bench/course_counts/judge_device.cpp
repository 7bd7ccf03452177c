// Task 4.5: copies and waits of the host, on the fake device. What arrives is checked: the sums that the device made, and
// the tokens that the model must say after those before them.
#include <algorithm>
#include <deque>
#include <map>

#include "bench/course_counts/judges.h"
#include "bench/course_counts/step_json.h"
#include "step5_scheduler/scheduler.h"
#include "tests/step4_runner/fake_model.h"

namespace ladder::course {
namespace {

void add(Counts& counts, const json& answer) {
  for (const char* name : {"copies", "bytes", "waits"}) {
    const auto count = answer.at("counts").at(name).get<int64_t>();
    if (count < 0) throw WorkerError(std::string("a negative number of ") + name);
    counts[name] += count;
  }
}

constexpr int64_t kVocab = 97;  // of fake_spec()

// What the fake model says after these tokens, greedily.
int32_t next_token(const std::vector<int32_t>& tokens) {
  const std::vector<float> logits = testing::fake_logits(tokens, kVocab);
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

Counts judge_copies(Worker& worker, Random& random) {
  worker.ask({{"do", "make"}, {"worker", "copies"}});
  Counts counts = {{"copies", 0}, {"bytes", 0}, {"waits", 0}};
  std::deque<std::vector<int32_t>> expected;
  int64_t staged = 0;
  for (int64_t step = 0; step < 60; ++step) {
    std::vector<std::vector<int32_t>> lists(static_cast<size_t>(integer(random, 2, 6)));
    std::vector<int32_t> sums;
    for (auto& list : lists) {
      // Longer and longer: a slot that grows by what is missing grows in every step.
      list.resize(static_cast<size_t>(integer(random, 1, 400) + 60 * step));
      uint32_t sum = 0;
      for (int32_t& value : list) {
        value = static_cast<int32_t>(random());
        sum = 31 * sum + static_cast<uint32_t>(value);
      }
      sums.push_back(static_cast<int32_t>(sum));
      staged += std::ssize(list) * 4;
    }
    const json answer = worker.ask({{"do", "step"}, {"lists", lists}});
    add(counts, answer);
    if (expected.size() == 2) {
      if (answer.at("sums") != json(expected.front())) throw WorkerError("the device was sent other numbers");
      expected.pop_front();
    }
    expected.push_back(sums);
  }
  // No way to bring them there with less.
  if (counts["copies"] < 2 * 60 || counts["bytes"] < staged)
    throw WorkerError("fewer copies than there were steps");
  return counts;
}

Counts judge_ahead(Worker& worker, Random& random) {
  SchedulerConfig config;
  config.batch = {.max_num_seqs = 8,
                  .max_num_batched_tokens = 48,
                  .max_model_len = 128,
                  .block_size = 4,
                  .num_kv_blocks = 300};
  config.vocab_size = kVocab;
  config.prefix_cache_seed = 1;
  Scheduler scheduler(config);
  worker.ask({{"do", "make"}, {"worker", "runner"}, {"batch", config.batch}});
  std::map<SequenceId, std::vector<int32_t>> sequences;
  for (int i = 0; i < 24; ++i) {
    std::vector<int32_t> prompt(static_cast<size_t>(integer(random, 3, 60)));
    for (int32_t& token : prompt) token = static_cast<int32_t>(integer(random, 0, kVocab - 1));
    SamplingParams sampling;
    sampling.temperature = 0;
    sampling.seed = 1;
    sampling.max_tokens = integer(random, 5, 40);
    sequences[scheduler.add(prompt, sampling)[0]] = prompt;
  }
  Counts counts = {{"copies", 0}, {"bytes", 0}, {"waits", 0}};
  SchedulerOutput step;
  int64_t in_flight = 0, num_steps = 0;
  while (scheduler.has_unfinished() || in_flight > 0) {
    bool launched = false;
    if (in_flight < 2) {
      scheduler.schedule(step);
      launched = !step.empty();
    }
    if (launched) {
      add(counts, worker.ask({{"do", "launch"}, {"step", step}}));
      ++in_flight;
      ++num_steps;
    }
    if (in_flight == 0 || (launched && in_flight < 2)) continue;
    const json answer =
        worker.ask({{"do", "collect"}});  // which waits, as it must: only launches are counted
    --in_flight;
    auto collected = answer.at("answer").get<StepOutput>();
    for (const SequenceStepOutput& sequence : collected.sequences)
      for (const int32_t token : sequence.token_ids) {
        const auto found = sequences.find(sequence.id);
        if (found == sequences.end()) throw WorkerError("tokens of a sequence that is none");
        if (token != next_token(found->second))
          throw WorkerError("sequence " + std::to_string(sequence.id) +
                            " has another token than the model said");
        found->second.push_back(token);
      }
    scheduler.update(std::move(collected));
  }
  if (counts["copies"] < num_steps) throw WorkerError("fewer copies than there were steps");
  return counts;
}

}  // namespace ladder::course
