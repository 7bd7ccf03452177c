#pragma once
// The ways in which ranks talk, in one table that tests and benchmarks iterate over.
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/distributed/communicator.h"

namespace ladder {

struct CommunicatorKind {
  std::string_view name;
  DeviceType device = DeviceType::cpu;  // where the tensors are
  std::string_view idea;                // the one idea, for people
  std::string_view needs;               // "one machine"
  bool sums_in_rank_order = false;      // in f32; without it only: the same bits on all ranks
  // Why there can be no group of `size` ranks in this build and on this machine; empty: there can.
  std::string (*obstacle)(int size);
  // Runs fn(rank, group) on every rank of a new group on this machine, each as the kind has it (a thread, a
  // process), and waits for all; by rank, what it threw, empty if it returned. A rank that throws, and what is not
  // done by the deadline, releases the others. nullptr: ranks of this kind are started by another program (mpirun).
  std::vector<std::string> (*run)(int size, std::chrono::milliseconds deadline,
                                  const std::function<void(int rank, Communicator& group)>& fn);
};

// The clearest first, by device.
const std::vector<CommunicatorKind>& communicator_kinds();
const CommunicatorKind& communicator_kind(
    std::string_view name);  // Error: there is none; says which there are

}  // namespace ladder
