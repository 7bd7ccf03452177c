#include "step7_parallel/hosts/host_watch.h"

#include "step1_layers/core/error.h"
#include "step6_engine/process/wire.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTellTimeout{500};  // of a word to a peer that may be gone

constexpr std::chrono::milliseconds kFirstCause{500};  // until every watch has heard of it

}  // namespace

HostWatch::HostWatch(std::vector<WatchedPeer> peers, std::chrono::milliseconds silence,
                     std::function<void(const std::string& cause)> end)
    : peers_(std::move(peers)), silence_(silence), end_(std::move(end)) {
  for (WatchedPeer& peer : peers_) threads_.emplace_back([this, &peer] { listen_to(peer); });
  threads_.emplace_back([this] { beat(); });
}

HostWatch::~HostWatch() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (WatchedPeer& peer : peers_) peer.socket->shut_down();
  for (std::thread& thread : threads_) thread.join();
}

void HostWatch::tell_all(Kind kind, const std::string& text) {
  for (WatchedPeer& peer : peers_) {
    try {
      peer.socket->write(static_cast<uint32_t>(kind), text, kTellTimeout);
    } catch (const Error&) {  // it has gone; who reads from it says so
    }
  }
}

void HostWatch::beat() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, silence_ / 5, [this] { return ending_ || has_ended_; })) {
    lock.unlock();
    tell_all(Kind::beat, {});
    lock.lock();
  }
}

void HostWatch::listen_to(WatchedPeer& peer) {
  Clock::time_point heard = Clock::now();
  std::string cause;
  try {
    while (const std::optional<Message> message = peer.socket->read()) {
      heard = Clock::now();
      if (message->type == static_cast<uint32_t>(Kind::failed)) return fail(message->bytes);
      if (message->type != static_cast<uint32_t>(Kind::dismissed)) continue;
      std::lock_guard lock(mutex_);
      code_ = from_bytes<int>(message->bytes);
      ending_ = true;
      changed_.notify_all();
      return;
    }
    cause = fmt::format("{} has ended", peer.name);
  } catch (const Error& error) {
    cause = Clock::now() - heard >= silence_
                ? fmt::format("{} has said nothing for {} s: it is stopped, or the connection is cut",
                              peer.name, std::chrono::duration<double>(silence_).count())
                : fmt::format("{}: {}", peer.name, error.what());
  }
  peer.follows ? suspect(cause) : fail(cause);
}

void HostWatch::fail(const std::string& cause) {
  {
    std::lock_guard lock(mutex_);
    if (ending_ || std::exchange(has_ended_, true)) return;
  }
  changed_.notify_all();
  tell_all(Kind::failed, cause);
  end_(cause);
  {
    std::lock_guard lock(mutex_);
    end_returned_ = true;
  }
  changed_.notify_all();
}

void HostWatch::suspect(const std::string& cause) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kFirstCause, [this] { return ending_ || has_ended_; });
    changed_.wait(lock, [this] { return ending_ || !has_ended_ || end_returned_; });
  }
  fail(cause);
}

void HostWatch::dismiss(int code) {
  {
    std::lock_guard lock(mutex_);
    if (has_ended_ || std::exchange(ending_, true)) return;
  }
  changed_.notify_all();
  tell_all(Kind::dismissed, to_bytes(code));
}

std::optional<int> HostWatch::wait_for_dismissal(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return code_.has_value() || has_ended_; });
  return code_;
}

}  // namespace ladder
