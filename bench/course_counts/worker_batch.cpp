// Worker of tasks 4.1: the batch, step after step.
#include <deque>

#include "bench/course_counts/allocations.h"
#include "bench/course_counts/step_json.h"
#include "bench/course_counts/workers.h"
#include "step4_runner/batch.h"

namespace ladder::course {
namespace {

using nlohmann::json;

template <class T>
std::vector<T> values(const Tensor& tensor) {
  return {tensor.data<T>(), tensor.data<T>() + tensor.numel()};
}

class BatchWorker final : public CountedWorker {
 public:
  explicit BatchWorker(const json& settings)
      : batch_(settings.at("batch").get<BatchConfig>(), settings.at("vocab_size")) {}

  // A step, and the tokens of the step before the one before, if these are known now: answers the rows that it has.
  json handle(const json& request) override {
    const auto step = request.at("step").get<SchedulerOutput>();
    std::vector<int32_t> tokens;
    if (!request.at("tokens").is_null()) request.at("tokens").get_to(tokens);
    int64_t allocations = 0;
    {
      const Counting counting(allocations);
      if (!request.at("tokens").is_null()) batch_.fill(pending_.front(), tokens);
      batch_.prepare(step);
    }
    if (!request.at("tokens").is_null()) pending_.pop_front();
    const AttentionMetadata& m = batch_.attention();
    json updates = json::array();
    for (const TableUpdate& update : batch_.table_updates()) {
      const Tensor row =
          m.block_tables.select(0, update.row).narrow(0, update.begin, update.end - update.begin);
      updates.push_back({update.row, update.begin, values<int32_t>(row)});
    }
    const auto indices = batch_.logits_indices();
    json answer = {{"input_ids", values<int32_t>(batch_.input_ids())},
                   {"positions", values<int32_t>(batch_.positions())},
                   {"slots", values<int64_t>(m.slot_mapping)},
                   {"starts", values<int32_t>(m.query_start_loc)},
                   {"lengths", values<int32_t>(m.seq_lens)},
                   {"indices", std::vector<int64_t>(indices.begin(), indices.end())},
                   {"updates", updates}};
    {
      const Counting counting(allocations);
      pending_.push_back(batch_.advance());
    }
    answer["allocations"] = allocations;
    return answer;
  }

 private:
  Batch batch_;
  std::deque<PendingTokens> pending_;  // launched, their tokens not known
};

}  // namespace

std::unique_ptr<CountedWorker> make_batch_worker(const json& settings) {
  return std::make_unique<BatchWorker>(settings);
}

}  // namespace ladder::course
