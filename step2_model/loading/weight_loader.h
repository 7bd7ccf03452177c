#pragma once
// Task 2.3: from a checkpoint's tensors to a model's parameters.
#include <cstdint>
#include <functional>
#include <span>

#include "step1_layers/core/parameter.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Copies every tensor of the checkpoint to its parameter (this rank's shard of it, converted to the
// parameter's dtype) and gives the file's pages back as it goes, so that memory holds the weights once. Each
// part of each parameter must be filled exactly once. Tensors of layers that are not among the parameters
// (another range of a pipeline) are passed over. So are those that carry nothing: the rotary frequencies that
// old checkpoints stored, an lm_head beside tied embeddings, which transformers ignores too, the scales of keys and
// values (kv_scales.h), and biases of zeros that a quantizer has added.
// The largest tensors come first: while one is copied it is in memory twice. `progress`, if it is not empty, is
// called after each with the bytes of all that were copied and of all that will be.
// Error: lists the tensors that are missing and those that the model has no place for (listed()), before any is
// copied; or, naming file and tensor, one has another shape or dtype than its parameter takes: for f32, bf16 and f16 one
// of these three, else the same (packed words, codes).
void load_weights(const Checkpoint& checkpoint, const DecoderSpec& spec,
                  std::span<Parameter* const> parameters, const LoadProgress& progress);

// Random weights of a plausible size: a matrix is normal with the deviation 1 / sqrt(columns), a norm's gains
// lie near one, biases near zero. The values are a function of the parameter's name and the element's index,
// so two runs are equal; of a layer's whole experts the index counts through all of them, so a copy of one has its values on
// whichever rank it is. Fast enough for models of many gigabytes: one hash per element, on all threads.
// Error: a parameter that is no floating-point number (packed words, codes).
void fill_dummy_weights(std::span<Parameter* const> parameters, const LoadProgress& progress);

}  // namespace ladder
