#pragma once
// Task 8.5: whether a checkpoint is the model that its config.json says, found before anything is done to it: a tensor that is
// missing in the last layer is no news for the end of an afternoon, and a recipe that needs no calibration would never load the model.
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

// Looks at names, shapes and dtypes, and reads no weight. Error: as load_weights, which refuses the checkpoint in the same words.
void check_weights(const Checkpoint& checkpoint, const DecoderSpec& spec);

}  // namespace ladder
