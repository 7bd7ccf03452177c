#pragma once
// One rank of a SharedMemoryGroup. Internal to this folder.
#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/shared_memory_group.h"

namespace ladder {

class SharedMemoryRank final : public Communicator {
 public:
  SharedMemoryRank(std::shared_ptr<const GroupMemory> memory, int rank,
                   const SharedMemoryGroup::Patience& patience);
  ~SharedMemoryRank() override;

  int rank() const override { return rank_; }
  int size() const override { return memory_->size(); }
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
  static constexpr int kEverybody = -1;
  class InCall;  // every call begins with one: while it lives, SharedMemoryGroup::where() tells of the call

  // A round is next_turn(), any number of put(), and then agree(), if it is a collective's first, or meet().
  // Afterwards all that the ranks have put is to be read, until the next round's meeting is over.
  void next_turn() { ++turn_; }
  void put(const void* bytes, int64_t count, int64_t at = 0);  // into this rank's staging area
  // Returns when every rank has come to as many meetings as this one: arrived() counts what all of them ever did, and
  // the last one of a meeting rings all. Place::rounds says how often this rank came, for absent_from_meeting(). Error:
  // one has left or the group is closed, and then this rank does not arrive either; as wait(), where missing() says
  // "rank 2 (process 4711) did not come to rank 0's all_reduce".
  void meet();
  // meet(), in which the ranks learn of each other's calls. Error, on every rank: they disagree, or the call does
  // not fit itself.
  void agree(const CallForm& call, std::span<const int64_t> send_counts = {},
             std::span<const int64_t> recv_counts = {});
  template <class T = std::byte>
  T* staged(int rank) const {
    return reinterpret_cast<T*>(memory_->staged(rank, turn_));
  }
  std::vector<CallForm> forms() const;
  CallCounts counts() const;

  // Returns when ready() says so, which it says by what is followed by a ring of this rank's bell. Error: the group
  // is closed; `peer` (or one of kEverybody) has left; the time is up, and then the group is closed: missing() says
  // what did not happen.
  template <class Ready, class Missing>
  void wait(Ready ready, int peer, Missing missing);
  // Why a call that needs `peer` cannot complete; empty if it can.
  std::string obstacle(int peer) const;
  bool is_obstructed(int peer) const;
  std::string absent_from_meeting() const;
  void check_peer(const char* name, int peer) const;

  std::shared_ptr<const GroupMemory> memory_;
  int rank_;
  SharedMemoryGroup::Patience patience_;
  uint64_t rounds_ = 0;  // meetings that this rank came to
  uint64_t turn_ = 0;    // of the staging areas
};

class SharedMemoryRank::InCall {
 public:
  InCall(const SharedMemoryRank& rank, const char* name) : place_(rank.memory_->place(rank.rank_)) {
    place_.calls.fetch_add(1, std::memory_order_relaxed);
    place_.doing.store(GroupMemory::call_number(name), std::memory_order_relaxed);
  }
  ~InCall() { place_.doing.store(0, std::memory_order_relaxed); }

 private:
  GroupMemory::Place& place_;
};

template <class Ready, class Missing>
void SharedMemoryRank::wait(Ready ready, int peer, Missing missing) {
  memory_->place(rank_).bell.wait_for([&] { return ready() || is_obstructed(peer); }, patience_.spin,
                                      patience_.timeout);
  const std::string why = obstacle(peer);  // first: what a rank did before it left counts
  if (ready()) return;
  LADDER_CHECK(why.empty(), "{}", why);
  memory_->close(fmt::format("{} within {} ms", missing(), patience_.timeout.count()));
  fail("{}", memory_->reason());
}

}  // namespace ladder
