// What the compiler calls for every load and store of a kernel (-fsanitize=thread, without that sanitizer's library),
// and what kernel.h declares.
#include <stdio.h>
#include <stdlib.h>

#include "lab/emulator/grid.h"
#include "lab/emulator/kernel.h"
#include "lab/emulator/launch.h"
#include "lab/emulator/memory.h"
#include "lab/emulator/source_lines.h"

#define LADDER_HOOK(name, bytes, writes)                         \
  void name(void* address) {                                     \
    access(address, bytes, writes, __builtin_return_address(0)); \
  }
#define LADDER_HOOKS(bytes)                               \
  LADDER_HOOK(__tsan_read##bytes, bytes, false)           \
  LADDER_HOOK(__tsan_write##bytes, bytes, true)           \
  LADDER_HOOK(__tsan_unaligned_read##bytes, bytes, false) \
  LADDER_HOOK(__tsan_unaligned_write##bytes, bytes, true)

namespace ladder_emulator {
namespace {

// A GPU's memory is not the host's: on a GPU the process ends here too.
[[noreturn]] void host_access(bool writes, const void* at) {
  fprintf(stderr, "%s: the host %s memory of the device; only kernels may\n", grid().line(at).c_str(),
          writes ? "writes" : "reads");
  abort();
}

// Host code of the same file (launches) runs outside of any thread of a block.
inline void access(void* address, size_t bytes, bool writes, const void* at) {
  const auto where = reinterpret_cast<uintptr_t>(address);
  if (grid().block().current() != nullptr)
    grid().access(where, bytes, writes, false, at);
  else if (const Region* region = memory().find(where); region != nullptr && region->space == Space::global)
    host_access(writes, at);
}

}  // namespace

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
LADDER_HOOKS(1)
LADDER_HOOKS(2)
LADDER_HOOKS(4)
LADDER_HOOKS(8)
LADDER_HOOKS(16)
void __tsan_read_range(void* address, size_t bytes) {
  access(address, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t bytes) {
  access(address, bytes, true, __builtin_return_address(0));
}
}

uint64_t meet(Exchange what, unsigned mask, uint64_t value, int source_lane, const void* at) {
  return grid().block().meet(what, mask, value, source_lane, at);
}
void barrier(const void* at) {
  grid().block().wait_for_barrier(at, 0);
}
int barrier_count(int value, const void* at) {
  grid().block().wait_for_barrier(at, value);
  return grid().block().barrier_count();
}
int current_lane() {
  return grid().block().current()->lane();
}
unsigned lanes_not_ended() {
  return grid().block().lanes_not_ended(grid().block().current()->warp());
}
void atomic_access(void* address, int bytes, const void* at) {
  grid().access(reinterpret_cast<uintptr_t>(address), static_cast<size_t>(bytes), true, true, at);
}
void declare_shared(void* begin, size_t bytes, const char* name) {
  grid().declare_shared(begin, bytes, name);
}
void* dynamic_shared_memory(const char* name) {
  return grid().dynamic_shared(name);
}
const char* kernel_name(const void* kernel) {
  static std::map<const void*, std::string>* known = new std::map<const void*, std::string>;
  auto [place, is_new] = known->try_emplace(kernel);
  if (is_new) place->second = function_at(kernel);
  return place->second.c_str();
}

}  // namespace ladder_emulator
