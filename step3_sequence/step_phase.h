#pragma once
// Which sequences a step is for, where prompts and answers are computed by steps that run at the same time (step 8, 8.7.lanes):
// those of one phase are a lane, which has its own steps in flight and its own persistent batch in a runner.
#include <cstddef>
#include <cstdint>

namespace ladder {

// any: there is one lane, and no difference. decode: sequences that lack one token, and whose steps of the other lane are
// collected. prefill: all others.
enum class StepPhase : uint8_t { any, prefill, decode };
inline constexpr size_t kNumStepPhases = 3;

}  // namespace ladder
