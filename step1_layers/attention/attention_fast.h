#pragma once
// Splits attention into units of work (attention_simd.h) and the units among threads. Internal to this
// folder.
#include <algorithm>

#include "step1_layers/attention/attention_simd.h"
#include "step1_layers/core/context.h"
#include "step1_layers/core/parallel.h"

namespace ladder::detail {

// Query rows (tokens times heads of a group) in a unit: enough that converting a tile of keys and values to
// float, once per unit, is small beside the products; few enough that the unit's scratch stays in L2.
inline constexpr int64_t kAttentionRows = 60;

// for_each_sequence(fn) calls fn(AttentionWork of the whole sequence, for key/value head 0); k_head_stride
// and v_head_stride lead to the other heads. `codes`: what the cache of every sequence keeps.
template <template <class> class Kernels, class T, class ForEachSequence>
void attend_all(const OpContext& ctx, int64_t kv_heads, int64_t group, int64_t k_dim, int64_t v_dim,
                int64_t k_head_stride, int64_t v_head_stride, bool codes,
                ForEachSequence&& for_each_sequence) {
  const int64_t unit_tokens = std::max<int64_t>(kAttentionRows / group, 1);
  int64_t units = 0, products = 0;
  for_each_sequence([&](const AttentionWork<T>& sequence) {
    units += (sequence.tokens + unit_tokens - 1) / unit_tokens * kv_heads;
    products += sequence.tokens * (sequence.first_position + 1 + (sequence.tokens - 1) * sequence.more_keys);
  });
  if (units == 0) return;
  products *= group * kv_heads * (k_dim + v_dim);
  // Waking a thread costs about as much as 100,000 multiply-adds.
  const int64_t workers = std::min<int64_t>({num_threads(), units, 1 + products / 100000});

  ArenaScope scope(*ctx.arena);
  const int64_t floats = attention_padded(attention_scratch_floats(unit_tokens * group, k_dim, v_dim, codes));
  float* scratch = ctx.arena->take({workers, floats}, DType::f32).template data<float>();
  parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
    // Worker w takes units w, w + workers, ...: late blocks of a prompt see more keys than early ones, and so
    // every worker gets some of each.
    for (int64_t worker = begin; worker < end; ++worker) {
      int64_t unit = 0;
      for (int64_t head = 0; head < kv_heads; ++head)
        for_each_sequence([&](const AttentionWork<T>& sequence) {
          for (int64_t token = 0; token < sequence.tokens; token += unit_tokens) {
            if (unit++ % workers != worker) continue;
            AttentionWork<T> work = sequence;
            work.tokens = std::min(unit_tokens, sequence.tokens - token);
            work.first_position += token * work.more_keys;
            work.q += token * work.q_token_stride + head * group * work.q_head_stride;
            if (codes) {
              work.k_codes += head * k_head_stride;
              work.v_codes += head * v_head_stride;
              work.k_scales += head * kKvScales;
              work.v_scales += head * kKvScales;
            } else {
              work.k += head * k_head_stride;
              work.v += head * v_head_stride;
            }
            work.out += token * work.out_token_stride + head * group * work.out_head_stride;
            if (work.lse) work.lse += token * work.lse_token_stride + head * group * work.lse_head_stride;
            work.scratch = scratch + worker * floats;
            Kernels<T>::attend(work);
          }
        });
    }
  });
}

}  // namespace ladder::detail
