#include "lab/emulator/grid.h"

#include <string.h>

#include "lab/emulator/source_lines.h"

extern char __executable_start, edata;

namespace ladder_emulator {

namespace {

constexpr size_t kMostDynamicShared = 256 << 10, kGuard = 4096;
alignas(256) char dynamic_memory[kGuard + kMostDynamicShared + kGuard];

uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

std::string bytes_text(size_t bytes) {
  return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

}  // namespace

std::string hex(uint64_t number) {
  char text[20];
  snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(number));
  return text;
}

Grid& grid() {
  static Grid* all = new Grid;
  return *all;
}

bool Grid::run(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, const void* call, size_t bytes,
               void (*thread)(const void* call)) {
  kernel_ = kernel;
  grid_ = grid;
  threads_ = block;
  reports_.clear();
  reported_.clear();
  num_reports_ = 0;
  const uint64_t count = uint64_t{block.x} * block.y * block.z;
  if (count == 0 || count > Block::kMaxThreads || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      shared_bytes > kMostDynamicShared) {
    reports_ = kernel_ + ": a launch of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
               std::to_string(grid.z) + " blocks of " + std::to_string(count) + " threads with " +
               bytes_text(shared_bytes) + " of shared memory: expected 1 to 1024 threads, a block at least";
    return false;
  }
  memory().add(call, bytes, Space::parameters);
  dynamic_bytes_ = shared_bytes;
  if (shared_bytes > 0) memory().add(dynamic_memory + kGuard, shared_bytes, Space::shared, "extern");
  clock_.begin_launch();
  accesses_.clear();
  const auto clean = [&] {
    memory().remove(call);
    if (shared_bytes > 0) memory().remove(dynamic_memory + kGuard);
  };
  try {
    uint3 at{};
    for (at.z = 0; at.z < grid.z && num_reports_ == 0; ++at.z)
      for (at.y = 0; at.y < grid.y && num_reports_ == 0; ++at.y)
        for (at.x = 0; at.x < grid.x && num_reports_ == 0; ++at.x) {
          clock_.begin_block();
          block_.run(at, block, grid, thread, call);
        }
  } catch (...) {
    clean();
    throw;
  }
  clean();
  if (counts_) {
    LaunchCounts launch{kernel_, grid, block, {}};
    for (const auto& [key, instruction] : accesses_.instructions())
      launch.instructions.push_back(instruction);
    launches_.push_back(std::move(launch));
  }
  return num_reports_ == 0;
}

void Grid::warp_paused() {
  if (counts_) accesses_.flush();
}

void Grid::access(uintptr_t address, size_t bytes, bool writes, bool atomic, const void* at) {
  const Thread& me = *block_.current();
  if (address - me.stack < Block::kStackBytes) return;       // its own variables
  if (address - address_of(&place) < sizeof(place)) return;  // threadIdx and the like
  Region* region = memory().find(address);
  if (region == nullptr) {
    const bool constant = address >= address_of(&__executable_start) && address < address_of(&edata);
    if (constant && !writes) return;
    const uintptr_t stacks = address - (me.stack - me.index * Block::kStackBytes);
    fatal(writes ? "a write out of bounds" : "a read out of bounds", at,
          bytes_text(bytes) + ", " +
              (stacks < Block::kStackBytes * Block::kMaxThreads ? "in a variable of another thread"
                                                                : memory().describe(address)));
  }
  const size_t offset = address - region->begin;
  if (offset + bytes > region->bytes)
    fatal(writes ? "a write out of bounds" : "a read out of bounds", at,
          bytes_text(bytes) + " at byte " + std::to_string(offset) + " of " + name_of(*region) + " of " +
              bytes_text(region->bytes));
  if (region->space == Space::parameters) {
    if (writes) fatal("a write to the kernel's parameters", at, bytes_text(bytes));
    return;
  }
  if ((bytes & (bytes - 1)) == 0 && bytes <= 16 && address % bytes != 0)
    fatal("a misaligned access", at,
          bytes_text(bytes) + " at byte " + std::to_string(offset) + " of " + name_of(*region) +
              ": expected a multiple of " + std::to_string(bytes));

  const uint32_t place = place_of(at);
  if (counts_) accesses_.add(me.lane(), place, region->space, writes, static_cast<int>(bytes), address);
  if (!writes || atomic)
    for (size_t i = offset; i < offset + bytes; ++i)
      if (!region->known[i]) {
        report("an uninitialised read", at,
               "byte " + std::to_string(i) + " of " + name_of(*region) + " was never written" +
                   (region->space == Space::shared ? " by this block" : ""));
        break;
      }
  if (writes) memset(region->known + offset, 1, bytes);
  const Stamp now{clock_.time(), place, static_cast<uint16_t>(me.index), atomic};
  const auto race = note_access(clock_, *region, offset, bytes, now, writes);
  if (!race) return;
  const bool same_block = race->before.time >= clock_.block_time();
  report("a race on " + name_of(*region), at,
         std::string(atomic   ? "it changes (atomic)"
                     : writes ? "it writes"
                              : "it reads") +
             " byte " + std::to_string(race->offset) + ", which " +
             where(same_block ? -1 : clock_.block_of(race->before), race->before.thread) +
             (race->before_wrote ? " writes at " : " reads at ") + line_at(race->before.place) +
             (same_block ? ", and no barrier lies between" : ", and nothing orders blocks"));
}

std::string Grid::where(int64_t block, int thread) const {
  std::string text;
  if (block >= 0) text = "block " + std::to_string(block) + ", ";
  text += "thread " + std::to_string(thread);
  if (threads_.y * threads_.z > 1) {
    const unsigned n = static_cast<unsigned>(thread);
    text += " (" + std::to_string(n % threads_.x) + ", " + std::to_string(n / threads_.x % threads_.y) +
            ", " + std::to_string(n / (threads_.x * threads_.y)) + ")";
  }
  return text;
}

void Grid::report(const std::string& what, const void* at, const std::string& detail, bool of_thread) {
  const std::string here = line(at);
  if (!reported_.insert(what + here).second) return;
  if (++num_reports_ > kMaxReports) return;
  const int64_t number =
      place.block_index.x + int64_t{grid_.x} * (place.block_index.y + int64_t{grid_.y} * place.block_index.z);
  std::string text = what + " in " + kernel_ + ", block " + std::to_string(number);
  if (of_thread && block_.current() != nullptr) text += ", " + where(-1, block_.current()->index);
  reports_ += (reports_.empty() ? "" : "\n") + text + ", " + here + ": " + detail;
}

void Grid::fatal(const std::string& what, const void* at, const std::string& detail) {
  report(what, at, detail);
  block_.abandon();
}

std::string Grid::line(const void* at) const {
  return line_at(place_of(at));
}

void Grid::declare_shared(void* begin, size_t bytes, const char* name) {
  Region* region = memory().at(begin);
  if (region == nullptr) region = &memory().add(begin, bytes, Space::shared, name);
  if (region->block_time == clock_.block_time()) return;
  region->block_time = clock_.block_time();
  memset(region->known, 0, bytes);
}

void* Grid::dynamic_shared(const char* name) {
  if (dynamic_bytes_ > 0) {
    declare_shared(dynamic_memory + kGuard, dynamic_bytes_, name);
    memory().at(dynamic_memory + kGuard)->name = name;
  }
  return dynamic_memory + kGuard;
}

}  // namespace ladder_emulator
