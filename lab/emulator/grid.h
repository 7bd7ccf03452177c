#pragma once
// A launch on the emulated device: its blocks one after the other, what its threads access, what is wrong with them.
#include <set>
#include <string>
#include <vector>

#include "lab/emulator/block.h"
#include "lab/emulator/races.h"
#include "lab/emulator/warp_accesses.h"

namespace ladder_emulator {

std::string hex(uint64_t number);

// What a launch moved, for the tables and pictures.
struct LaunchCounts {
  std::string kernel;
  dim3 grid, block;
  std::vector<Instruction> instructions;
};

class Grid {
 public:
  // Reports beyond these are counted only.
  static constexpr int kMaxReports = 3;

  bool run(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, const void* call, size_t bytes,
           void (*thread)(const void* call));  // false: something was reported

  Block& block() { return block_; }
  Clock& clock() { return clock_; }

  void access(uintptr_t address, size_t bytes, bool writes, bool atomic, const void* at);
  void declare_shared(void* begin, size_t bytes, const char* name);
  void* dynamic_shared(const char* name);
  void warp_paused();  // its lanes stand at the same place

  // "norm_block, block 3, thread 17, rms_norm_cuda.cu:55: WHAT: DETAIL". Once for each kind and place.
  void report(const std::string& what, const void* at, const std::string& detail, bool of_thread = true);
  const std::string& reports() const { return reports_; }  // of the last launch, a paragraph each
  std::string line(const void* at) const;                  // "rms_norm_cuda.cu:55"

  // Counting takes time and is done when asked for.
  void count(bool counts) { counts_ = counts; }
  std::vector<LaunchCounts>& counts() { return launches_; }

 private:
  [[noreturn]] void fatal(const std::string& what, const void* at, const std::string& detail);
  std::string where(int64_t block, int thread) const;

  Block block_;
  Clock clock_;
  WarpAccesses accesses_;
  std::string kernel_, reports_;
  dim3 grid_, threads_;
  std::set<std::string> reported_;
  int num_reports_ = 0;
  bool counts_ = false;
  size_t dynamic_bytes_ = 0;
  std::vector<LaunchCounts> launches_;
};

Grid& grid();

}  // namespace ladder_emulator
