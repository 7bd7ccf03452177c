#include "step4_runner/executor.h"

namespace ladder {

KnownTokens known_tokens(const StepOutput& output) {
  KnownTokens known{output.step, {}};
  for (const SequenceStepOutput& sequence : output.sequences)
    known.token_ids.insert(known.token_ids.end(), sequence.token_ids.begin(), sequence.token_ids.end());
  return known;
}

}  // namespace ladder
