#include "lab/archive.h"

#include "lab/lab_error.h"

#ifdef LAB_HAS_LIBARCHIVE
#include <archive.h>
#include <archive_entry.h>
#endif

#include <memory>
#include <vector>

namespace lab {

bool is_archive(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return name.ends_with(".zip") || name.ends_with(".tar") || name.ends_with(".tar.gz") ||
         name.ends_with(".tgz");
}

#ifdef LAB_HAS_LIBARCHIVE
namespace {

std::string mebibytes(int64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

// Why an entry is none that a hand-in can be.
std::string refused(archive_entry* entry, const std::filesystem::path& path) {
  if (path.is_absolute()) return "an absolute path in the archive";
  for (const auto& part : path)
    if (part == "..") return "a path in the archive that leaves its folder";
  if (archive_entry_symlink(entry) != nullptr || archive_entry_hardlink(entry) != nullptr)
    return "a link in the archive";
  const auto type = archive_entry_filetype(entry);
  if (type != AE_IFREG && type != AE_IFDIR) return "neither a file nor a folder in the archive";
  return "";
}

}  // namespace

void read_archive(const std::filesystem::path& path, const std::function<void(ArchiveEntry)>& take,
                  const ArchiveLimits& limits) {
  const std::unique_ptr<archive, decltype(&archive_read_free)> in(archive_read_new(), archive_read_free);
  archive_read_support_filter_gzip(in.get());
  archive_read_support_format_zip(in.get());
  archive_read_support_format_tar(in.get());
  const auto check = [&](int code) {
    if (code < ARCHIVE_WARN) {
      const char* why = archive_error_string(in.get());
      throw LabError(path.filename().string() +
                     ": the archive cannot be read: " + (why == nullptr ? "" : why));
    }
    return code;
  };
  check(archive_read_open_filename(in.get(), path.c_str(), 65536));
  int64_t total = 0;
  std::vector<char> buffer(65536);
  archive_entry* entry = nullptr;
  for (int count = 0; check(archive_read_next_header(in.get(), &entry)) != ARCHIVE_EOF; ++count) {
    if (count == limits.entries)
      throw LabError(path.filename().string() + ": more than " + std::to_string(limits.entries) +
                     " entries in the archive");
    const char* raw = archive_entry_pathname(entry);
    ArchiveEntry found{raw == nullptr ? "" : raw, "", ""};
    found.error = refused(entry, found.path);
    const bool hand_in = found.path.ends_with(".json") && archive_entry_filetype(entry) == AE_IFREG;
    // What is left out is read too, and counted: a compressed tar can hide its bytes anywhere.
    for (la_ssize_t size; (size = archive_read_data(in.get(), buffer.data(), buffer.size())) != 0;) {
      if (size < 0) check(static_cast<int>(size));
      if (size < 0) break;
      total += size;
      if (total > limits.total)
        throw LabError(path.filename().string() + ": unpacks to more than " + mebibytes(limits.total));
      if (!hand_in || !found.error.empty()) continue;
      if (static_cast<int64_t>(found.text.size()) + size > limits.entry)
        found.error = "more than " + mebibytes(limits.entry) + ": no hand-in is so large";
      else
        found.text.append(buffer.data(), size);
    }
    if (!found.error.empty()) found.text.clear();
    if (hand_in || !found.error.empty()) take(std::move(found));
  }
}
#else
void read_archive(const std::filesystem::path& path, const std::function<void(ArchiveEntry)>&,
                  const ArchiveLimits&) {
  throw LabError(path.string() +
                 ": archives need libarchive: install libarchive-dev, delete build/lab, and build again");
}
#endif

}  // namespace lab
