#pragma once
// The ways to compute context-parallel attention, in one table that tests and benchmarks iterate over.
#include <span>
#include <string_view>

#include "step1_layers/core/variants.h"
#include "step7_parallel/context/context_attention.h"

namespace ladder {

// The clearest first; each once for the CPU and once for GPUs. "ulysses" and "ulysses_ring" serve what ulysses_obstacle()
// has nothing against.
std::span<const Variant<ContextAttentionArgs>> context_attention_variants();

// The fastest method for a call on this device, by what has been measured; empty: nothing has. It need not serve the call.
std::string_view fastest_context_method(const OpContext& ctx, const ContextAttentionArgs& args);

// On a GPU: every kernel that the methods launch for such heads, once. A kernel's first call loads it, which may wait for what
// runs, and that may be this rank's communication, which waits for other ranks of this process.
void warm_up_context_attention(const OpContext& ctx, DType dtype, int64_t heads, int64_t kv_heads,
                               int64_t dim);

// By the method that is forced as a kernel of "context_attention", else by the fastest, where it serves the call, else by the
// last of the table that does.
void context_attention(const OpContext& ctx, const ContextAttentionArgs& args);

}  // namespace ladder
