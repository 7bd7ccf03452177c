#pragma once
// The schemes that have a name in compressed-tensors, and the format in which it keeps a scheme.
#include <span>
#include <string_view>

#include "step8_advanced/quantization/stored_linear.h"

namespace ladder {

// "W4A16", "FP8_DYNAMIC", ... in any case. Scales are bf16 where the format says nothing: there they are of the model's
// dtype. Error: unknown; lists the known ones.
QuantizationScheme preset_scheme(std::string_view name);
bool is_preset(std::string_view name);
std::span<const std::string_view> preset_names();

// A linear of this scheme as compressed-tensors keeps it:
//   mx       floats in groups of 32 with scales e8m0
//   nvfp4    E2M1 in groups of 16 with scales e4m3
//   plain    E4M3; integers whose activations are rounded too
//   packed   other integers
// Error, beginning with `what`: there is no format for it.
StoredLinear stored_linear(const QuantizationScheme& scheme, std::string_view what);
// Error unless this format can hold this scheme: its bits, groups, scales.
void check_stored(const StoredLinear& linear, std::string_view what);

}  // namespace ladder
