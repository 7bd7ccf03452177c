// Task 4.1: the steps of a scheduler, one in flight, laid out by the worker's batch and by ours. The block tables are
// what the worker's own updates make of them: an entry that it does not tell is missing here, as it would be on a GPU.
#include <deque>
#include <optional>

#include "bench/course_counts/judges.h"
#include "bench/course_counts/step_json.h"
#include "step4_runner/batch.h"
#include "step5_scheduler/scheduler.h"
#include "tests/step5_scheduler/kv_simulator.h"

namespace ladder::course {
namespace {

constexpr int64_t kVocab = 1000;

template <class T>
void expect_equal(const json& answer, const char* name, const T* expected, int64_t count) {
  if (answer.at(name).get<std::vector<T>>() != std::vector<T>(expected, expected + count))
    throw WorkerError(std::string("the batch's ") + name + " are wrong");
}

}  // namespace

Counts judge_batch(Worker& worker, Random& random) {
  SchedulerConfig config;
  config.batch = {.max_num_seqs = 12,
                  .max_num_batched_tokens = 96,
                  .max_model_len = 400,
                  .block_size = 4,
                  .num_kv_blocks = 700};
  config.vocab_size = kVocab;
  config.prefix_cache_seed = 1;
  Scheduler scheduler(config);
  KvSimulator simulator(config.batch.num_kv_blocks, config.batch.block_size, kVocab, 1);
  Batch batch(config.batch, kVocab);
  worker.ask({{"do", "make"}, {"worker", "batch"}, {"batch", config.batch}, {"vocab_size", kVocab}});
  std::vector<std::vector<int32_t>> tables(static_cast<size_t>(config.batch.max_num_seqs));
  for (auto& row : tables) row.resize(static_cast<size_t>(config.batch.max_blocks_per_seq()), -1);
  Counts counts = {{"rows", 0}, {"table_entries", 0}, {"allocations", 0}};
  const auto add = [&] {
    std::vector<int32_t> prompt(static_cast<size_t>(integer(random, 10, 150)));
    for (int32_t& token : prompt) token = static_cast<int32_t>(integer(random, 0, kVocab - 1));
    SamplingParams sampling;
    sampling.temperature = 0;
    sampling.seed = 1;
    sampling.max_tokens = integer(random, 10, 80);
    scheduler.add(prompt, sampling);
  };
  std::deque<Ticket> tickets;
  std::deque<PendingTokens> pending;
  std::optional<std::vector<int32_t>> tokens;  // of the oldest of `pending`, once its step is collected
  const auto collect = [&] {
    StepOutput collected = simulator.collect(tickets.front());
    tickets.pop_front();
    tokens.emplace();
    for (const SequenceStepOutput& sequence : collected.sequences)
      tokens->insert(tokens->end(), sequence.token_ids.begin(), sequence.token_ids.end());
    scheduler.update(std::move(collected));
  };
  SchedulerOutput step;
  for (int64_t number = 0; number < 250; ++number) {
    if (number % 8 == 0) add(), add();
    scheduler.schedule(step);
    if (step.empty()) break;  // all are done; rare
    tickets.push_back(simulator.submit(step));
    const json answer =
        worker.ask({{"do", "step"}, {"step", step}, {"tokens", tokens ? json(*tokens) : json()}});
    if (tokens) {
      batch.fill(pending.front(), *tokens);
      pending.pop_front();
      tokens.reset();
    }
    batch.prepare(step);
    const AttentionMetadata& m = batch.attention();
    expect_equal(answer, "input_ids", batch.input_ids().data<int32_t>(), batch.input_ids().numel());
    expect_equal(answer, "positions", batch.positions().data<int32_t>(), batch.positions().numel());
    expect_equal(answer, "slots", m.slot_mapping.data<int64_t>(), m.slot_mapping.numel());
    expect_equal(answer, "starts", m.query_start_loc.data<int32_t>(), m.query_start_loc.numel());
    expect_equal(answer, "lengths", m.seq_lens.data<int32_t>(), m.seq_lens.numel());
    expect_equal(answer, "indices", batch.logits_indices().data(), std::ssize(batch.logits_indices()));
    for (const json& update : answer.at("updates")) {
      const auto entries = update.at(2).get<std::vector<int32_t>>();
      std::vector<int32_t>& row = tables.at(update.at(0).get<size_t>());
      const auto begin = update.at(1).get<int64_t>();
      if (begin < 0 || begin + std::ssize(entries) > std::ssize(row))
        throw WorkerError("a table update out of bounds");
      std::copy(entries.begin(), entries.end(), row.begin() + begin);
      counts["table_entries"] += std::ssize(entries);
    }
    for (size_t i = 0; i < batch.sequences().size(); ++i) {
      const std::vector<int32_t>& table = batch.sequences()[i]->block_table;
      if (!std::equal(table.begin(), table.end(), tables[i].begin()))
        throw WorkerError("row " + std::to_string(i) + " of the block tables is wrong after the updates");
    }
    counts["rows"] += std::ssize(answer.at("input_ids"));
    counts["allocations"] += answer.at("allocations").get<int64_t>();
    pending.push_back(batch.advance());
    if (std::ssize(tickets) == 2) collect();
  }
  return counts;
}

}  // namespace ladder::course
