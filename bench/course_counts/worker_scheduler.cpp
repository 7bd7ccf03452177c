// Worker of tasks 5.1 to 5.5: a scheduler that is told of requests and of tokens, and says what each step computes.
#include "bench/course_counts/step_json.h"
#include "bench/course_counts/workers.h"
#include "step5_scheduler/scheduler.h"

namespace ladder::course {
namespace {

using nlohmann::json;

class SchedulerWorker final : public CountedWorker {
 public:
  explicit SchedulerWorker(const json& settings) : scheduler_(config(settings)) {}

  json handle(const json& request) override {
    const std::string what = request.at("do");
    if (what == "add")
      return {{"ids", scheduler_.add(request.at("prompt"), request.at("sampling").get<SamplingParams>())}};
    if (what == "schedule") {
      scheduler_.schedule(output_);
      return {{"output", output_}};
    }
    json updates = json::array();
    for (const SequenceUpdate& update : scheduler_.update(request.at("answer").get<StepOutput>()))
      updates.push_back({update.id, update.new_token_ids, update.finish_reason != FinishReason::none});
    return {{"updates", updates}, {"unfinished", scheduler_.has_unfinished()}};
  }

 private:
  static SchedulerConfig config(const json& settings) {
    SchedulerConfig config;
    settings.at("batch").get_to(config.batch);
    config.vocab_size = settings.at("vocab_size");
    config.static_batching = settings.at("static");
    config.max_num_partial_prefills = settings.at("partial_prefills");
    config.long_prefill_token_threshold = settings.at("long_prefill");
    if (settings.at("priorities").get<bool>()) config.policy = SchedulingPolicy::priority;
    config.prefix_cache_seed = 1;
    return config;
  }

  Scheduler scheduler_;
  SchedulerOutput output_;
};

}  // namespace

std::unique_ptr<CountedWorker> make_scheduler_worker(const json& settings) {
  return std::make_unique<SchedulerWorker>(settings);
}

}  // namespace ladder::course
