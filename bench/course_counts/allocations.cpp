// malloc and its kin in the place of the C library's, which offers itself under other names too (glibc: __libc_malloc):
// operator new, containers and a region's own calls all end here. Not for builds with sanitizers, which do the same.
#include "bench/course_counts/allocations.h"

#include <cerrno>
#include <cstddef>

namespace {

// The workers have one thread where they count.
bool counts = false;
int64_t count = 0;

void note() {
  if (counts) ++count;
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  note();
  return __libc_malloc(size);
}
void* calloc(size_t members, size_t size) {
  note();
  return __libc_calloc(members, size);
}
void* realloc(void* memory, size_t size) {
  note();
  return __libc_realloc(memory, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  note();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
  note();
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}

}  // extern "C"
#endif

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
