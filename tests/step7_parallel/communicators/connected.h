#pragma once
// The two ends of a connection within a test.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <utility>

#include "step6_engine/process/file_descriptor.h"

namespace ladder::testing {

inline std::pair<FileDescriptor, FileDescriptor> connected() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace ladder::testing
