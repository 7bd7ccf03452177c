#pragma once
// Task 8.2: linears whose weight a checkpoint stores in one of the formats of stored_linear.h.
//
//   the checkpoint's tensors ── unpack ──> QuantizedWeight ── quantized_matmul ──> out
//
// Each format declares its tensors (a file per format here) and turns a rank's share of them into the one form that
// kernels take (quantized_weight.h); the tensors are let go of then. Numbers are kept exactly: scales become f32 and
// are repeated for the rows that share them, codes are moved, never rounded again.
#include <memory>

#include "step1_layers/linear/linear_method.h"
#include "step2_model/model.h"
#include "step8_advanced/quantization/stored_linear.h"

namespace ladder {

// Serves any number of linears. Merged parts (q, k, v) keep scales of their own; static activations (input_scale) are rounded
// by each part's own, one product for each run of parts with the same.
// Scales that are made of the activations are those of a rank's own features, whose first begins a group.
// Error, here: a scheme that the format cannot hold, or activations that quantized_matmul does not serve. When a linear
// is made: sizes that do not fill the words of GPTQ or AWQ. After loading: what no such file can hold: scales that are not
// finite, are 0, or of floats below 0, NaN among the codes, zero points outside of the codes, a g_idx that does not fit.
// LoadFormat::dummy: no weight is read, random codes of the same scheme take its place.
// parts_per_order: so many neighbouring parts, as large as any others, have an order of columns (g_idx) of their own, an expert's; 0: all
// parts share one.
std::shared_ptr<const LinearMethod> quantized_linear_method(const StoredLinear& stored,
                                                            LoadFormat load_format = LoadFormat::automatic,
                                                            int64_t parts_per_order = 0);

}  // namespace ladder
