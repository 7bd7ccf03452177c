#pragma once
// What the files of LocalGroup share. Internal to this folder.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/call_form.h"
#include "step1_layers/distributed/call_trace.h"
#include "step1_layers/distributed/local_group.h"

namespace ladder {

// What a rank brings to a collective. Its peers read it between the two barriers of the call.
struct GroupCall {
  const char* name = "";
  Tensor input = {};
  Tensor output = {};
  std::vector<int64_t> send_counts = {};
  std::vector<int64_t> recv_counts = {};
  int root = 0;
  Tensor gathered = {};  // at the root of a gather; elsewhere nothing, so ranks are not compared by it
};

// The elements of one row: of one index of the first dimension.
inline int64_t row_elements(const Tensor& tensor) {
  int64_t count = 1;
  for (int i = 1; i < tensor.ndim(); ++i) count *= tensor.dim(i);
  return count;
}

inline char* row_address(const Tensor& tensor, int64_t row) {
  return static_cast<char*>(tensor.raw()) + row * row_elements(tensor) * dtype_size(tensor.dtype());
}

struct LocalGroup::State {
  class Rank;

  explicit State(int size)
      : gone(static_cast<size_t>(size)),
        calls(static_cast<size_t>(size)),
        mailboxes(static_cast<size_t>(size * size)),
        trace(size) {}

  int size() const { return static_cast<int>(calls.size()); }

  std::mutex mutex;  // of all that follows but `calls`, which the barriers of a call order
  std::condition_variable changed;
  int arrived = 0;          // at the barrier that is not complete yet
  uint64_t generation = 0;  // counts completed barriers
  std::string failure;      // what became of the first rank that failed
  std::vector<bool> gone;   // by rank: makes no more calls
  std::vector<GroupCall> calls;
  std::vector<std::deque<Tensor>> mailboxes;  // [from * size + to]: sent and not yet received
  std::vector<std::unique_ptr<Rank>> ranks;
  CallTrace trace;  // which locks for itself
  std::vector<std::unique_ptr<TracedCommunicator>> traced_ranks;

  // The rank is gone, with a reason if it failed; wakes whoever waits.
  void leave(int rank, const std::string& reason);
  // Why a call that needs rank `peer` (-1: all of them) cannot complete; empty if it can. It is `failure`, or
  // "rank 1 has left the group". Under the mutex.
  std::string obstacle(int peer) const;
  // Returns when every rank has called it. Error: the obstacle, where a rank will never come; but a barrier
  // that all ranks reached counts, also if one of them leaves right after it.
  void barrier();
  // The calls without their elements, by rank (call_form.h).
  std::vector<CallForm> forms() const;
  // Runs work() between two barriers: after the first every rank's call is known, and no rank returns (and
  // reuses its tensors) before the second. Error, on every rank: the ranks disagree, or work() fails or returns
  // a text that is not empty (what is wrong, the same on every rank).
  template <class Work>
  void collective(int rank, GroupCall call, Work&& work);
};

// One rank's handle (communicator.h says what each call does).
class LocalGroup::State::Rank final : public Communicator {
 public:
  Rank(State& state, int rank) : state_(state), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return state_.size(); }

  // Each runs its copies or sums as the work of State::collective, under its own name in GroupCall::name. Error,
  // on every rank: sizes or dtypes of input and output that do not fit together; a root that is not there.
  void all_reduce(const OpContext& ctx, const Tensor& tensor) override;
  void all_gather(const OpContext& ctx, const Tensor& input, const Tensor& output) override;
  void broadcast(const OpContext& ctx, const Tensor& tensor, int root) override;
  void barrier(const OpContext& ctx) override;
  void gather(const OpContext& ctx, const Tensor& input, const Tensor& output, int root) override;
  void reduce_scatter(const OpContext& ctx, const Tensor& input, const Tensor& output) override;
  void all_to_all(const OpContext& ctx, const Tensor& input, std::span<const int64_t> send_counts,
                  const Tensor& output, std::span<const int64_t> recv_counts) override;
  // Through State::mailboxes, without a barrier: the two ranks need nobody else. Sending copies and does not
  // wait, so two ranks may send to each other before either receives; messages arrive in the order in which they
  // were sent. Error: a tensor that is not on the CPU; the obstacle, where the peer is gone (a message that it
  // sent before counts); recv of another shape or dtype than was sent, after which this rank has failed, so that
  // the sender learns of it at its next call.
  void send(const OpContext& ctx, const Tensor& tensor, int to) override;
  void recv(const OpContext& ctx, const Tensor& tensor, int from) override;

 private:
  static size_t at(int index) { return static_cast<size_t>(index); }
  // Error: there is no such rank, or it is this one.
  void check_peer(const char* name, int peer) const;
  // The first pair of ranks whose counts in an all_to_all do not fit, the same on every rank; empty: all fit.
  std::string counts_problem() const;

  State& state_;
  int rank_;
};

template <class Work>
void LocalGroup::State::collective(int rank, GroupCall call, Work&& work) {
  calls[static_cast<size_t>(rank)] = std::move(call);
  barrier();
  std::string problem = disagreement(forms());
  if (problem.empty()) {
    try {
      problem = work();
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  barrier();
  LADDER_CHECK(problem.empty(), "{}", problem);
}

}  // namespace ladder
