#include "step2_model/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's bound

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  LADDER_CHECK(fd >= 0, "{}: {}", path.string(),
               errno == ENOENT ? "there is no such file" : std::strerror(errno));
  struct stat status {};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(fd);
    fail("{}: not a regular file", path.string());
  }
  size_ = status.st_size;
  if (size_ > 0) {
    void* address = mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    close(fd);
    LADDER_CHECK(address != MAP_FAILED, "{}: cannot be mapped: {}", path.string(), std::strerror(error));
    data_ = static_cast<char*>(address);
  } else {
    close(fd);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
}

void MappedFile::release(int64_t begin, int64_t end) const {
  const int64_t page = sysconf(_SC_PAGESIZE);
  begin = (begin + page - 1) / page * page;
  end = end == size_ ? size_ : end / page * page;
  if (begin < end) madvise(data_ + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(std::make_shared<MappedFile>(path)) {
  const std::string what = path.string();
  LADDER_CHECK(file_->size() >= 8, "{}: {} bytes, but a safetensors file begins with 8 bytes of length", what,
               file_->size());
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | static_cast<unsigned char>(file_->data()[i]);
  LADDER_CHECK(header_bytes <= kMaxHeaderBytes,
               "{}: the header claims {} bytes, at most {} are read (not a safetensors file?)", what,
               header_bytes, kMaxHeaderBytes);
  LADDER_CHECK(static_cast<int64_t>(header_bytes) <= file_->size() - 8,
               "{}: the header claims {} bytes, but the file has {} (truncated?)", what, header_bytes,
               file_->size());
  data_begin_ = 8 + static_cast<int64_t>(header_bytes);
  const std::string_view header(file_->data() + 8, header_bytes);
  tensors_ = parse_safetensors_header(header, file_->size() - data_begin_, what);
}

Tensor SafetensorsFile::tensor(const SafetensorsInfo& info) const {
  const int64_t begin = data_begin_ + info.begin;
  if (info.nbytes() > 0 && begin % dtype_size(info.dtype) != 0) {
    Tensor copy = Tensor::empty(info.shape, info.dtype);
    std::memcpy(copy.raw(), file_->data() + begin, static_cast<size_t>(info.nbytes()));
    return copy;
  }
  return Tensor::wrap(const_cast<char*>(file_->data()) + begin, info.shape, info.dtype, {}, file_);
}

void SafetensorsFile::release(const SafetensorsInfo& info) const {
  file_->release(data_begin_ + info.begin, data_begin_ + info.end);
}

}  // namespace ladder
