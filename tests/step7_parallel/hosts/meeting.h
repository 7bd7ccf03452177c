#pragma once
// For the tests of ranks on several nodes, here threads: their places, and how they meet.
#include <functional>
#include <thread>
#include <vector>

#include "step7_parallel/hosts/rendezvous.h"
#include "step7_parallel/hosts/tcp_socket.h"

namespace ladder::testing {

inline HostAddress free_address() {
  return local_address(listen_on({"127.0.0.1", 0}, 1).number());
}

inline std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

inline HostPlace place_of(int rank, int num_nodes, int ranks_per_node, const HostAddress& master) {
  return {.num_nodes = num_nodes,
          .node = rank / ranks_per_node,
          .ranks_per_node = ranks_per_node,
          .local_rank = rank % ranks_per_node,
          .master = master,
          .secret = {"the word"},
          .arguments = "generate",
          .arrival = std::chrono::seconds(30),
          .silence = std::chrono::seconds(30)};
}

// What each of the places hears at the rendezvous.
inline std::vector<std::string> meeting_of(const std::vector<HostPlace>& places) {
  std::vector<std::string> errors(places.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < places.size(); ++i)
    threads.emplace_back([&, i] {
      errors[i] = error_of([&] { places[i].rank() == 0 ? receive_ranks(places[i]) : join_ranks(places[i]); });
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace ladder::testing
