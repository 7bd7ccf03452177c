#pragma once
// Archives of hand-ins (.zip, .tar, .tar.gz), read without unpacking anything to the disk.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace lab {

struct ArchiveLimits {
  int64_t entry = int64_t{8} << 20;    // bytes of a hand-in
  int64_t total = int64_t{256} << 20;  // bytes that come out of the archive, all entries together
  int entries = 10000;
};

struct ArchiveEntry {
  std::string path, text;
  std::string error;  // why there is no text, one line
};

bool is_archive(const std::filesystem::path& path);  // by its name

// Calls take() for each .json file in it, and for each entry that no hand-in can be: a link, a path that leaves the
// folder. Error: it cannot be read, it is larger than the limits, or this program was built without libarchive.
void read_archive(const std::filesystem::path& path, const std::function<void(ArchiveEntry)>& take,
                  const ArchiveLimits& limits = {});

}  // namespace lab
