#include "bench/course_counts/allocations.h"

#include <cstdlib>
#include <new>

namespace {

// The workers have one thread where they count.
bool counts = false;
int64_t count = 0;

void* allocate(std::size_t size, std::size_t alignment) {
  if (counts) ++count;
  void* memory = alignment == 0 ? std::malloc(size == 0 ? 1 : size)
                                : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return allocate(size, 0);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace ladder::course {

Counting::Counting(int64_t& to) : to_(to) {
  count = 0;
  counts = true;
}
Counting::~Counting() {
  counts = false;
  to_ += count;
}

}  // namespace ladder::course
