#include "step8_advanced/disaggregation/store/store_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step6_engine/process/file_descriptor.h"

namespace ladder {

namespace {

namespace fs = std::filesystem;

// Whoever has written nothing to it for so long is dead: a block is written in milliseconds.
constexpr std::chrono::minutes kDeadAfter{10};
constexpr size_t kHexOfSpace = 32, kHexOfName = 64;
constexpr std::string_view kEnding = ".kv";

template <class Bytes>
std::string hex(const Bytes& bytes) {
  std::string text;
  for (const std::byte byte : std::as_bytes(std::span(bytes))) text += fmt::format("{:02x}", byte);
  return text;
}

bool is_hex(std::string_view text, size_t size) {
  return text.size() == size && text.find_first_not_of("0123456789abcdef") == text.npos;
}
bool is_block(std::string_view file) {
  return file.ends_with(kEnding) && is_hex(file.substr(0, file.size() - kEnding.size()), kHexOfName);
}
bool is_begun(std::string_view file) {
  return file.starts_with('.') && file.size() > kHexOfName + kEnding.size() &&
         is_block(file.substr(1, kHexOfName + kEnding.size()));
}

timespec timespec_of(KvStoreFolder::Time time) {
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  return {seconds.count(), (since - seconds).count()};
}

[[noreturn]] void fail_at(const fs::path& file) {
  const int error = errno;
  fail("{}: {}", file.string(), std::strerror(error));
}

void write_whole(int file, std::span<const std::byte> bytes, const fs::path& name) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) fail_at(name);
    if (count > 0) bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

// No two writers begin the same file: threads of a process, processes of two containers with the same id.
std::string random_name() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// Written beside and renamed. Error: nothing is left of it.
void write_file(const fs::path& file, const fs::path& begun, std::string_view head,
                std::span<const std::byte> body, KvStoreFolder::Time used) {
  const auto open = [&] {
    return FileDescriptor(::open(begun.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  };
  FileDescriptor out = open();
  if (!out && errno == ENOENT && ::mkdir(begun.parent_path().c_str(), 0700) == 0) out = open();
  if (!out) fail_at(begun);
  try {
    write_whole(out.number(), std::as_bytes(std::span(head)), begun);
    write_whole(out.number(), body, begun);
    if (::rename(begun.c_str(), file.c_str()) != 0) fail_at(begun);
    const timespec times[2] = {timespec_of(used), timespec_of(used)};
    ::futimens(out.number(), times);  // only now: what was begun long ago is removed
  } catch (...) {
    ::unlink(begun.c_str());
    throw;
  }
}

}  // namespace

KvStoreFolder::KvStoreFolder(fs::path folder, int64_t max_bytes, const Sha256Digest& space)
    : folder_(fs::absolute(folder)),
      space_(folder_ / hex(space).substr(0, kHexOfSpace)),
      max_bytes_(max_bytes),
      writer_(random_name()) {
  std::error_code error;
  fs::create_directories(space_, error);
  LADDER_CHECK(!error && fs::is_directory(space_, error), "{}: expected a folder that can be written to: {}",
               folder.string(), error.message());
  try {
    const BlockHash trial;  // a name that no block has
    write_file(file_of(trial), begun(trial), std::string(4096, 'x'), {}, std::chrono::system_clock::now());
    ::unlink(file_of(trial).c_str());
  } catch (const Error& why) {
    fail("{}: expected a folder that can be written to: {}", folder.string(), why.what());
  }
  sweep(0);
}

fs::path KvStoreFolder::file_of(const BlockHash& name) const {
  return space_ / (hex(name.words) + std::string(kEnding));
}

fs::path KvStoreFolder::begun(const BlockHash& name) {
  return space_ / fmt::format(".{}-{}-{}", file_of(name).filename().string(), writer_, num_begun_++);
}

bool KvStoreFolder::has(const BlockHash& name) const {
  return ::access(file_of(name).c_str(), R_OK) == 0;
}

bool KvStoreFolder::touch(const BlockHash& name, Time used) const {
  const timespec times[2] = {timespec_of(used), timespec_of(used)};
  return ::utimensat(AT_FDCWD, file_of(name).c_str(), times, AT_SYMLINK_NOFOLLOW) == 0;
}

bool KvStoreFolder::read(const BlockHash& name, std::span<std::byte> bytes) const {
  // A pipe that somebody made there is not waited for.
  const FileDescriptor file(::open(file_of(name).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  LADDER_CHECK(file || errno != ELOOP, "it is a symbolic link");
  struct stat status {};
  if (!file || ::fstat(file.number(), &status) != 0) return false;
  LADDER_CHECK(S_ISREG(status.st_mode) && static_cast<size_t>(status.st_size) == bytes.size(),
               "it has {} bytes, expected {}", status.st_size, bytes.size());
  while (!bytes.empty()) {
    const ssize_t count = ::read(file.number(), bytes.data(), bytes.size());
    if (count == 0 || (count < 0 && errno != EINTR)) return false;
    if (count > 0) bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

void KvStoreFolder::remove(const BlockHash& name) {
  const fs::path file = file_of(name);
  struct stat status {};
  if (::lstat(file.c_str(), &status) == 0 && ::unlink(file.c_str()) == 0) num_bytes_ -= status.st_size;
}

void KvStoreFolder::write(const BlockHash& name, std::string_view head, std::span<const std::byte> body,
                          Time used) {
  const auto size = static_cast<int64_t>(head.size() + body.size());
  if (num_bytes_ + size > max_bytes_ || num_written_since_sweep_ > max_bytes_ / 16) sweep(size);
  LADDER_CHECK(num_bytes_ + size <= max_bytes_, "{}: a block of {} bytes has no room in {}", folder_.string(),
               size, max_bytes_);
  const fs::path file = file_of(name);
  struct stat replaced {};
  if (::lstat(file.c_str(), &replaced) != 0) replaced.st_size = 0;
  write_file(file, begun(name), head, body, used);
  num_bytes_ += size - replaced.st_size;
  num_written_since_sweep_ += size;
}

void KvStoreFolder::sweep(int64_t num_wanted) {
  struct File {
    fs::path path;
    timespec used;
    int64_t size;
  };
  std::vector<File> files;
  int64_t num_bytes = 0;
  const timespec dead = timespec_of(std::chrono::system_clock::now() - kDeadAfter);
  std::error_code error;
  for (fs::directory_iterator space(folder_, error), end; !error && space != end; space.increment(error)) {
    if (!is_hex(space->path().filename().string(), kHexOfSpace)) continue;  // somebody else's
    std::error_code gone;
    for (fs::directory_iterator file(space->path(), gone); !gone && file != end; file.increment(gone)) {
      const std::string name = file->path().filename().string();
      struct stat status {};
      if (!(is_block(name) || is_begun(name)) || ::lstat(file->path().c_str(), &status) != 0) continue;
      if (is_begun(name)) {
        if (status.st_mtim.tv_sec < dead.tv_sec) ::unlink(file->path().c_str());
        continue;
      }
      files.push_back({file->path(), status.st_mtim, status.st_size});
      num_bytes += status.st_size;
    }
  }
  if (num_bytes + num_wanted > max_bytes_) {
    const int64_t max_left = max_bytes_ - std::max(num_wanted, max_bytes_ / 8);
    std::ranges::sort(files, [](const File& a, const File& b) {
      return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
    });
    for (const File& file : files) {
      if (num_bytes <= max_left) break;
      // One that is not there any more was removed by another process.
      if (::unlink(file.path.c_str()) == 0 || errno == ENOENT) num_bytes -= file.size;
    }
  }
  num_bytes_ = num_bytes;
  num_written_since_sweep_ = 0;
}

}  // namespace ladder
