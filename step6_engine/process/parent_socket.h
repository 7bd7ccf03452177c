#pragma once
// The child's end of the socket of ChildProcess.
#include <string_view>

#include "step6_engine/process/file_descriptor.h"

namespace ladder {

// Takes the descriptor that `--fd` has named; it is not handed on to processes that this one starts. Error: it is no
// connected socket; says that `starter` starts this command.
FileDescriptor take_parent_socket(int descriptor, std::string_view starter);

}  // namespace ladder
