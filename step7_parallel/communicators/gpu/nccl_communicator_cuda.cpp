#include "step7_parallel/communicators/gpu/nccl_communicator.h"

#include <cstring>

#include "step1_layers/core/device_cuda.h"
#include "step1_layers/core/error.h"
#ifdef LADDER_HAS_NCCL
#include "step7_parallel/communicators/gpu/nccl_library.h"
#endif

namespace ladder {

#ifdef LADDER_HAS_NCCL

namespace {

ncclDataType_t nccl_type(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    default:
      fail_not_floating(tensor.dtype(), "a sum over ranks");
  }
}

void expect_on_gpu(const Tensor& tensor, const char* what) {
  LADDER_CHECK(tensor.device().type == DeviceType::cuda && tensor.is_contiguous(),
               "{}: expected a contiguous tensor on a GPU, got {} on {}", what, tensor.str(),
               device_name(tensor.device()));
}

class Nccl final : public NcclCommunicator {
 public:
  Nccl(const NcclId& id, int rank, int size, int device_index)
      : rank_(rank), size_(size), nccl_(nccl_library()) {
    ncclUniqueId unique;
    static_assert(sizeof unique == sizeof id);
    std::memcpy(&unique, id.data(), sizeof unique);
    LADDER_CUDA_CHECK(cudaSetDevice(device_index));
    check_nccl(nccl_.comm_init_rank(&comm_, size, unique, rank), "making a group");
    word_ = Tensor::zeros({1}, DType::f32, {DeviceType::cuda, device_index});
  }
  ~Nccl() override {
    if (comm_ != nullptr) nccl_.comm_destroy(comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce(const OpContext& ctx, const Tensor& tensor) override {
    expect_on_gpu(tensor, "all_reduce");
    if (tensor.numel() == 0) return;
    check_nccl(nccl_.all_reduce(tensor.raw(), tensor.raw(), static_cast<size_t>(tensor.numel()),
                                nccl_type(tensor), ncclSum, comm(), stream_of(ctx)),
               "all_reduce");
  }
  void all_gather(const OpContext& ctx, const Tensor& input, const Tensor& output) override {
    expect_on_gpu(input, "all_gather: input");
    expect_on_gpu(output, "all_gather: output");
    LADDER_CHECK(output.nbytes() == size_ * input.nbytes(),
                 "all_gather: output: expected {} times {}, got {}", size_, input.str(), output.str());
    if (input.numel() == 0) return;
    check_nccl(nccl_.all_gather(input.raw(), output.raw(), static_cast<size_t>(input.nbytes()), ncclUint8,
                                comm(), stream_of(ctx)),
               "all_gather");
  }
  void reduce_scatter(const OpContext& ctx, const Tensor& input, const Tensor& output) override {
    expect_on_gpu(input, "reduce_scatter: input");
    expect_on_gpu(output, "reduce_scatter: output");
    LADDER_CHECK(input.nbytes() == size_ * output.nbytes() && input.dtype() == output.dtype(),
                 "reduce_scatter: input: expected {} times {}, got {}", size_, output.str(), input.str());
    if (output.numel() == 0) return;
    check_nccl(nccl_.reduce_scatter(input.raw(), output.raw(), static_cast<size_t>(output.numel()),
                                    nccl_type(input), ncclSum, comm(), stream_of(ctx)),
               "reduce_scatter");
  }
  void all_to_all(const OpContext& ctx, const Tensor& input, std::span<const int64_t> send_counts,
                  const Tensor& output, std::span<const int64_t> recv_counts) override {
    expect_on_gpu(input, "all_to_all: input");
    expect_on_gpu(output, "all_to_all: output");
    const auto row_bytes = [](const Tensor& tensor) {
      int64_t bytes = dtype_size(tensor.dtype());
      for (int i = 1; i < tensor.ndim(); ++i) bytes *= tensor.dim(i);
      return bytes;
    };
    const auto expect_counts = [&](std::span<const int64_t> counts, const Tensor& tensor, const char* what) {
      int64_t sum = 0;
      for (const int64_t count : counts) sum += count;
      LADDER_CHECK(static_cast<int>(counts.size()) == size_ && sum == tensor.dim(0),
                   "all_to_all: {}: expected {} counts whose sum is the rows of {}", what, size_,
                   tensor.str());
    };
    expect_counts(send_counts, input, "send_counts");
    expect_counts(recv_counts, output, "recv_counts");
    check_nccl(nccl_.group_start(), "all_to_all");
    const char* from = static_cast<const char*>(input.raw());
    char* to = static_cast<char*>(output.raw());
    for (int peer = 0; peer < size_;
         ++peer) {  // both directions of every pair in one group, or they would wait
      const int64_t sent = send_counts[static_cast<size_t>(peer)] * row_bytes(input);
      const int64_t received = recv_counts[static_cast<size_t>(peer)] * row_bytes(output);
      if (sent > 0)
        check_nccl(nccl_.send(from, static_cast<size_t>(sent), ncclUint8, peer, comm(), stream_of(ctx)),
                   "all_to_all");
      if (received > 0)
        check_nccl(nccl_.recv(to, static_cast<size_t>(received), ncclUint8, peer, comm(), stream_of(ctx)),
                   "all_to_all");
      from += sent, to += received;
    }
    check_nccl(nccl_.group_end(), "all_to_all");
  }
  void send(const OpContext& ctx, const Tensor& tensor, int to) override {
    expect_on_gpu(tensor, "send");
    expect_peer(to, "send to");
    if (tensor.numel() == 0) return;
    check_nccl(
        nccl_.send(tensor.raw(), static_cast<size_t>(tensor.nbytes()), ncclUint8, to, comm(), stream_of(ctx)),
        "send");
  }
  void recv(const OpContext& ctx, const Tensor& tensor, int from) override {
    expect_on_gpu(tensor, "recv");
    expect_peer(from, "recv from");
    if (tensor.numel() == 0) return;
    check_nccl(nccl_.recv(tensor.raw(), static_cast<size_t>(tensor.nbytes()), ncclUint8, from, comm(),
                          stream_of(ctx)),
               "recv");
  }
  void broadcast(const OpContext& ctx, const Tensor& tensor, int root) override {
    expect_on_gpu(tensor, "broadcast");
    LADDER_CHECK(root >= 0 && root < size_, "broadcast: there is no rank {} in a group of {}", root, size_);
    if (tensor.numel() == 0) return;
    check_nccl(nccl_.broadcast(tensor.raw(), tensor.raw(), static_cast<size_t>(tensor.nbytes()), ncclUint8,
                               root, comm(), stream_of(ctx)),
               "broadcast");
  }
  void barrier(const OpContext& ctx) override { all_reduce(ctx, word_); }

  void abort() override {
    if (comm_ != nullptr) nccl_.comm_abort(comm_);
    comm_ = nullptr;
  }
  void check() const override {
    ncclResult_t status = ncclSuccess;
    check_nccl(nccl_.comm_get_async_error(comm(), &status), "the state of a group");
    check_nccl(status, "a collective that was begun");
  }
  void together(const std::function<void()>& calls) override { in_one_nccl_launch(calls); }
  void warm_up(const OpContext& ctx) override {
    const Tensor row = Tensor::zeros({1, 4}, DType::f32, ctx.device);
    const Tensor rows = Tensor::zeros({size_, 4}, DType::f32, ctx.device), others = rows.clone();
    const std::vector<int64_t> ones(static_cast<size_t>(size_), 1);
    all_reduce(ctx, row);
    all_gather(ctx, row, rows);
    reduce_scatter(ctx, rows, row);
    for (int root = 0; root < size_; ++root) broadcast(ctx, row, root);
    all_to_all(ctx, rows, ones, others, ones);  // all pairs, in both directions
    device_synchronize(ctx.device, ctx.stream);
    check();
  }

 private:
  ncclComm_t comm() const {
    LADDER_CHECK(comm_ != nullptr, "the NCCL group of rank {} was aborted", rank_);
    return comm_;
  }
  void expect_peer(int peer, const char* what) const {
    LADDER_CHECK(peer >= 0 && peer < size_ && peer != rank_, "{} rank {}: expected another rank of {}", what,
                 peer, size_);
  }

  int rank_, size_;
  const NcclLibrary& nccl_;
  ncclComm_t comm_ = nullptr;
  Tensor word_;  // what the barrier adds
};

}  // namespace

void in_one_nccl_launch(const std::function<void()>& calls) {
  const NcclLibrary& nccl = nccl_library();
  check_nccl(nccl.group_start(), "calls together");
  calls();
  check_nccl(nccl.group_end(), "calls together");
}

std::string nccl_obstacle() {
  try {
    nccl_library();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

NcclId make_nccl_id() {
  ncclUniqueId unique;
  check_nccl(nccl_library().get_unique_id(&unique), "an id");
  NcclId id;
  std::memcpy(id.data(), &unique, sizeof unique);
  return id;
}

std::unique_ptr<NcclCommunicator> make_nccl_communicator(const NcclId& id, int rank, int size,
                                                         int device_index) {
  return std::make_unique<Nccl>(id, rank, size, device_index);
}

#else

void in_one_nccl_launch(const std::function<void()>& calls) {
  calls();
}
std::string nccl_obstacle() {
  return "this build has no NCCL (nccl.h, of libnccl-dev)";
}
NcclId make_nccl_id() {
  fail("{}", nccl_obstacle());
}
std::unique_ptr<NcclCommunicator> make_nccl_communicator(const NcclId&, int, int, int) {
  fail("{}", nccl_obstacle());
}

#endif

}  // namespace ladder
