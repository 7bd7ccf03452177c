#pragma once
// Files that are locked (flock) as long as their process lives: how processes that share nothing but a file system see whether
// another is there. Internal to this folder.
#include <filesystem>

#include "step6_engine/process/file_descriptor.h"

namespace ladder {

// Makes the file if it is not there. None: another has it, or the file cannot be made (errno; EWOULDBLOCK: another has it).
FileDescriptor try_to_lock(const std::filesystem::path& file);
// False: nobody has it, or there is no such file.
bool is_locked(const std::filesystem::path& file);

}  // namespace ladder
