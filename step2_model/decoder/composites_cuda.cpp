#include "step2_model/decoder/composites_cuda.h"

namespace ladder {

namespace {

FusedProduct with_norm(const NormLinearArgs& args, Epilogue epilogue) {
  return {.x = args.stream->residual,
          .norm_weight = args.norm.weight,
          .eps = args.norm.eps,
          .epilogue = epilogue,
          .out = args.out};
}
// A fused product knows RMSNorm alone.
bool may_fuse_norm(const NormLinearArgs& args) {
  return !args.stream->has_pending && args.norm.weight.defined() && !args.norm.bias.defined();
}
FusedProduct with_residual(const LinearResidualArgs& args) {
  return {.x = args.x, .epilogue = Epilogue::add, .out = args.stream->residual};
}

}  // namespace

bool takes_fused_norm_qkv(const NormLinearArgs& args) {
  return may_fuse_norm(args) && args.linear->takes_fused(with_norm(args, Epilogue::store));
}
void fused_norm_qkv(const OpContext& ctx, const NormLinearArgs& args) {
  args.linear->forward_fused(ctx, with_norm(args, Epilogue::store));
}

bool takes_fused_norm_gate_up_silu(const NormGateUpArgs& args) {
  return may_fuse_norm(args) && args.activation == MlpActivation::silu &&
         args.linear->takes_fused(with_norm(args, Epilogue::silu_and_mul));
}
void fused_norm_gate_up_silu(const OpContext& ctx, const NormGateUpArgs& args) {
  args.linear->forward_fused(ctx, with_norm(args, Epilogue::silu_and_mul));
}

namespace {
FusedProduct without_norm(const NormGateUpArgs& args, const Tensor& x) {
  return {.x = x, .epilogue = Epilogue::silu_and_mul, .out = args.out};
}
}  // namespace

bool takes_norm_then_gate_up_silu(const NormGateUpArgs& args) {
  return args.norm.weight.defined() && args.activation == MlpActivation::silu &&
         args.linear->takes_fused(without_norm(args, args.stream->residual));
}
void norm_then_gate_up_silu(const OpContext& ctx, const NormGateUpArgs& args) {
  const ArenaScope scope(*ctx.arena);
  const Tensor& residual = args.stream->residual;
  const Tensor normed = ctx.arena->take(residual.shape(), residual.dtype());
  add_norm(ctx, *args.stream, args.norm, normed);
  args.linear->forward_fused(ctx, without_norm(args, normed));
}

bool takes_fused_residual(const LinearResidualArgs& args) {
  return args.one_rank && !args.stream->has_pending && args.linear->takes_fused(with_residual(args));
}
void fused_residual(const OpContext& ctx, const LinearResidualArgs& args) {
  args.linear->forward_fused(ctx, with_residual(args));
}

}  // namespace ladder
