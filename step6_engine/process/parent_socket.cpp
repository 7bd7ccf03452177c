#include "step6_engine/process/parent_socket.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "step1_layers/core/error.h"

namespace ladder {

FileDescriptor take_parent_socket(int descriptor, std::string_view starter) {
  int type = 0;
  socklen_t size = sizeof type;
  LADDER_CHECK(getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM,
               "--fd {}: expected a connected socket ({} starts this command)", descriptor, starter);
  FileDescriptor owned(descriptor);
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return owned;
}

}  // namespace ladder
