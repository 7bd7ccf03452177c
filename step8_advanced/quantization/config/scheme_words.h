#pragma once
// What a checkpoint's linears are stored as, in words for people.
#include <string>
#include <string_view>

#include "step8_advanced/quantization/scheme.h"

namespace ladder {

// "int4 in groups of 128 with zero points", "fp8, a scale per row"
std::string words_of(const QuantizationArgs& args);

// Of a whole quantization_config: its groups, and which linears each is for where there are several: "int4 in groups of 128 (re:.*mlp.*); int8,
// a scale per row, inputs in int8, a scale per token (Linear)"; which have two of four weights, and which ends of names are quantized
// where they are listed. "dense" of an empty text, and where
// nothing names a linear. Error: see QuantizationConfig::parse.
std::string words_of_linears(std::string_view quantization_config);

}  // namespace ladder
