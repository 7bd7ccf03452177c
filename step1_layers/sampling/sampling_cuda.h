#pragma once
// The CUDA rungs of this folder's operators. Their arguments have been checked, but for token ids.
#include "step1_layers/sampling/argmax.h"
#include "step1_layers/sampling/draw/draw.h"
#include "step1_layers/sampling/logit_bias.h"
#include "step1_layers/sampling/logits_filters.h"
#include "step1_layers/sampling/penalties.h"
#include "step1_layers/sampling/sample.h"
#include "step1_layers/sampling/softmax.h"
#include "step1_layers/sampling/token_bitmask.h"
#include "step1_layers/sampling/top_logprobs.h"

namespace ladder {

void argmax_cuda_block(const OpContext& ctx, const ArgmaxArgs& args);
void argmax_cuda_split(const OpContext& ctx, const ArgmaxArgs& args);
void argmax_cuda_cluster(const OpContext& ctx, const ArgmaxArgs& args);
void sample_cuda_block(const OpContext& ctx, const SampleArgs& args);
void sample_cuda_split(const OpContext& ctx, const SampleArgs& args);

bool draw_fits_cuda_fused(const DrawArgs& args);
void draw_cuda_fused(const OpContext& ctx, const DrawArgs& args);
// What fused does without filters, and where few tokens can win; left[row] is 1 for rows that it leaves out.
void draw_cuda_plain(const OpContext& ctx, const DrawArgs& args);
void draw_cuda_few(const OpContext& ctx, const DrawArgs& args, int32_t* left);

void softmax_cuda_block(const OpContext& ctx, const SoftmaxArgs& args);
void softmax_cuda_online(const OpContext& ctx, const SoftmaxArgs& args);
bool softmax_fits_cuda_cluster(const SoftmaxArgs& args);
void softmax_cuda_cluster(const OpContext& ctx, const SoftmaxArgs& args);
void log_softmax_cuda_cluster(const OpContext& ctx, const SoftmaxArgs& args);
void log_softmax_cuda_block(const OpContext& ctx, const SoftmaxArgs& args);
void log_softmax_cuda_online(const OpContext& ctx, const SoftmaxArgs& args);
void top_logprobs_cuda(const OpContext& ctx, const TopLogprobsArgs& args);
void top_logprobs_cuda_cluster(const OpContext& ctx, const TopLogprobsArgs& args);
void apply_penalties_cuda(const OpContext& ctx, const ApplyPenaltiesArgs& args);
void apply_logit_bias_cuda(const OpContext& ctx, const ApplyLogitBiasArgs& args);
void apply_token_bitmask_cuda(const OpContext& ctx, const ApplyTokenBitmaskArgs& args);

void apply_temperature_cuda(const OpContext& ctx, const LogitsFilterArgs& args);
void mask_min_p_cuda(const OpContext& ctx, const LogitsFilterArgs& args);
void mask_top_k_cuda_radix(const OpContext& ctx, const LogitsFilterArgs& args);
void mask_top_p_cuda_radix(const OpContext& ctx, const LogitsFilterArgs& args);

}  // namespace ladder
