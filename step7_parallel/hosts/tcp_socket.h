#pragma once
// Sockets between machines, without a word said yet (host_connections.h).
#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "step6_engine/process/file_descriptor.h"

namespace ladder {

struct HostAddress {
  std::string host;  // a name or a number, of IPv4 or IPv6
  int port = 0;

  std::string str() const;  // "10.0.0.1:29500", "[fd00::1]:29500"
};

// "HOST:PORT", "[HOST]:PORT". Error naming `flag`. Port 0, one that is free, is for those who listen: least_port 0.
HostAddress parse_host_address(std::string_view text, std::string_view flag, int least_port = 1);

// Whether all that the host's name stands for is this machine alone (127.0.0.0/8, ::1). Error: nothing is known of it.
bool is_loopback(const std::string& host);

// A socket that listens there and waits for nothing (O_NONBLOCK); port 0: one that is free. Error: it cannot.
FileDescriptor listen_on(const HostAddress& address, int backlog);
// One attempt, given up at the deadline. `why`, and errno: what became of it where there is no socket. Error: the name stands
// for nothing that will come to be.
FileDescriptor try_to_connect(const HostAddress& address, std::chrono::steady_clock::time_point deadline,
                              std::string& why);

// Small messages leave at once (TCP_NODELAY). A peer whose machine is cut off is noticed within about `cut`, whether bytes
// are under way to it (TCP_USER_TIMEOUT) or none (SO_KEEPALIVE); one that is stopped is not: its machine answers for it.
void set_tcp_options(int socket, std::chrono::milliseconds cut);
void set_blocking(int socket, bool blocking);
// A read that waits for longer fails (SO_RCVTIMEO).
void set_read_timeout(int socket, std::chrono::milliseconds timeout);

// So few bytes that the kernel takes them all. False: it does not, the peer has gone.
bool send_at_once(int socket, const void* bytes, size_t size);
// False: the connection ended before all were there, or the deadline came.
bool receive_whole(int socket, void* to, size_t size, std::chrono::steady_clock::time_point deadline);

HostAddress local_address(int socket);
HostAddress peer_address(int socket);

}  // namespace ladder
