#include "step8_advanced/disaggregation/transport/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

namespace ladder {

FileDescriptor try_to_lock(const std::filesystem::path& file) {
  FileDescriptor lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock && ::flock(lock.number(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    lock.close();
    errno = error;
  }
  return lock;
}

bool is_locked(const std::filesystem::path& file) {
  const FileDescriptor lock(::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  return lock && ::flock(lock.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace ladder
