#include "lab/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "lab/lab_error.h"

namespace lab {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || fs::is_directory(path)) throw LabError(path.string() + ": cannot be read");
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_file(const fs::path& path, const std::string& text) {
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  const fs::path target = fs::is_symlink(path) ? fs::canonical(path) : path;
  const fs::path beside = target.string() + ".lab-" + std::to_string(::getpid());
  {
    std::ofstream out(beside, std::ios::binary | std::ios::trunc);
    out << text;
    if (!out.flush()) {
      fs::remove(beside, error);
      throw LabError(path.string() + ": cannot be written");
    }
  }
  if (const int file = ::open(beside.c_str(), O_RDONLY); file >= 0) {  // on the disk before it gets its name
    ::fsync(file);
    ::close(file);
  }
  if (fs::exists(target)) fs::permissions(beside, fs::status(target).permissions(), error);
  fs::rename(beside, target, error);
  if (error) {
    fs::remove(beside, error);
    throw LabError(path.string() + ": cannot be written");
  }
}

void write_if_changed(const fs::path& path, const std::string& text) {
  if (!fs::exists(path) || read_file(path) != text) write_file(path, text);
}

FileLock::FileLock(const fs::path& path) {
  fs::create_directories(path.parent_path());
  file_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (file_ < 0 || ::flock(file_, LOCK_EX) != 0) throw LabError(path.string() + ": cannot be locked");
}

FileLock::~FileLock() {
  ::close(file_);
}

}  // namespace lab
