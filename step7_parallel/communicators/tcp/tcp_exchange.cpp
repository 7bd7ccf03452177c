#include "step7_parallel/communicators/tcp/tcp_exchange.h"

#include <poll.h>

#include <algorithm>
#include <exception>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{100};  // of a wait that has no end of its own

}  // namespace

TcpExchange::TcpExchange(int rank, std::vector<PeerStream> peers, std::chrono::milliseconds timeout,
                         std::function<void(const std::string&)> failed)
    : rank_(rank), timeout_(timeout), failed_(std::move(failed)), peers_(std::move(peers)) {}

TcpExchange::~TcpExchange() {
  Lock lock(mutex_);
  ending_ = true;
  changed_.notify_one();
  if (sender_.joinable()) {
    lock.unlock();
    sender_.join();
    lock.lock();
  }
  // An error on its way is not to wait for what was sent and not received.
  const auto deadline = Clock::now() + (std::uncaught_exceptions() > 0 ? Clock::duration(0) : timeout_);
  const auto all_sent = [this] {
    return std::none_of(peers_.begin(), peers_.end(), [](PeerStream& peer) {
      return peer.sends() && peer.pump() && peer.sends() && !peer.has_left();
    });
  };
  try {
    for (PeerStream& peer : peers_)
      if (peer.socket() >= 0 && failure_.empty()) peer.leave();
    while (failure_.empty() && !all_sent() && Clock::now() < deadline) wait_for_any(kLook, false, lock);
  } catch (const Error&) {  // of what a peer has sent: nobody reads it any more
  }
}

void TcpExchange::fail_all(const std::string& why, Lock& lock) {
  failure_ = why;
  for (PeerStream& peer : peers_) peer.fail(why);
  in_call_ = false;
  lock.unlock();
  if (failed_) failed_(why);
  fail("{}", why);
}

void TcpExchange::wait_for_any(std::chrono::milliseconds longest, bool reads, Lock& lock) {
  std::vector<pollfd> polled;
  for (const PeerStream& peer : peers_) {
    if (peer.socket() < 0 || peer.has_ended()) continue;
    const int events = (reads ? POLLIN : 0) | (peer.sends() ? POLLOUT : 0);
    if (events != 0) polled.push_back({peer.socket(), static_cast<short>(events), 0});
  }
  lock.unlock();
  ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp<int64_t>(longest.count(), 0, 1 << 30)));
  lock.lock();
}

void TcpExchange::pump_until(const std::function<bool(const PeerStream&)>& done, Lock& lock) {
  const Clock::time_point deadline = Clock::now() + timeout_;
  for (;;) {
    const PeerStream* waited_for = nullptr;
    for (PeerStream& peer : peers_) {
      bool there = false;
      try {
        there = peer.pump();
      } catch (const Error& error) {
        fail_all(error.what(), lock);
      }
      if (!peer.failure().empty()) fail_all(peer.failure(), lock);
      // One that ends without its last words fails whoever is in a call, so that all hear of it at once.
      if ((!there && !peer.has_left()) || ((!there || peer.has_left()) && !done(peer)))
        fail_all(fmt::format("{} has ended its connection to rank {}", peer.name(), rank_), lock);
      if (!done(peer)) waited_for = &peer;
    }
    if (waited_for == nullptr) return;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0)
      fail_all(
          fmt::format("{} did not answer rank {} within {} ms", waited_for->name(), rank_, timeout_.count()),
          lock);
    wait_for_any(left, true, lock);
  }
}

void TcpExchange::exchange(std::span<const PeerPiece> to, std::span<const PeerPiece> from, Tag tag) {
  Lock lock(mutex_);
  LADDER_CHECK(failure_.empty(), "{}", failure_);
  in_call_ = true;
  for (const PeerPiece& piece : from) {
    try {
      peer(piece.peer).want(tag, const_cast<void*>(piece.bytes), piece.count);
    } catch (const Error& error) {
      fail_all(error.what(), lock);
    }
  }
  for (const PeerPiece& piece : to) peer(piece.peer).queue(tag, piece.bytes, piece.count);
  std::vector<bool> sends_to(peers_.size());
  for (const PeerPiece& piece : to) sends_to[static_cast<size_t>(piece.peer)] = true;
  pump_until(
      [&](const PeerStream& peer) {
        return !peer.wants() && !(peer.sends() && sends_to[static_cast<size_t>(&peer - peers_.data())]);
      },
      lock);
  in_call_ = false;
  changed_.notify_one();
}

void TcpExchange::post(const Tensor& bytes, int to, Tag tag) {
  Lock lock(mutex_);
  LADDER_CHECK(failure_.empty(), "{}", failure_);
  in_call_ = true;
  PeerStream& receiver = peer(to);
  receiver.queue(tag, bytes.raw(), bytes.nbytes(), bytes);
  pump_until([&](const PeerStream& peer) { return &peer != &receiver || peer.num_queued() < kMostPosted; },
             lock);
  in_call_ = false;
  if (!receiver.sends()) return;
  if (!sender_.joinable()) sender_ = std::thread([this] { send_posted(); });
  changed_.notify_one();
}

void TcpExchange::send_posted() {
  const auto has_work = [this] {
    return !in_call_ && std::any_of(peers_.begin(), peers_.end(),
                                    [](const PeerStream& peer) { return peer.sends() && !peer.has_ended(); });
  };
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || has_work(); });
    if (ending_) return;
    wait_for_any(kLook, false, lock);
    if (!has_work()) continue;
    for (PeerStream& peer : peers_) {
      if (!peer.sends()) continue;
      try {
        peer.pump();  // an end is seen by the next call, which has somebody to tell
      } catch (const Error& error) {
        peer.fail(error.what());
      }
    }
  }
}

}  // namespace ladder
