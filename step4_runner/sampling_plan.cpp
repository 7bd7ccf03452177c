#include "step4_runner/sampling_plan.h"

namespace ladder {

int64_t SamplingPlan::upload_bytes() const {
  int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

void SamplingPlan::stage(StepUpload& upload) {
  for (const Piece& piece : pieces) piece.stage(*this, upload);
  pieces.clear();
}

}  // namespace ladder
