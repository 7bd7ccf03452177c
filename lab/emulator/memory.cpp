#include "lab/emulator/memory.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace ladder_emulator {

namespace {

// Zero pages that cost nothing until they are touched: a workspace of 32 MB is mostly never used.
template <class T>
T* zeros(size_t count) {
  void* pages = ::mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  return static_cast<T*>(pages);
}

uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

bool before(const std::unique_ptr<Region>& region, uintptr_t address) {
  return region->begin < address;
}

}  // namespace

Region& Memory::add(const void* begin, size_t bytes, Space space, const std::string& name) {
  auto region = std::make_unique<Region>();
  region->begin = address_of(begin);
  region->bytes = bytes;
  region->space = space;
  region->name = name;
  if (space != Space::parameters) {
    region->known = zeros<bool>(std::max<size_t>(bytes, 1));
    region->cells = zeros<Cell>(std::max<size_t>(bytes, 1));
  }
  const auto place = std::lower_bound(regions_.begin(), regions_.end(), region->begin, before);
  return **regions_.insert(place, std::move(region));
}

void Memory::remove(const void* begin) {
  const auto place = std::lower_bound(regions_.begin(), regions_.end(), address_of(begin), before);
  if (place == regions_.end() || (*place)->begin != address_of(begin)) return;
  Region& region = **place;
  const size_t count = std::max<size_t>(region.bytes, 1);
  if (region.known != nullptr) {
    ::munmap(region.known, count * sizeof(bool));
    ::munmap(region.cells, count * sizeof(Cell));
  }
  std::fill(std::begin(recent_), std::end(recent_), nullptr);
  regions_.erase(place);
}

Region* Memory::find(uintptr_t address) {
  for (Region* region : recent_)
    if (region != nullptr && region->holds(address)) return region;
  const auto after = std::lower_bound(regions_.begin(), regions_.end(), address + 1, before);
  if (after == regions_.begin() || !(*(after - 1))->holds(address)) return nullptr;
  std::copy_backward(std::begin(recent_), std::end(recent_) - 1, std::end(recent_));
  return recent_[0] = (after - 1)->get();
}

Region* Memory::at(const void* begin) {
  Region* region = find(address_of(begin));
  return region != nullptr && region->begin == address_of(begin) ? region : nullptr;
}

std::string Memory::describe(uintptr_t address) const {
  constexpr uintptr_t kNear = 1 << 16;
  const auto after = std::lower_bound(regions_.begin(), regions_.end(), address, before);
  const Region* below = after == regions_.begin() ? nullptr : (after - 1)->get();
  const Region* above = after == regions_.end() ? nullptr : after->get();
  const uintptr_t from_below = below == nullptr ? kNear : address - (below->begin + below->bytes);
  const uintptr_t to_above = above == nullptr ? kNear : above->begin - address;
  const auto of = [](const Region& region) {
    return name_of(region) + " of " + std::to_string(region.bytes) + " bytes";
  };
  if (from_below < kNear && from_below <= to_above)
    return std::to_string(from_below) + " bytes past the end of " + of(*below);
  if (to_above < kNear) return std::to_string(to_above) + " bytes before " + of(*above);
  return address < 4096 ? "from a null pointer" : "where the device has no memory";
}

void Memory::set_known(const void* begin, size_t bytes) {
  Region* region = find(address_of(begin));
  if (region == nullptr || region->known == nullptr) return;
  const size_t offset = address_of(begin) - region->begin;
  ::memset(region->known + offset, 1, std::min(bytes, region->bytes - offset));
}

std::string name_of(const Region& region) {
  if (region.space == Space::parameters) return "the kernel's parameters";
  if (region.space == Space::shared) return "shared memory `" + region.name + "`";
  return "global memory";
}

Memory& memory() {
  static Memory* all = new Memory;  // never destroyed: objects that end later free memory of the device
  return *all;
}

}  // namespace ladder_emulator
