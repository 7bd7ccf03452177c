// What a Communicator does by other calls of it.
#include "step1_layers/distributed/communicator.h"

#include "step1_layers/norm/rms_norm.h"

namespace ladder {

void Communicator::gather(const OpContext& ctx, const Tensor& input, const Tensor& output, int root) {
  if (rank() != root) return send(ctx, input, root);
  const int64_t rows = input.dim(0);
  for (int from = 0; from < size(); ++from) {
    const Tensor part = output.narrow(0, from * rows, rows);
    if (from == root)
      part.copy_from(input, ctx.stream);
    else
      recv(ctx, part, from);
  }
}

void Communicator::all_reduce_add_norm(const OpContext& ctx, const AllReduceNormArgs& args) {
  all_reduce(ctx, args.partial);
  fused_add_rms_norm(ctx, args.partial, args.residual, args.weight, args.eps, args.out);
}

}  // namespace ladder
