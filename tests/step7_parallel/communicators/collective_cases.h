#pragma once
// What every communicator must do, as cases that run on every rank of a group of any size: so the same are run by
// threads, by forked processes and by mpirun's. A case throws what is wrong. Ranks agree on inputs by the seed.
#include <cstdint>
#include <span>
#include <string_view>

#include "step1_layers/distributed/communicator.h"

namespace ladder::testing {

struct CollectiveCase {
  std::string_view name;
  void (*run)(Communicator& group, uint64_t seed);
};

std::span<const CollectiveCase> collective_cases();
const CollectiveCase& collective_case(std::string_view name);

}  // namespace ladder::testing
