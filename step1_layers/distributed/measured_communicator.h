#pragma once
// What a rank's communication costs: the host's time in its calls, waiting for other ranks included. On a GPU calls only
// launch, so there it says nothing.
#include <chrono>
#include <utility>

#include "step1_layers/distributed/communicator.h"

namespace ladder {

// Another communicator, which outlives it, with two looks at the clock around each call. Of one thread.
class MeasuredCommunicator final : public Communicator {
 public:
  explicit MeasuredCommunicator(Communicator& inner) : inner_(inner) {}

  // Since the last call of this: waiting for what others send, and everything else.
  double take_recv_seconds() { return std::exchange(recv_seconds_, 0.0); }
  double take_other_seconds() { return std::exchange(other_seconds_, 0.0); }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void all_reduce(const OpContext& ctx, const Tensor& tensor) override {
    measured(other_seconds_, [&] { inner_.all_reduce(ctx, tensor); });
  }
  void all_gather(const OpContext& ctx, const Tensor& input, const Tensor& output) override {
    measured(other_seconds_, [&] { inner_.all_gather(ctx, input, output); });
  }
  void reduce_scatter(const OpContext& ctx, const Tensor& input, const Tensor& output) override {
    measured(other_seconds_, [&] { inner_.reduce_scatter(ctx, input, output); });
  }
  void all_to_all(const OpContext& ctx, const Tensor& input, std::span<const int64_t> send_counts,
                  const Tensor& output, std::span<const int64_t> recv_counts) override {
    measured(other_seconds_, [&] { inner_.all_to_all(ctx, input, send_counts, output, recv_counts); });
  }
  void send(const OpContext& ctx, const Tensor& tensor, int to) override {
    measured(other_seconds_, [&] { inner_.send(ctx, tensor, to); });
  }
  void recv(const OpContext& ctx, const Tensor& tensor, int from) override {
    measured(recv_seconds_, [&] { inner_.recv(ctx, tensor, from); });
  }
  void broadcast(const OpContext& ctx, const Tensor& tensor, int root) override {
    measured(other_seconds_, [&] { inner_.broadcast(ctx, tensor, root); });
  }
  void barrier(const OpContext& ctx) override {
    measured(other_seconds_, [&] { inner_.barrier(ctx); });
  }
  void gather(const OpContext& ctx, const Tensor& input, const Tensor& output, int root) override {
    measured(other_seconds_, [&] { inner_.gather(ctx, input, output, root); });
  }
  void all_reduce_add_norm(const OpContext& ctx, const AllReduceNormArgs& args) override {
    measured(other_seconds_, [&] { inner_.all_reduce_add_norm(ctx, args); });
  }

 private:
  template <class Call>
  static void measured(double& seconds, Call call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  Communicator& inner_;
  double recv_seconds_ = 0.0, other_seconds_ = 0.0;
};

}  // namespace ladder
