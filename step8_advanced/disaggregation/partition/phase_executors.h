#pragma once
// Task 8.7.lanes, the runner's half: two runners in this process, one for prompts and one for answers, over one model and one KV
// cache. The weights and the cache are there once; each runner has its own batch, inputs, arena and sampler.
//
//            submit          launch(step)                      collect(): waits for the device, reads
//   engine ---------> lane: [ a thread ] --launched steps--> [ another thread ] --done--> wait(), collect()
//
// A lane's first thread does all that is done with its runner, beginning with making it; on a GPU it only launches. The second
// one waits for what was launched, so that whoever waits for either lane waits for one condition. On a CPU each lane has half
// of the threads, on a GPU a context of its own: another stream, which may have some of the multiprocessors (8.7.border).
#include <functional>
#include <memory>

#include "step4_runner/executor_options.h"
#include "step4_runner/phase_executors.h"
#include "step6_engine/engine_makers.h"
#include "step8_advanced/disaggregation/partition/lane_contexts.h"

namespace ladder {

using LaneContextsMaker = std::function<std::shared_ptr<LaneContexts>(const RunnerConfig& config)>;

// With executors for two phases (MadeExecutor::phases). A prefill step has up to max_num_batched_tokens of the configuration, a
// decode step max_num_seqs. Empty: make_plain_lane_contexts(). Error: several ranks; a maker of a
// proposer, as nothing here verifies drafts; a registry of KV caches, as they are handed to no other engine.
ExecutorMaker make_phase_executors(LaneContextsMaker make_contexts = {});

}  // namespace ladder
