#pragma once
// What a rank sends: the bytes that a method of several ranks moves, whatever the machine.
#include <numeric>

#include "step1_layers/distributed/communicator.h"

namespace ladder {

// Another communicator, which outlives it. Counts what the call has to bring to other ranks, each byte as often as there are
// receivers; sums as a ring makes them. Of one thread at a time.
class CountingCommunicator final : public Communicator {
 public:
  explicit CountingCommunicator(Communicator& inner) : inner_(inner) {}

  int64_t sent_bytes() const { return sent_bytes_; }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void all_reduce(const OpContext& ctx, const Tensor& tensor) override {
    sent_bytes_ += 2 * others() * tensor.nbytes() / size();
    inner_.all_reduce(ctx, tensor);
  }
  void all_gather(const OpContext& ctx, const Tensor& input, const Tensor& output) override {
    sent_bytes_ += others() * input.nbytes();
    inner_.all_gather(ctx, input, output);
  }
  void reduce_scatter(const OpContext& ctx, const Tensor& input, const Tensor& output) override {
    sent_bytes_ += others() * output.nbytes();
    inner_.reduce_scatter(ctx, input, output);
  }
  void all_to_all(const OpContext& ctx, const Tensor& input, std::span<const int64_t> send_counts,
                  const Tensor& output, std::span<const int64_t> recv_counts) override {
    const int64_t rows = std::accumulate(send_counts.begin(), send_counts.end(), int64_t{0});
    if (rows > 0) sent_bytes_ += input.nbytes() / rows * (rows - send_counts[static_cast<size_t>(rank())]);
    inner_.all_to_all(ctx, input, send_counts, output, recv_counts);
  }
  void send(const OpContext& ctx, const Tensor& tensor, int to) override {
    sent_bytes_ += tensor.nbytes();
    inner_.send(ctx, tensor, to);
  }
  void recv(const OpContext& ctx, const Tensor& tensor, int from) override { inner_.recv(ctx, tensor, from); }
  void broadcast(const OpContext& ctx, const Tensor& tensor, int root) override {
    if (rank() == root) sent_bytes_ += others() * tensor.nbytes();
    inner_.broadcast(ctx, tensor, root);
  }
  void barrier(const OpContext& ctx) override { inner_.barrier(ctx); }

 private:
  int64_t others() const { return size() - 1; }

  Communicator& inner_;
  int64_t sent_bytes_ = 0;
};

}  // namespace ladder
