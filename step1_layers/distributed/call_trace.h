#pragma once
// What each rank of a group did, for whoever has to find out why ranks wait for each other, or compute nonsense: a
// deadlock is two ranks that stand in different calls, or the same call with other sizes.
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "step1_layers/distributed/call_form.h"
#include "step1_layers/distributed/communicator.h"

namespace ladder {

// One call of one rank, without its elements.
struct TracedCall {
  const char* name = "";
  TensorForm tensor = {};  // the input, where there are two
  int peer = -1;           // of send and recv; the root of broadcast and gather

  std::string str() const;  // "send f32[2, 3] to 1"
};

// The calls of the ranks of one process. Safe from any thread.
class CallTrace {
 public:
  static constexpr size_t kAll = SIZE_MAX;

  // Of a rank the last `kept` calls are to be had, among them the one that it is in.
  explicit CallTrace(int size, size_t kept = 4) : kept_(kept), ranks_(static_cast<size_t>(size)) {}

  void begin(int rank, const TracedCall& call);
  void end(int rank);
  // A line per rank: "rank 1: in call 12, all_reduce f32[4]; before it: ..."
  std::string str() const;
  // Those that are kept, the oldest first.
  std::vector<TracedCall> calls(int rank) const;
  // One line: where the ranks part, in a trace that keeps all calls: the first collective in which two of them
  // differ, or the first message that was not received as it was sent. Empty: they agree.
  std::string parting() const;

 private:
  struct OfRank {
    mutable std::mutex mutex;
    int64_t calls = 0;
    bool is_in = false;
    std::deque<TracedCall> last;  // the newest at the back
  };

  size_t kept_;
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
  void gather(const OpContext& ctx, const Tensor& input, const Tensor& output, int root) override;
  void all_reduce_add_norm(const OpContext& ctx, const AllReduceNormArgs& args) override;

 private:
  template <class Call>
  void noted(const TracedCall& traced, Call&& call);

  Communicator& inner_;
  CallTrace& trace_;
};

}  // namespace ladder
