#pragma once
// Task 8.6: paged_attention over a cache of codes (kv_codes.h) on a GPU, where it is a ladder of its own. On the CPU every rung
// of paged_attention takes codes.
#include <span>

#include "step1_layers/attention/paged_attention.h"

namespace ladder {

// Of paged_attention.h's arguments, with a cache that keeps codes. `paged_attention` comes here by itself.
std::span<const Variant<PagedAttentionArgs>> paged_attention_of_codes_variants();

}  // namespace ladder
