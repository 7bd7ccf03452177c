#pragma once
// The ranks of one engine on several hosts, watching each other: rank 0 has a connection to every other rank, over which
// both say every moment that they are there. A rank that dies, is stopped, or whose machine is cut off falls silent there,
// whatever it was doing; then rank 0 tells all others, and each ends itself. Without it a rank that waits in a call, or
// for the next request, would not hear of it.
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "step6_engine/process/message_socket.h"

namespace ladder {

struct WatchedPeer {
  std::unique_ptr<MessageSocket> socket;  // whose reads are an Error past the silence
  std::string name;                       // "rank 3 (node 1, 10.0.0.2)"
  // It ends where its node's first rank does: that one, heard of a moment later, is the cause.
  bool follows = false;
};

class HostWatch {
 public:
  // `peers`: on rank 0 all others, by rank; on the others rank 0. `silence`: for how long a peer may say nothing. `end` is
  // called at most once, with the first cause that this rank hears of, from any thread, and ends the process; where it
  // does not, nothing is watched any more.
  HostWatch(std::vector<WatchedPeer> peers, std::chrono::milliseconds silence,
            std::function<void(const std::string& cause)> end);
  ~HostWatch();
  HostWatch(const HostWatch&) = delete;

  // This rank knows of a cause: tells the others, and ends. From any thread.
  void fail(const std::string& cause);
  // A call with peers has failed with it, which may be what follows from a cause that others hear of first: fail(), unless
  // there is another cause within a moment. Returns when this rank has ended, where that does not end the process.
  void suspect(const std::string& cause);
  // On rank 0: the others may go, `code` is the program's. Whatever becomes of them is no failure from here on.
  void dismiss(int code);
  // On the others: waits for the code of rank 0's dismissal. None: it failed instead, or the timeout has come.
  std::optional<int> wait_for_dismissal(std::chrono::milliseconds timeout);

 private:
  enum class Kind : uint32_t { beat = 1, failed, dismissed };

  void listen_to(WatchedPeer& peer);
  void beat();
  void tell_all(Kind kind, const std::string& text);

  std::vector<WatchedPeer> peers_;
  const std::chrono::milliseconds silence_;
  const std::function<void(const std::string& cause)> end_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_ended_ = false, ending_ = false;  // by a cause; by the destructor or a dismissal
  bool end_returned_ = false;
  std::optional<int> code_;
  std::vector<std::thread> threads_;
};

}  // namespace ladder
