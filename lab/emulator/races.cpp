#include "lab/emulator/races.h"

#include <algorithm>

namespace ladder_emulator {

void Clock::begin_launch() {
  launch_ = ++time_;
  blocks_.clear();
}

void Clock::begin_block() {
  block_ = barrier_ = ++time_;
  blocks_.push_back(time_);
}

void Clock::sync_lanes(int warp, uint32_t mask) {
  ++time_;
  for (int a = 0; a < kWarp; ++a)
    for (int b = 0; b < kWarp; ++b)
      if ((mask >> a & 1) != 0 && (mask >> b & 1) != 0) syncs_[warp][a][b] = time_;
}

bool Clock::ordered(const Stamp& before, uint16_t thread, Space space) const {
  if (before.time < launch_) return true;
  if (before.time < block_) return space == Space::shared;  // every block has its own
  if (before.time < barrier_ || before.thread == thread) return true;
  if (before.thread / kWarp != thread / kWarp) return false;
  return before.time < syncs_[thread / kWarp][before.thread % kWarp][thread % kWarp];
}

int64_t Clock::block_of(const Stamp& stamp) const {
  return std::upper_bound(blocks_.begin(), blocks_.end(), stamp.time) - blocks_.begin() - 1;
}

std::optional<Race> note_access(const Clock& clock, Region& region, size_t offset, size_t bytes,
                                const Stamp& now, bool writes) {
  std::optional<Race> race;
  const auto check = [&](const Stamp& before, bool wrote, size_t at) {
    if (race || before.time == 0 || (before.atomic && now.atomic)) return;
    if (!clock.ordered(before, now.thread, region.space)) race = Race{before, wrote, at};
  };
  for (size_t at = offset; at < offset + bytes; ++at) {
    Cell& cell = region.cells[at];
    check(cell.write, true, at);
    if (writes) {
      check(cell.read[0], false, at);
      check(cell.read[1], false, at);
      cell.write = now;
    } else {
      // The reads of two threads, so that a write of either one still meets the other's.
      const Stamp& last = cell.read[0];
      if (last.thread != now.thread || last.time < clock.block_time()) cell.read[1] = last;
      cell.read[0] = now;
    }
  }
  return race;
}

}  // namespace ladder_emulator
