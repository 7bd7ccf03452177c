#pragma once
// Lanes that share out a GPU's multiprocessors by a border that moves (sm_border.h): what is in flight, what it needs, and on
// which context the next step runs. Nothing here knows of a GPU: the contexts come from a maker.
//
// A step in flight stays where it was launched. The next one of its lane may run elsewhere, and waits for it (stream_order.h). Steps of
// answers are short, so their side moves at once; a prompt's side moves with its next step, and until then the two overlap.
// A lane has the whole GPU while the other one is empty. For prompts that is so when no answer is in flight and no prompt in flight
// is at its end, since its answer would begin beside the next prompt; or when the border says that steps of both are better
// (SmBorder::mixes()), and none of answers alone is in flight.
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "step8_advanced/disaggregation/partition/lane_contexts.h"
#include "step8_advanced/disaggregation/partition/sm_border.h"

namespace ladder {

// What a model's steps need, per row, per pair of a row and a key, and per step and key.
struct ModelNeeds {
  double flops_per_row = 0, flops_per_pair = 0;
  double weight_bytes = 0, bytes_per_key = 0;
};
// Of a dense model; of one with experts the operations of all of them, which the fitted rates absorb.
ModelNeeds needs_of_model(const Model& model);
// `rows` of a sequence behind `num_computed_tokens`, added to a step, whose weights are read once.
void add_rows(StepNeeds& needs, const ModelNeeds& model, int64_t rows, int64_t num_computed_tokens);

// Contexts of the two lanes: the whole GPU's, and those of every place, in their order.
struct SharedGpu {
  struct Lane {
    OpContext whole;
    std::vector<OpContext> at_place;
  };
  std::vector<SmPlace> places;
  int num_multiprocessors = 0;
  Lane prefill, decode;
  std::shared_ptr<void> owner;  // of what the contexts point to
};

class SmLanes final : public LaneContexts {
 public:
  struct Report {
    std::vector<SmPlace> places;
    FittedRates fitted;
    std::vector<MeasuredShare> measured;
    std::vector<int64_t> decode_steps, prefill_steps;  // on the whole GPU, and at each place
    int64_t num_moves = 0;
    int64_t num_mixed = 0;  // of the prefill steps, those that may have had answers in them
  };

  // With a single place the border does not move. Error: a place without contexts.
  // `tell`, which may be empty, hears of what was measured at the start and of where steps were at the end.
  SmLanes(SharedGpu gpu, const SmBorderOptions& options, std::function<void(const Report&)> tell = {});
  ~SmLanes() override;

  std::vector<OpContext> make(StepPhase phase) override;
  // Steps of 1, 8 and 32 answers and of 2,048 tokens of a prompt on every share and on the whole GPU.
  void calibrate(const Model& model, const RunnerConfig& config, const MeasureStep& measure) override;
  size_t choose(StepPhase phase, const SchedulerOutput& step) override;
  bool on_waiting(int64_t num_tokens) override;
  void on_done(StepPhase phase, double seconds) override;

  Report report() const;  // on any thread

 private:
  struct InFlight {
    StepNeeds needs, other;  // of the step, and of the one beside it when it was launched
    size_t context = 0;
    bool ends_prompt = false;
    int64_t num_left = 0;  // tokens of its prompts that come after it
  };
  struct Lane {
    std::deque<InFlight> in_flight;                   // oldest first
    std::unordered_map<SequenceId, int64_t> prompts;  // lengths of what its runner knows
    std::vector<int64_t> num_steps;                   // of each context
  };

  // Reads the step into what the lane knows.
  InFlight look_at(Lane& lane, const SchedulerOutput& step) const;
  // Operations of the prompts behind the oldest prefill step: of those that wait without what their tokens look back at.
  double waiting_flops() const;

  SharedGpu gpu_;
  SmBorderOptions options_;
  std::function<void(const Report&)> tell_;
  mutable std::mutex mutex_;
  ModelNeeds model_;
  std::optional<SmBorder> border_;  // from calibrate() on
  Lane prefill_, decode_;
  int64_t num_waiting_tokens_ = 0;  // of prompts in no step
  bool mixes_ = false;              // as the border said last
  int64_t num_mixed_ = 0;
  FittedRates fitted_;
  std::vector<MeasuredShare> measured_;
};

// The rates; before any step of an answer what they are fitted to, later where steps were.
std::string to_line(const SmLanes::Report& report);

}  // namespace ladder
