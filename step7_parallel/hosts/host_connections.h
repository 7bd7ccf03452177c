#pragma once
// Connections between processes of this program on several machines. Each side has proved to the other that it knows the
// secret (host_secret.h) before anything else is said:
//
//   connector                                            listener
//      | <------------------- "LADRHOST" | version | nonce --- |
//      | --- "LADRHOST" | version | nonce | note | proof ----> |  right? if not, it says so and closes
//      | <--------------------------------- verdict | proof -- |
//
// All of fixed sizes: no length that a stranger sends is believed. The listener waits for nobody: whoever says nothing,
// or a byte a second, or nonsense, is dropped at the end of its own time, and the others come in meanwhile.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "step6_engine/process/message_socket.h"
#include "step7_parallel/hosts/host_secret.h"
#include "step7_parallel/hosts/tcp_socket.h"

namespace ladder {

struct HostTimeouts {
  std::chrono::milliseconds handshake{5'000};  // of one connection
  std::chrono::milliseconds cut{10'000};       // until a peer whose machine is cut off counts as gone
  bool waits_for_listener = true;              // of who connects: nobody listens there yet
};

struct HostConnection {
  FileDescriptor socket;  // reads and writes wait
  HostAddress peer;
  ConnectionNote note{};  // the connector's
};

// Two processes of the same version from here on: each side calls it. Error as MessageSocket::exchange_hello().
std::unique_ptr<MessageSocket> message_socket(HostConnection connection, std::chrono::milliseconds timeout);

// One thread at a time, but for close().
class HostListener {
 public:
  static constexpr int kBacklog = 128;
  static constexpr int kMostUnproved = 64;  // at once; of more the oldest is dropped

  // Error: nothing can listen there.
  HostListener(const HostAddress& address, HostSecret secret, HostTimeouts timeouts = {});

  const HostAddress& address() const { return address_; }  // with the port that port 0 has become

  // The next who has proved to know the secret; none: nobody within the timeout, or it was closed. What others do is no error.
  std::optional<HostConnection> accept(std::chrono::milliseconds timeout);
  // From any thread: nobody can come any more, and who waits for one waits no longer.
  void close() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Unproved {
    HostConnection connection;
    Nonce nonce;
    Clock::time_point deadline;
    std::string got;  // of the answer
  };
  void take_new_ones();
  // True: it has nothing more to say, and its connection is handed over or dropped.
  bool hear(Unproved& one, std::optional<HostConnection>& proved);

  const HostSecret secret_;
  const HostTimeouts timeouts_;
  FileDescriptor socket_;
  std::atomic<bool> is_closed_{false};
  HostAddress address_;
  std::deque<Unproved> unproved_;  // the oldest first
};

// Tries until the deadline while nobody listens there. Error, naming the address: nobody did, and what came of the last
// attempt; at once: it is no Ladder or another version, one of both has another secret, or the machine says that nobody listens
// and timeouts.waits_for_listener is not set.
HostConnection connect_to_host(const HostAddress& address, const HostSecret& secret,
                               std::chrono::milliseconds timeout, HostTimeouts timeouts = {},
                               const ConnectionNote& note = {});

}  // namespace ladder
