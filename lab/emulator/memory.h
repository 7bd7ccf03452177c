#pragma once
// The device's memory: which bytes exist, which were written, and who touched them last.
#include <stddef.h>
#include <stdint.h>

#include <memory>
#include <string>
#include <vector>

namespace ladder_emulator {

// An access of one thread. `time` is the clock's (races.h).
struct Stamp {
  uint32_t time = 0;
  uint32_t place = 0;  // of the instruction, from where the program begins
  uint16_t thread = 0;
  bool atomic = false;
};
struct Cell {  // of one byte: the last write, and the last reads of two different threads
  Stamp write, read[2];
};

enum class Space : uint8_t { global, shared, parameters };

struct Region {
  uintptr_t begin = 0;
  size_t bytes = 0;
  Space space = Space::global;
  std::string name;         // of a shared variable
  uint32_t block_time = 0;  // shared: of the block that declared it last
  bool* known = nullptr;    // of each byte: whether it was written
  Cell* cells = nullptr;

  bool holds(uintptr_t address) const { return address - begin < bytes; }
};

class Memory {
 public:
  // None of its bytes is known. Parameters have neither known bytes nor cells: they may be read.
  Region& add(const void* begin, size_t bytes, Space space, const std::string& name = "");
  void remove(const void* begin);
  Region* find(uintptr_t address);  // nullptr: no memory of the device
  Region* at(const void* begin);    // that begins there
  // "4 bytes past the end of `xs`": where an address is that find() does not know.
  std::string describe(uintptr_t address) const;
  void set_known(const void* begin, size_t bytes);

 private:
  std::vector<std::unique_ptr<Region>> regions_;  // by address
  Region* recent_[4] = {};
};

std::string name_of(const Region& region);  // "shared memory `xs`", "global memory"

Memory& memory();

}  // namespace ladder_emulator
