#include "step7_parallel/communicators/gpu/gpu_communicator.h"

#include <cstring>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// Of all ranks the first that cannot, so that all come to the same end.
std::string obstacle_of_any(Communicator& host, const std::string& mine) {
  const std::vector<std::string> texts = exchange_texts(host, mine);
  for (size_t rank = 0; rank < texts.size(); ++rank)
    if (!texts[rank].empty()) return fmt::format("rank {}: {}", rank, texts[rank]);
  return {};
}

void check_norm(const OpContext& ctx, const AllReduceNormArgs& args) {
  const Tensor& partial = args.partial;
  expect_shape(partial, {-1, -1}, "all_reduce_add_norm: partial");
  const auto expect = [&](const Tensor& tensor, const char* what) {
    LADDER_CHECK(tensor.dtype() == partial.dtype() && tensor.device() == ctx.device &&
                     tensor.dim(-1) == partial.dim(1) && (tensor.dim(-1) <= 1 || tensor.stride(-1) == 1),
                 "all_reduce_add_norm: {}: expected rows like those of {} on {}, got {} on {}", what,
                 partial.str(), device_name(ctx.device), tensor.str(), device_name(tensor.device()));
  };
  for (const auto& [tensor, what] :
       {std::pair(&partial, "partial"), {&args.residual, "residual"}, {&args.out, "out"}}) {
    expect_shape(*tensor, {partial.dim(0), -1}, fmt::format("all_reduce_add_norm: {}", what));
    expect(*tensor, what);
  }
  expect_shape(args.weight, {-1}, "all_reduce_add_norm: weight");
  expect(args.weight, "weight");
}

}  // namespace

GpuCommunicator::GpuCommunicator(const OpContext& ctx, Communicator& host)
    : rank_(host.rank()), size_(host.size()) {
  if (size_ == 1) {
    without_peers_ = without_nccl_ = "one rank";
    return;
  }
  try {
    group_.layout = peer_layout(size_);
    peers_ = std::make_unique<PeerMemory>(ctx.device.index, host,
                                          PeerBytes{group_.layout.push, group_.layout.total});
    static_cast<PeerView&>(group_) = peers_->view();
  } catch (const Error& error) {  // on all ranks
    without_peers_ = error.what();
  }
  without_nccl_ = obstacle_of_any(host, nccl_obstacle());
  if (without_nccl_.empty()) {
    NcclId id{};
    if (rank_ == 0) id = make_nccl_id();
    const std::string text =
        exchange_texts(host, rank_ == 0 ? std::string(id.data(), id.size()) : "").front();
    std::memcpy(id.data(), text.data(), id.size());
    nccl_ = make_nccl_communicator(id, rank_, size_, ctx.device.index);
  }
  LADDER_CHECK(nccl_ || peers_, "the GPUs of {} ranks cannot talk: {}; {}", size_, without_nccl_,
               without_peers_);
  warm_up(ctx);
  host.barrier({});
}

// A kernel's first call loads it, which may wait for the GPU; and so may wait for ever while a peer's kernel waits for
// this one. So all are called here, where no rank is ahead by more than a call.
void GpuCommunicator::warm_up(const OpContext& ctx) {
  if (nccl_) nccl_->warm_up(ctx);
  if (!peers_) return;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor rows = Tensor::zeros({1, 64}, dtype, ctx.device);
    for (const auto& rung : peer_all_reduce_variants())
      if (can_run(rung, ctx, peer_args(rows))) rung.run(ctx, peer_args(rows));
    for (const int64_t packs :
         {16, 64, 128, 256, 512, 640, 1024, 2048}) {  // a kernel each (row_splits_cuda.cuh)
      const int64_t width = packs * 16 / dtype_size(dtype);
      const Tensor x = Tensor::zeros({1, width}, dtype, ctx.device), residual = x.clone(),
                   weight = x.view({width});
      const AllReduceNormArgs args{x, residual, weight, 1e-6, x};
      if (fits_all_reduce_norm(group_, args)) all_reduce_norm_push(ctx, group_, args);
      device_synchronize(ctx.device, ctx.stream);
    }
  }
  device_synchronize(ctx.device, ctx.stream);
}

NcclCommunicator& GpuCommunicator::nccl() {
  LADDER_CHECK(nccl_ != nullptr, "this call needs NCCL: {}", without_nccl_);
  return *nccl_;
}

PeerAllReduceArgs GpuCommunicator::peer_args(const Tensor& tensor) const {
  return {peers_ ? &group_ : nullptr, nccl_.get(), tensor};
}

void GpuCommunicator::all_reduce(const OpContext& ctx, const Tensor& tensor) {
  LADDER_CHECK(tensor.device() == ctx.device && tensor.is_contiguous(),
               "all_reduce: expected a contiguous tensor on {}, got {} on {}", device_name(ctx.device),
               tensor.str(), device_name(tensor.device()));
  if (size_ == 1 || tensor.numel() == 0) return;
  peer_all_reduce(ctx, peer_args(tensor));
}

void GpuCommunicator::all_reduce_add_norm(const OpContext& ctx, const AllReduceNormArgs& args) {
  check_norm(ctx, args);
  const std::string_view forced = ctx.forced_kernel("all_reduce");
  const bool pushes = peers_ && fastest_all_reduce(size_, args.partial.nbytes()) == "push" &&
                      (forced.empty() || forced == "push") &&
                      ctx.forced_kernel("fused_add_rms_norm").empty() && fits_all_reduce_norm(group_, args);
  if (pushes) return all_reduce_norm_push(ctx, group_, args);
  Communicator::all_reduce_add_norm(ctx, args);
}

void GpuCommunicator::all_gather(const OpContext& ctx, const Tensor& input, const Tensor& output) {
  size_ == 1 ? single_rank().all_gather(ctx, input, output) : nccl().all_gather(ctx, input, output);
}
void GpuCommunicator::reduce_scatter(const OpContext& ctx, const Tensor& input, const Tensor& output) {
  size_ == 1 ? single_rank().reduce_scatter(ctx, input, output) : nccl().reduce_scatter(ctx, input, output);
}
void GpuCommunicator::all_to_all(const OpContext& ctx, const Tensor& input,
                                 std::span<const int64_t> send_counts, const Tensor& output,
                                 std::span<const int64_t> recv_counts) {
  Communicator& group = size_ == 1 ? single_rank() : nccl();
  group.all_to_all(ctx, input, send_counts, output, recv_counts);
}
void GpuCommunicator::send(const OpContext& ctx, const Tensor& tensor, int to) {
  size_ == 1 ? single_rank().send(ctx, tensor, to) : nccl().send(ctx, tensor, to);
}
void GpuCommunicator::recv(const OpContext& ctx, const Tensor& tensor, int from) {
  size_ == 1 ? single_rank().recv(ctx, tensor, from) : nccl().recv(ctx, tensor, from);
}
void GpuCommunicator::broadcast(const OpContext& ctx, const Tensor& tensor, int root) {
  if (size_ > 1) nccl().broadcast(ctx, tensor, root);
}
void GpuCommunicator::barrier(const OpContext& ctx) {
  if (size_ > 1) nccl().barrier(ctx);
}

void GpuCommunicator::check() const {
  if (nccl_) nccl_->check();
}

void GpuCommunicator::abort() {
  if (peers_) peers_->stop();
  if (nccl_) nccl_->abort();
}

}  // namespace ladder
