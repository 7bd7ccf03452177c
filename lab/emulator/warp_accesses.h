#pragma once
// What a warp's accesses cost: 32-byte sectors of global memory, passes over the banks of shared memory.
//
// A GPU's warp runs an instruction for all its lanes at once. Here a lane's n-th access by an instruction since the
// last barrier belongs to the warp's n-th: one request.
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "lab/emulator/memory.h"

namespace ladder_emulator {

struct Request {
  uint32_t lanes = 0;  // that take part
  int bytes = 0;       // of each lane
  uintptr_t address[32] = {};
};

// How many 32-byte sectors the lanes touch: what memory moves.
int sectors_of(const Request& request);
// How few there could be for as many different bytes.
int fewest_sectors_of(const Request& request);
// How many passes it takes over the 32 banks of four bytes, and how few it could: 8 bytes a lane are served by half
// warps, 16 by quarters. A pass serves one word of each bank.
struct Passes {
  int taken = 0, fewest = 0;
};
Passes passes_of(const Request& request);

// The requests of one instruction, by all warps of a launch.
struct Instruction {
  uint32_t place = 0;
  Space space = Space::global;
  bool store = false;
  int bytes = 0;
  int64_t requests = 0, sectors = 0, fewest_sectors = 0, passes = 0, fewest_passes = 0;
  int most_passes = 0;  // of one request
  Request shown;        // the first with the most lanes

  void add(const Request& request);
};

// Collects the accesses of one warp at a time into requests.
class WarpAccesses {
 public:
  void add(int lane, uint32_t place, Space space, bool store, int bytes, uintptr_t address);
  void flush();  // at a barrier of the block, and when the warp has ended
  const std::map<uint64_t, Instruction>& instructions() const { return instructions_; }
  void clear() { pending_.clear(), instructions_.clear(); }

 private:
  struct Pending {
    Space space;
    bool store;
    std::vector<Request> requests;
    uint32_t done[32] = {};  // of each lane, since the last flush
  };
  std::unordered_map<uint64_t, Pending> pending_;  // by instruction and size
  std::map<uint64_t, Instruction> instructions_;
};

}  // namespace ladder_emulator
