#include "step8_advanced/quantization/quantizer/text_pass.h"

#include <numeric>

#include "step1_layers/core/error.h"
#include "step4_runner/kv_cache_size.h"

namespace ladder {
namespace {

constexpr int64_t kBlockSize = 16;

template <class T>
Tensor counting(int64_t count) {  // 0, 1, 2, ...
  const Tensor numbers = Tensor::empty({count}, dtype_of<T>);
  std::iota(numbers.data<T>(), numbers.data<T>() + count, T{0});
  return numbers;
}

}  // namespace

Tensor on_cpu(const OpContext& ctx, const Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  const Tensor copy = tensor.to(Device{}, ctx.stream);
  device_synchronize(ctx.device, ctx.stream);
  return copy;
}

TextPass::TextPass(Model& model, const OpContext& ctx, int64_t max_tokens)
    : model_(model), arena_(ctx.device), ctx_(ctx), max_tokens_(max_tokens) {
  LADDER_CHECK(max_tokens <= model.max_model_len(), "texts of {} tokens: the model takes {}", max_tokens,
               model.max_model_len());
  ctx_.arena = &arena_;
  ctx_.batch_invariant = model.dtype() == DType::f32;
  const int64_t blocks = (max_tokens + kBlockSize - 1) / kBlockSize;
  caches_ = allocate_kv_caches(model.kv_cache_specs(), blocks, kBlockSize, ctx.device);
}

void TextPass::forward(std::span<const int32_t> ids, const Tensor& hidden,
                       const std::function<void(const Tensor& hidden)>& use) {
  const auto tokens = static_cast<int64_t>(ids.size());
  LADDER_CHECK(tokens > 0 && tokens <= max_tokens_, "a text of {} tokens, expected 1 to {}", tokens,
               max_tokens_);
  const std::vector<int32_t> starts = {0, static_cast<int32_t>(tokens)};
  const auto there = [&](const Tensor& tensor) {
    return ctx_.device.is_cpu() || !tensor.defined() ? tensor : tensor.to(ctx_.device);
  };
  ModelInput input;
  input.input_ids = there(Tensor::from(ids, {tokens}));
  input.positions = there(counting<int32_t>(tokens));
  input.hidden = there(hidden);
  input.host_query_start_loc = Tensor::from(std::span(starts), {2});
  input.attention.query_start_loc = there(input.host_query_start_loc);
  input.attention.seq_lens = there(Tensor::from(std::span(starts).subspan(1), {1}));
  const int64_t blocks = (tokens + kBlockSize - 1) / kBlockSize;
  input.attention.block_tables = there(counting<int32_t>(blocks).view({1, blocks}));
  input.attention.slot_mapping = there(counting<int64_t>(tokens));
  input.attention.num_seqs = 1;
  input.attention.num_tokens = input.attention.max_query_len = input.attention.max_seq_len = tokens;
  input.kv_caches = caches_;
  ArenaScope scope(arena_);
  use(model_.forward(ctx_, input));
}

void TextPass::logits(const Tensor& hidden, const std::function<void(const Tensor& logits)>& use) {
  ArenaScope scope(arena_);
  use(on_cpu(ctx_, model_.compute_logits(ctx_, hidden)));
}

}  // namespace ladder
