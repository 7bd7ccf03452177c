#pragma once
// Two hosts of a network on this machine: two network namespaces and a cable between them, which can be pulled.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "step7_parallel/hosts/tcp_socket.h"

namespace ladder::testing {

class NetworkNamespaces {
 public:
  NetworkNamespaces() {
    const std::string id = std::to_string(::getpid() % 100000);
    for (const char* const side : {"a", "b"}) names_.push_back("ladder" + id + side);
    const std::string &a = names_[0], &b = names_[1];
    is_there_ = shell("ip netns add " + a) && shell("ip netns add " + b) &&
                shell("ip -n " + a + " link add cable type veth peer name cable netns " + b);
    for (int side = 0; side < 2 && is_there_; ++side) {
      const std::string in = "ip -n " + name(side);
      is_there_ = shell(in + " addr add " + address(side) + "/24 dev cable") &&
                  shell(in + " link set cable up") && shell(in + " link set lo up");
    }
  }
  ~NetworkNamespaces() {
    for (const std::string& name : names_) shell("ip netns del " + name);
  }
  NetworkNamespaces(const NetworkNamespaces&) = delete;
  NetworkNamespaces& operator=(const NetworkNamespaces&) = delete;

  // False: they are refused here.
  bool is_there() const { return is_there_; }
  static std::string address(int side) { return "10.77.0." + std::to_string(side + 1); }
  // Before the words of a command that is to run on that side.
  std::string launcher(int side) const { return "ip netns exec " + name(side); }
  void cut() { EXPECT_TRUE(shell("ip -n " + names_[0] + " link set cable down")); }

  // On a thread of that side, until it returns: its sockets, and the threads and processes that it starts, stay there.
  template <class Function>
  void run_on(int side, const Function& function) const {
    std::thread thread([&] {
      const FileDescriptor there(::open(("/run/netns/" + name(side)).c_str(), O_RDONLY | O_CLOEXEC));
      ASSERT_EQ(::setns(there.number(), CLONE_NEWNET), 0) << name(side);
      function();
    });
    thread.join();
  }

 private:
  static bool shell(const std::string& command) {
    return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
  }
  const std::string& name(int side) const { return names_[static_cast<size_t>(side)]; }

  std::vector<std::string> names_;
  bool is_there_ = false;
};

}  // namespace ladder::testing
