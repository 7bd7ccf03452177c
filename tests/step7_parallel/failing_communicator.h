#pragma once
// For tests of what happens to a rank in the middle of what several do together.
#include "step1_layers/distributed/communicator.h"

namespace ladder::testing {

// Another communicator, of a rank to which something happens before one of its calls.
class FailingCommunicator final : public Communicator {
 public:
  FailingCommunicator(Communicator& inner, int call, void (*fail)())
      : inner_(inner), call_(call), fail_(fail) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void all_reduce(const OpContext& ctx, const Tensor& tensor) override { counted().all_reduce(ctx, tensor); }
  void all_gather(const OpContext& ctx, const Tensor& input, const Tensor& output) override {
    counted().all_gather(ctx, input, output);
  }
  void reduce_scatter(const OpContext& ctx, const Tensor& input, const Tensor& output) override {
    counted().reduce_scatter(ctx, input, output);
  }
  void all_to_all(const OpContext& ctx, const Tensor& input, std::span<const int64_t> sent,
                  const Tensor& output, std::span<const int64_t> received) override {
    counted().all_to_all(ctx, input, sent, output, received);
  }
  void send(const OpContext& ctx, const Tensor& tensor, int to) override { counted().send(ctx, tensor, to); }
  void recv(const OpContext& ctx, const Tensor& tensor, int from) override {
    counted().recv(ctx, tensor, from);
  }
  void broadcast(const OpContext& ctx, const Tensor& tensor, int root) override {
    counted().broadcast(ctx, tensor, root);
  }
  void barrier(const OpContext& ctx) override { counted().barrier(ctx); }

 private:
  Communicator& counted() {
    if (call_-- == 0) fail_();
    return inner_;
  }

  Communicator& inner_;
  int call_;  // 0: the next; below: none
  void (*fail_)();
};

}  // namespace ladder::testing
