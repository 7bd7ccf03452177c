#pragma once
// Memory that several processes of this program see: one allocation behind a file descriptor (memfd_create), which has no
// name anywhere. So nothing of it can stay in /dev/shm, however its processes end: it goes with the last of them.
#include <cstddef>
#include <string>

#include "step6_engine/process/file_descriptor.h"

namespace ladder {

class SharedMemory {
 public:
  // `size` bytes of zeros, all of them there: a machine or container without that much is an Error here, and no SIGBUS
  // at the first touch. `name` is shown by /proc.
  static SharedMemory create(const std::string& name, size_t size);
  // That of another process, whose descriptor came over a socket or by a fork. Error: it is no such memory.
  static SharedMemory open(FileDescriptor descriptor);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int descriptor() const { return descriptor_.number(); }

 private:
  SharedMemory(FileDescriptor descriptor, size_t size);

  FileDescriptor descriptor_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ladder
