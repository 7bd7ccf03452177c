#pragma once
// The sampler over rows of given logits and requests, on either device.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "step4_runner/sampler.h"
#include "tests/support/devices.h"
#include "tests/support/model_devices.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

// Tokens of one request and what it asks for.
struct SampledRow {
  std::vector<int32_t> token_ids{1};
  int64_t num_prompt_tokens = 1;
  SamplingParams sampling;
  std::vector<float> logits;
};

struct SamplerAnswer {
  std::vector<int32_t> token_ids;
  std::vector<PositionLogprobs> logprobs;
  int64_t peak_bytes = 0;
};

inline SamplerAnswer run_sampler(DeviceType device, const std::vector<SampledRow>& rows,
                                 std::shared_ptr<LogitsProcessor> processor = {}) {
  OpContext ctx = device == DeviceType::cpu ? OpContext{} : *cuda_context();
  Arena arena(ctx.device);
  ctx.arena = &arena;
  const auto count = static_cast<int64_t>(rows.size());
  const auto vocab = static_cast<int64_t>(rows[0].logits.size());
  Tensor logits = Tensor::empty({count, vocab}, DType::f32);
  std::vector<BatchSequence> sequences(rows.size());
  std::vector<BatchSequence*> pointers;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].logits.begin(), rows[r].logits.end(),
              logits.data<float>() + static_cast<int64_t>(r) * vocab);
    sequences[r].token_ids = rows[r].token_ids;
    sequences[r].num_prompt_tokens = rows[r].num_prompt_tokens;
    sequences[r].sampling = rows[r].sampling;
    pointers.push_back(&sequences[r]);
  }
  logits = logits.to(ctx.device);
  const Tensor ids = poisoned({count}, DType::i32).to(ctx.device);
  SamplerAnswer answer;
  Sampler sampler(vocab);
  if (processor) sampler.add_processor(std::move(processor));
  StepUpload upload;
  StepDownload download;
  SamplingPlan plan = sampler.plan(pointers);
  upload.begin(ctx, plan.upload_bytes());
  download.begin(ctx, sampler.download_bytes(plan, ctx.device));
  plan.stage(upload);
  upload.send(ctx);
  const std::vector<LoggedRows> parts = sampler.sample(ctx, logits, plan, ids, download);
  device_synchronize(ctx.device, ctx.stream);
  for (const LoggedRows& logged : parts) {
    answer.logprobs.resize(rows.size());
    std::vector<PositionLogprobs> positions = read_logprobs(logged);
    for (size_t i = 0; i < positions.size(); ++i)
      answer.logprobs[static_cast<size_t>(logged.rows[i])] = std::move(positions[i]);
  }
  const Tensor tokens = ids.to(Device{});
  answer.token_ids.assign(tokens.data<int32_t>(), tokens.data<int32_t>() + count);
  answer.peak_bytes = arena.peak_bytes();
  return answer;
}

}  // namespace ladder::testing
