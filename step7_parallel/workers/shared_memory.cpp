#include "step7_parallel/workers/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "step1_layers/core/error.h"

namespace ladder {

SharedMemory::SharedMemory(FileDescriptor descriptor, size_t size)
    : descriptor_(std::move(descriptor)), size_(size) {
  void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.number(), 0);
  LADDER_CHECK(mapped != MAP_FAILED, "shared memory: {} bytes cannot be mapped: {}", size,
               std::strerror(errno));
  data_ = static_cast<std::byte*>(mapped);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_) {}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

SharedMemory SharedMemory::create(const std::string& name, size_t size) {
  FileDescriptor descriptor(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  LADDER_CHECK(descriptor, "shared memory: {}", std::strerror(errno));
  const int failure = ::posix_fallocate(descriptor.number(), 0, static_cast<off_t>(size));
  LADDER_CHECK(failure == 0, "shared memory: {} bytes are not to be had: {}", size, std::strerror(failure));
  // Nobody who has the descriptor can take memory away under another's feet.
  LADDER_CHECK(::fcntl(descriptor.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
               "shared memory: {}", std::strerror(errno));
  return SharedMemory(std::move(descriptor), size);
}

SharedMemory SharedMemory::open(FileDescriptor descriptor) {
  const int seals = ::fcntl(descriptor.number(), F_GET_SEALS);
  struct stat status {};
  LADDER_CHECK(seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(descriptor.number(), &status) == 0,
               "shared memory: the descriptor is none of another process's memory");
  return SharedMemory(std::move(descriptor), static_cast<size_t>(status.st_size));
}

}  // namespace ladder
