#pragma once
// What each rank did last, for whoever has to find out why ranks wait for each other: a deadlock is two ranks that
// stand in different calls, or the same call with other sizes.
#include <deque>
#include <mutex>
#include <string>

#include "step1_layers/distributed/communicator.h"

namespace ladder {

// The last calls of the ranks of one process. Safe from any thread.
class CallTrace {
 public:
  explicit CallTrace(int size) : ranks_(static_cast<size_t>(size)) {}

  void begin(int rank, std::string call);
  void end(int rank);
  // A line per rank: "rank 1: in call 12, all_reduce f32[4]; before it: ..."
  std::string str() const;

 private:
  struct OfRank {
    int64_t calls = 0;
    bool is_in = false;
    std::deque<std::string> last;
  };

  mutable std::mutex mutex_;
  std::vector<OfRank> ranks_;
};

// Another communicator, whose calls are noted. Both outlive it.
class TracedCommunicator final : public Communicator {
 public:
  TracedCommunicator(Communicator& inner, CallTrace& trace) : inner_(inner), trace_(trace) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void all_reduce(const OpContext& ctx, const Tensor& tensor) override;
  void all_gather(const OpContext& ctx, const Tensor& input, const Tensor& output) override;
  void reduce_scatter(const OpContext& ctx, const Tensor& input, const Tensor& output) override;
  void all_to_all(const OpContext& ctx, const Tensor& input, std::span<const int64_t> send_counts,
                  const Tensor& output, std::span<const int64_t> recv_counts) override;
  void send(const OpContext& ctx, const Tensor& tensor, int to) override;
  void recv(const OpContext& ctx, const Tensor& tensor, int from) override;
  void broadcast(const OpContext& ctx, const Tensor& tensor, int root) override;
  void barrier(const OpContext& ctx) override;

 private:
  template <class Call>
  void noted(std::string name, Call&& call);

  Communicator& inner_;
  CallTrace& trace_;
};

}  // namespace ladder
