#pragma once
// Task 6.3: what a request and a step took.
//
// Times are seconds on a steady clock that the engine hands in, so tests need not wait. The names are the
// field's:
//
//   arrival        first scheduled        first token        second ...        last
//      |---- queue ----|                       |                 |               |
//      |------- time to first token -----------|-- inter-token --|     ...       |
//      |------------------------------ end to end -------------------------------|
#include <cstdint>
#include <map>
#include <vector>

#include "step3_sequence/step_phase.h"
#include "step6_engine/metrics/serving_metrics.h"

namespace ladder {

struct RequestMetrics {
  int64_t num_prompt_tokens = 0;
  int64_t num_output_tokens = 0;  // of all completions
  int64_t num_cached_tokens = 0;  // prompt tokens whose K and V came from the prefix cache, first completion
  int64_t num_preemptions = 0;
  double queue_seconds = 0.0;             // arrival to the first step that computed something for the request
  double time_to_first_token = 0.0;       // arrival to the first token of any completion
  double inter_token_latency_mean = 0.0;  // over the gaps between tokens of one completion; 0: there was none
  double inter_token_latency_max = 0.0;
  double end_to_end_seconds = 0.0;  // arrival to the last token
};

// Turns the moments of one request's life into its metrics. Calls come in the order of time.
class RequestTimer {
 public:
  explicit RequestTimer(double arrival) : arrival_(arrival) {}

  void on_scheduled(double now);  // only the first call counts
  // `count` tokens of a completion arrive together; 0: nothing has happened. They share the wait since that
  // completion's last token evenly: as many gaps, each a part of it. Its first tokens have no wait before them.
  void on_tokens(int64_t completion, int64_t count, double now);
  // Fills the time fields (0 where what they measure has not happened) and num_output_tokens; the rest of
  // `metrics` is kept.
  void fill(RequestMetrics& metrics) const;
  double arrival() const { return arrival_; }

  double first_token() const { return first_token_; }  // -1: there was none
  double last_token(int64_t completion) const {        // -1: there was none
    return static_cast<size_t>(completion) < last_token_of_.size()
               ? last_token_of_[static_cast<size_t>(completion)]
               : -1.0;
  }

 private:
  double arrival_;
  double first_scheduled_ = -1.0;
  double first_token_ = -1.0;
  double last_token_ = -1.0;
  std::vector<double> last_token_of_;  // per completion
  int64_t num_tokens_ = 0;
  int64_t num_gaps_ = 0;
  double gap_sum_ = 0.0;
  double gap_max_ = 0.0;
};

struct StepMetrics {
  int64_t step = 0;
  int64_t num_tokens = 0;   // rows computed
  int64_t num_running = 0;  // sequences scheduled in this step
  int64_t num_waiting = 0;  // sequences left waiting
  int64_t num_kv_blocks_used = 0;
  int64_t num_kv_tokens = 0;         // tokens that live sequences hold in those blocks
  double seconds = 0.0;              // the whole step: schedule, execute, update, text
  double execute_seconds = 0.0;      // of that, inside the executor
  double communicate_seconds = 0.0;  // of that, as in StepOutput
  double stage_wait_seconds = 0.0;
  StepPhase phase =
      StepPhase::any;  // whose lane it was in; beside a step of the other one execute_seconds are spent twice
};

// Sums over the engine's life.
struct EngineMetrics {
  int64_t num_steps = 0;
  int64_t num_tokens = 0;
  int64_t num_requests_finished = 0;  // whatever the reason; of these:
  int64_t num_requests_aborted = 0;
  int64_t num_requests_failed = 0;  // with an error
  int64_t num_prompt_tokens = 0;    // of finished requests
  int64_t num_output_tokens = 0;
  int64_t num_cached_tokens = 0;
  int64_t num_preemptions = 0;
  int64_t peak_running = 0;
  int64_t peak_kv_blocks = 0;
  double step_seconds = 0.0;
  double execute_seconds = 0.0;
  double communicate_seconds = 0.0;
  double stage_wait_seconds = 0.0;
  double kv_used_share_sum = 0.0;  // sum over steps of live tokens / token slots of the blocks in use
  int64_t kv_used_steps = 0;
  int64_t num_prefill_steps = 0;  // of num_steps, where there is a lane for each phase
  int64_t num_decode_steps = 0;
  double prefill_execute_seconds = 0.0;  // of execute_seconds, likewise
  double decode_execute_seconds = 0.0;
  ServingMetrics serving;

  // Counts a step: steps, tokens, peaks, seconds, and, where blocks are in use, the live share of their slots.
  void add(const StepMetrics& step, int64_t block_size);
  void count_lane(const StepMetrics& step);  // given, of add(): a step of one phase
  // Counts a request that has finished and its tokens; whether it was aborted or failed is its caller's to count.
  void add(const RequestMetrics& request);
  // Of another engine; peaks add up too, as what all of them may have had at once.
  EngineMetrics& operator+=(const EngineMetrics& other);
  // Share of the KV memory given out that holds live tokens, averaged over steps; the rest is reserved or
  // padding.
  double kv_live_share() const {
    return kv_used_steps == 0 ? 0.0 : kv_used_share_sum / static_cast<double>(kv_used_steps);
  }
  double prefix_hit_rate() const;  // cached prompt tokens / prompt tokens
};

// Middle values over many requests or gaps, for reports. `fraction` 0.5 is the median; 0 for no values.
double percentile(std::vector<double> values, double fraction);

}  // namespace ladder
