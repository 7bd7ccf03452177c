#pragma once
// Exchanges over one TCP connection to each peer (peer_stream.h).
//
// Whoever is in a call reads from all peers and writes to all: none waits for one that waits for it. What was posted and
// did not fit into the kernel's buffers goes on from a thread of its own, as its owner may compute, or wait in another
// group, for long.
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "step7_parallel/communicators/tcp/peer_stream.h"

namespace ladder {

class TcpExchange final : public PeerExchange {
 public:
  // `peers`: by rank; this one's place has no socket. `failed` is called once, with the text, before the first Error is
  // thrown: a peer has ended, or did not answer within the timeout.
  TcpExchange(int rank, std::vector<PeerStream> peers, std::chrono::milliseconds timeout,
              std::function<void(const std::string&)> failed = {});
  ~TcpExchange() override;  // waits, up to the timeout, until what was posted has left
  TcpExchange(const TcpExchange&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  void exchange(std::span<const PeerPiece> to, std::span<const PeerPiece> from, Tag tag) override;
  void post(const Tensor& bytes, int to, Tag tag) override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  PeerStream& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  // Until `done` of all peers, at most until the timeout.
  void pump_until(const std::function<bool(const PeerStream&)>& done, Lock& lock);
  // Looks until a socket can be read, or written where something is queued. The lock is not held meanwhile.
  void wait_for_any(std::chrono::milliseconds longest, bool reads, Lock& lock);
  [[noreturn]] void fail_all(const std::string& why, Lock& lock);
  void send_posted();  // on the thread

  const int rank_;
  const std::chrono::milliseconds timeout_;
  const std::function<void(const std::string&)> failed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<PeerStream> peers_;
  std::string failure_;
  bool in_call_ = false, ending_ = false;
  std::thread sender_;
};

}  // namespace ladder
