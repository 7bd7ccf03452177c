#pragma once
// Whole files in and out.
#include <filesystem>
#include <string>

namespace lab {

// Error: it cannot be read.
std::string read_file(const std::filesystem::path& path);

// The file holds either its old text or all of the new one, also after a crash: written beside it, then renamed.
// Makes the folder. Keeps the file's permissions.
void write_file(const std::filesystem::path& path, const std::string& text);

// write_file unless that is what stands there already, so that nothing is built again for it.
void write_if_changed(const std::filesystem::path& path, const std::string& text);

// Holds a lock until it goes; waits while another process holds it. Makes the file and its folder.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_;
};

}  // namespace lab
