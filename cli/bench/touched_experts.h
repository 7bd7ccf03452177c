#pragma once
// How many experts of a layer a run really touched, by an engine that counts them: once more the requests that were measured.
// What is measured is not disturbed by it, and the counts are those of the same tokens.
#include <cstdint>
#include <map>
#include <memory>

#include "cli/bench/streaming_limit.h"
#include "step6_engine/load_engine.h"

namespace ladder {

class TouchedExperts {
 public:
  // Error: the model has no experts, or the engine has several ranks.
  TouchedExperts(const DecoderSpec& spec, const RunnerConfig& config);

  // An engine that is loaded with these options counts, from the last start() on.
  void count_in(EngineOptions& options);
  void start();

  // The share of a layer's experts that calls of so many tokens touched on the average; of sizes that there were none of, the
  // next larger one's (a graph fills up its rows), else the next smaller one's.
  double share(int64_t tokens) const;
  // Over all calls of all layers.
  double mean_experts() const;

 private:
  struct Calls {
    int64_t num = 0, touched = 0;
  };
  std::map<int64_t, Calls> calls() const;  // by tokens

  int64_t num_experts_;
  std::shared_ptr<Tensor> counts_;  // count_touched_experts()
};

}  // namespace ladder
