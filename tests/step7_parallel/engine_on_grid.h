#pragma once
// Engines over grids of ranks, for tests. The ranks are watched (watched_executor.h) and compare their batches.
#include "step2_model/decoder/decoder_spec.h"
#include "step7_parallel/context/prefill_context_model.h"
#include "step7_parallel/pipeline/split_layers.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/step7_parallel/watched_executor.h"

namespace ladder::testing {

struct Grid {
  int tp = 1, pp = 1, cp = 1;
};

inline EngineOptions on_grid(EngineOptions options, Grid grid, bool naive = false) {
  options.runner.tensor_parallel_size = grid.tp;
  options.runner.pipeline_parallel_size = grid.pp;
  options.runner.prefill_context_parallel_size = grid.cp;
  share_out_prefill(options.makers.model, grid.cp);
  options.runner.naive_pipeline = naive;
  options.runner.check_batches = true;
  options.makers.split_layers = split_layers;
  options.makers.executor = make_watched_executor;
  return options;
}

inline bool fits(const DecoderSpec& spec, Grid grid) {
  const bool dense_layers = spec.num_expert_layers() < spec.num_layers;
  return spec.num_layers >= grid.pp && spec.num_heads % grid.tp == 0 &&
         (!dense_layers || spec.intermediate_size % grid.tp == 0) &&
         spec.experts.intermediate_size % grid.tp == 0 &&
         spec.experts.shared_intermediate_size % grid.tp == 0 &&
         (spec.num_kv_heads % grid.tp == 0 || grid.tp % spec.num_kv_heads == 0);
}

// What a grid answers is what one rank answers: bit by bit, where nothing is added up in another order, else token by
// token up to a near tie.
inline ::testing::AssertionResult answers_as_one_rank(const RequestOutput& alone,
                                                      const RequestOutput& on_grid, Grid grid,
                                                      const std::string& what) {
  if (grid.tp == 1) return same_bits(on_grid, alone) << what;
  if (alone.completions.size() != on_grid.completions.size())
    return ::testing::AssertionFailure() << what << ": completions";
  for (size_t c = 0; c < alone.completions.size(); ++c)
    if (const auto result = equal_or_near_tie(alone.completions[c], on_grid.completions[c], 1e-4, what);
        !result)
      return result;
  return ::testing::AssertionSuccess();
}

}  // namespace ladder::testing
