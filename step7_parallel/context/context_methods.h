#pragma once
// The ways to compute context-parallel attention, in one table that tests and benchmarks iterate over.
#include <span>

#include "step1_layers/core/variants.h"
#include "step7_parallel/context/context_attention.h"

namespace ladder {

// The clearest first. "ulysses" and "ulysses_ring" serve what ulysses_obstacle() has nothing against.
std::span<const Variant<ContextAttentionArgs>> context_attention_variants();

// By the method that is forced as a kernel of "context_attention", else by the last of the table that serves the call.
void context_attention(const OpContext& ctx, const ContextAttentionArgs& args);

}  // namespace ladder
