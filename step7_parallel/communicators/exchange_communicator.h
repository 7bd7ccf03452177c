#pragma once
// A group of ranks of the CPU whose collectives are exchanges of bytes between them (peer_exchange.h).
//
// Before a collective the ranks exchange what they call (call_form.h), so that a disagreement is an Error on all of them
// and not a hang; then each sums what is its own in f32 and in rank order, as the other CPU groups do.
#include <memory>

#include "step1_layers/distributed/call_form.h"
#include "step1_layers/distributed/communicator.h"
#include "step7_parallel/communicators/peer_exchange.h"

namespace ladder {

class ExchangeCommunicator final : public Communicator {
 public:
  explicit ExchangeCommunicator(std::unique_ptr<PeerExchange> exchange) : exchange_(std::move(exchange)) {}

  int rank() const override { return exchange_->rank(); }
  int size() const override { return exchange_->size(); }
  void all_reduce(const OpContext& ctx, const Tensor& tensor) override;
  void all_gather(const OpContext& ctx, const Tensor& input, const Tensor& output) override;
  void reduce_scatter(const OpContext& ctx, const Tensor& input, const Tensor& output) override;
  void all_to_all(const OpContext& ctx, const Tensor& input, std::span<const int64_t> send_counts,
                  const Tensor& output, std::span<const int64_t> recv_counts) override;
  // A copy is sent, without waiting.
  void send(const OpContext& ctx, const Tensor& tensor, int to) override;
  void recv(const OpContext& ctx, const Tensor& tensor, int from) override;
  void broadcast(const OpContext& ctx, const Tensor& tensor, int root) override;
  void barrier(const OpContext& ctx) override;

 private:
  // The ranks learn of each other's calls. Error, on every rank: they disagree, or the call does not fit itself.
  void agree(const CallForm& call, std::span<const int64_t> send_counts = {},
             std::span<const int64_t> recv_counts = {});
  // mine, of `count` bytes, to all; theirs, by rank one after another, into `all`, with mine among them.
  void gather_bytes(const void* mine, int64_t count, void* all);
  // The bytes [begins[r], begins[r + 1]) of `from` go to rank r; rank r's bytes for this rank to [into[r], into[r +
  // 1]).
  void scatter_bytes(const void* from, std::span<const int64_t> begins, void* to,
                     std::span<const int64_t> into);
  void check_peer(const char* name, int peer) const;

  const std::unique_ptr<PeerExchange> exchange_;
};

}  // namespace ladder
