#pragma once
// When two accesses of different threads are ordered, and which were not.
//
// A clock counts what orders threads: the beginning of a launch and of a block, the block's barriers, __syncwarp. Two
// accesses to a byte, one of them a write and not both atomic, are a race unless something of these lies between.
// Blocks of one launch are never ordered. Threads run one after the other, so a race is found whatever the order would
// have been on a GPU.
#include <optional>
#include <vector>

#include "lab/emulator/memory.h"

namespace ladder_emulator {

class Clock {
 public:
  static constexpr int kWarp = 32, kMaxThreads = 1024;

  void begin_launch();
  void begin_block();
  void barrier() { barrier_ = ++time_; }
  void sync_lanes(int warp, uint32_t mask);

  uint32_t time() const { return time_; }
  uint32_t block_time() const { return block_; }
  // Whether an access of before is ordered to one that `thread` of the current block makes now.
  bool ordered(const Stamp& before, uint16_t thread, Space space) const;
  // Which block of the launch it was, by its number in the order of blocks.
  int64_t block_of(const Stamp& stamp) const;

 private:
  uint32_t time_ = 1, launch_ = 1, block_ = 1, barrier_ = 1;
  std::vector<uint32_t> blocks_;                            // when each block of the launch began
  uint32_t syncs_[kMaxThreads / kWarp][kWarp][kWarp] = {};  // when two lanes of a warp met last
};

struct Race {
  Stamp before;
  bool before_wrote;
  size_t offset;  // of the first byte of both
};

// Notes an access to bytes of a region in their cells. Returns the first race, if it is one.
std::optional<Race> note_access(const Clock& clock, Region& region, size_t offset, size_t bytes,
                                const Stamp& now, bool writes);

}  // namespace ladder_emulator
