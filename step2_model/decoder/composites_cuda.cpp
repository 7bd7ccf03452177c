#include "step2_model/decoder/composites_cuda.h"

#include "step1_layers/linear/rows_stream.h"

namespace ladder {

namespace {

RowsStreamArgs with_norm(const NormLinearArgs& args, Epilogue epilogue) {
  const DenseLinear dense = args.linear->dense();
  return {.x = args.stream->residual,
          .weight = dense.weight,
          .bias = dense.bias,
          .norm_weight = args.norm.weight,
          .eps = args.norm.eps,
          .epilogue = epilogue,
          .out = args.out};
}
// The kernel knows RMSNorm alone.
bool may_fuse_norm(const NormLinearArgs& args) {
  return !args.stream->has_pending && args.norm.weight.defined() && !args.norm.bias.defined();
}
RowsStreamArgs with_residual(const LinearResidualArgs& args) {
  const DenseLinear dense = args.linear->dense();
  return {.x = args.x,
          .weight = dense.weight,
          .bias = dense.bias,
          .norm_weight = {},
          .eps = 0,
          .epilogue = Epilogue::add,
          .out = args.stream->residual};
}

}  // namespace

bool takes_fused_norm_qkv(const NormLinearArgs& args) {
  return may_fuse_norm(args) && rows_stream_takes(with_norm(args, Epilogue::store));
}
void fused_norm_qkv(const OpContext& ctx, const NormLinearArgs& args) {
  rows_stream(ctx, with_norm(args, Epilogue::store));
}

bool takes_fused_norm_gate_up_silu(const NormGateUpArgs& args) {
  return may_fuse_norm(args) && args.activation == MlpActivation::silu &&
         rows_stream_takes(with_norm(args, Epilogue::silu_and_mul));
}
void fused_norm_gate_up_silu(const OpContext& ctx, const NormGateUpArgs& args) {
  rows_stream(ctx, with_norm(args, Epilogue::silu_and_mul));
}

namespace {
RowsStreamArgs without_norm(const NormGateUpArgs& args, const Tensor& x) {
  RowsStreamArgs stream = with_norm(args, Epilogue::silu_and_mul);
  stream.x = x;
  stream.norm_weight = {};
  return stream;
}
}  // namespace

bool takes_norm_then_gate_up_silu(const NormGateUpArgs& args) {
  return args.norm.weight.defined() && args.activation == MlpActivation::silu &&
         rows_stream_takes(without_norm(args, args.stream->residual));
}
void norm_then_gate_up_silu(const OpContext& ctx, const NormGateUpArgs& args) {
  const ArenaScope scope(*ctx.arena);
  const Tensor& residual = args.stream->residual;
  const Tensor normed = ctx.arena->take(residual.shape(), residual.dtype());
  add_norm(ctx, *args.stream, args.norm, normed);
  rows_stream(ctx, without_norm(args, normed));
}

bool takes_fused_residual(const LinearResidualArgs& args) {
  return args.one_rank && !args.stream->has_pending && rows_stream_takes(with_residual(args));
}
void fused_residual(const OpContext& ctx, const LinearResidualArgs& args) {
  rows_stream(ctx, with_residual(args));
}

}  // namespace ladder
