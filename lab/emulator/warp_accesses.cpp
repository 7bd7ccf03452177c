#include "lab/emulator/warp_accesses.h"

#include <algorithm>
#include <bit>

namespace ladder_emulator {

namespace {

// A set of a few hundred numbers at most.
class Numbers {
 public:
  void add(uintptr_t number) {
    if (values_.empty() || values_.back() != number) values_.push_back(number);
  }
  int count() {
    std::sort(values_.begin(), values_.end());
    return static_cast<int>(std::unique(values_.begin(), values_.end()) - values_.begin());
  }

 private:
  std::vector<uintptr_t> values_;
};

template <class Fn>
void for_lanes(const Request& request, int first, int last, Fn&& fn) {
  for (int lane = first; lane < last; ++lane)
    if ((request.lanes >> lane & 1) != 0) fn(request.address[lane]);
}

}  // namespace

int sectors_of(const Request& request) {
  Numbers sectors;
  for_lanes(request, 0, 32, [&](uintptr_t address) {
    for (uintptr_t at = address / 32; at <= (address + request.bytes - 1) / 32; ++at) sectors.add(at);
  });
  return sectors.count();
}

int fewest_sectors_of(const Request& request) {
  Numbers pieces;
  for_lanes(request, 0, 32, [&](uintptr_t address) { pieces.add(address); });
  return (pieces.count() * request.bytes + 31) / 32;
}

Passes passes_of(const Request& request) {
  const int lanes = request.bytes <= 4 ? 32 : request.bytes <= 8 ? 16 : 8;
  Passes passes;
  for (int first = 0; first < 32; first += lanes) {
    std::vector<uintptr_t> words[32];
    int most = 0;
    for_lanes(request, first, first + lanes, [&](uintptr_t address) {
      for (uintptr_t word = address / 4; word <= (address + request.bytes - 1) / 4; ++word) {
        auto& bank = words[word % 32];
        if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
        most = std::max(most, static_cast<int>(bank.size()));
      }
    });
    passes.taken += most;
    passes.fewest += most > 0;
  }
  return passes;
}

void Instruction::add(const Request& request) {
  ++requests;
  if (std::popcount(request.lanes) > std::popcount(shown.lanes)) shown = request;
  if (space == Space::global) {
    sectors += sectors_of(request);
    fewest_sectors += fewest_sectors_of(request);
  } else {
    const Passes of = passes_of(request);
    passes += of.taken;
    fewest_passes += of.fewest;
    most_passes = std::max(most_passes, of.taken);
  }
}

void WarpAccesses::add(int lane, uint32_t place, Space space, bool store, int bytes, uintptr_t address) {
  const uint64_t key = uint64_t{place} << 8 | static_cast<unsigned>(bytes) << 1 | store;
  Pending& pending = pending_[key];
  pending.space = space;
  pending.store = store;
  const uint32_t number = pending.done[lane]++;
  if (number >= pending.requests.size()) pending.requests.resize(number + 1);
  Request& request = pending.requests[number];
  request.bytes = bytes;
  request.lanes |= 1u << lane;
  request.address[lane] = address;
}

void WarpAccesses::flush() {
  for (auto& [key, pending] : pending_) {
    if (pending.requests.empty()) continue;
    Instruction& instruction = instructions_[key];
    instruction.place = static_cast<uint32_t>(key >> 8);
    instruction.space = pending.space;
    instruction.store = pending.store;
    instruction.bytes = static_cast<int>(key >> 1 & 127);
    for (const Request& request : pending.requests) instruction.add(request);
    pending.requests.clear();
    std::fill(std::begin(pending.done), std::end(pending.done), 0);
  }
}

}  // namespace ladder_emulator
