#pragma once
// Task 2.2: one safetensors file, memory-mapped (format: github.com/huggingface/safetensors).
//
//   8 bytes   N, the length of the header, little-endian
//   N bytes   the header, JSON: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...,
//             "__metadata__": {string: string}}
//   the rest  the tensors' bytes; data_offsets count from here
//
// The file cannot be trusted, so nothing in it is believed before it is checked: the tensors, in the
// order of their offsets, must tile the data exactly (no hole, no overlap, no byte left over), and every size
// must follow from dtype and shape, in arithmetic that notices overflow. A file that passes can be read
// without a further check. (A file that is truncated while it is mapped still kills the process with
// SIGBUS; a program that writes checkpoints should write a new file and rename it.)
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "step1_layers/core/tensor.h"

namespace ladder {

struct SafetensorsInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  int64_t begin = 0;  // bytes [begin, end) of the data
  int64_t end = 0;

  int64_t nbytes() const { return end - begin; }
};

// The header alone. `data_bytes` is what follows it in the file; `what` begins every message (the file's
// name). Sorted by offset. Error: anything that the rules above forbid, an unknown dtype, a name that occurs
// twice, more than six dimensions.
std::vector<SafetensorsInfo> parse_safetensors_header(std::string_view header, int64_t data_bytes,
                                                      std::string_view what);

// A span of bytes that is mapped from a file for as long as this lives. Error: there is no such file, or it
// is no regular file.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* data() const { return data_; }
  int64_t size() const { return size_; }
  // Hands the whole pages of [begin, end) back to the system. Reading there again reads the file again.
  void release(int64_t begin, int64_t end) const;

 private:
  char* data_ = nullptr;
  int64_t size_ = 0;
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::span<const SafetensorsInfo> tensors() const { return tensors_; }  // sorted by offset
  // A view of the mapped bytes, which it keeps alive; a copy where the file has it at an address that its
  // dtype must not have (the format asks for no alignment). Read-only.
  Tensor tensor(const SafetensorsInfo& info) const;
  // The tensor has been copied: its pages need not stay in memory.
  void release(const SafetensorsInfo& info) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<MappedFile> file_;
  int64_t data_begin_ = 0;
  std::vector<SafetensorsInfo> tensors_;
};

// A name out of a file as an error message shows it: on one line, control characters escaped, shortened.
std::string printable(std::string_view name);

}  // namespace ladder
