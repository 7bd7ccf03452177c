#pragma once
// A port for a program that a test starts later, which nobody else gets meanwhile.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <list>
#include <string>

#include "step7_parallel/hosts/tcp_socket.h"

namespace ladder::testing {

// Of the loopback, until this process ends: a socket is bound to it that does not listen. So the kernel deals it to nobody who
// asks for any port, connections are refused, and who is told this one may listen there (SO_REUSEADDR).
inline std::string held_port() {
  static std::list<FileDescriptor> held;
  const FileDescriptor& socket = held.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  EXPECT_EQ(::setsockopt(socket.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(socket.number(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return std::to_string(local_address(socket.number()).port);
}

}  // namespace ladder::testing
