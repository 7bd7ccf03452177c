#include "step8_advanced/quantization/quantizer/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"

namespace ladder {
namespace {

constexpr size_t kBytesAtOnce = size_t{1} << 24;

// A file that is not there until finish().
class UnfinishedFile {
 public:
  explicit UnfinishedFile(std::filesystem::path path) : path_(std::move(path)), unfinished_(path_) {
    unfinished_ += ".writing";
    file_ = ::open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    check(file_ >= 0, "cannot be written");
  }
  ~UnfinishedFile() {
    if (file_ >= 0) ::close(file_);
    if (!finished_) ::unlink(unfinished_.c_str());
  }
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  void write(const void* data, size_t size) {
    const char* from = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = ::write(file_, from, std::min(size, kBytesAtOnce));
      if (written < 0 && errno == EINTR) continue;
      check(written > 0, "could not be written to its end");
      from += written;
      size -= static_cast<size_t>(written);
    }
  }

  void finish() {
    check(::fsync(file_) == 0, "could not be written to its end");
    const int closed = ::close(file_);
    file_ = -1;
    check(closed == 0, "could not be written to its end");
    check(::rename(unfinished_.c_str(), path_.c_str()) == 0, "cannot be written");
    finished_ = true;
  }

 private:
  void check(bool good, const char* what) const {
    LADDER_CHECK(good, "{} {}: {}", path_.string(), what, std::strerror(errno));
  }

  std::filesystem::path path_, unfinished_;
  int file_ = -1;
  bool finished_ = false;
};

const char* safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "F64";
    case DType::f32:
      return "F32";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::i64:
      return "I64";
    case DType::i32:
      return "I32";
    case DType::i8:
      return "I8";
    case DType::u8:
      return "U8";
    case DType::f8_e4m3:
      return "F8_E4M3";
  }
  fail("safetensors has no such dtype");
}

std::string header_of(const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata, const std::string& where) {
  OrderedJson header = OrderedJson::object();
  header["__metadata__"] = metadata;
  int64_t begin = 0;
  for (const auto& [name, tensor] : tensors) {
    LADDER_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(),
                 "{}: tensor {}: expected one that lies close together, on the CPU", where, name);
    LADDER_CHECK(!header.contains(name), "{}: two tensors are called {}", where, name);
    const auto dims = tensor.shape().dims();
    header[name] = {{"dtype", safetensors_dtype(tensor.dtype())},
                    {"shape", std::vector<int64_t>(dims.begin(), dims.end())},
                    {"data_offsets", {begin, begin + tensor.nbytes()}}};
    begin += tensor.nbytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  return text;
}

}  // namespace

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  UnfinishedFile file(path);
  file.write(bytes.data(), bytes.size());
  file.finish();
}

void write_safetensors_file(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                            const std::map<std::string, std::string>& metadata) {
  const std::string header = header_of(tensors, metadata, path.string());
  UnfinishedFile file(path);
  unsigned char length[8];  // little-endian
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  file.write(length, sizeof(length));
  file.write(header.data(), header.size());
  for (const NamedTensor& one : tensors)
    file.write(one.tensor.raw(), static_cast<size_t>(one.tensor.nbytes()));
  file.finish();
}

void write_checkpoint(const std::filesystem::path& directory, const std::vector<NamedTensor>& tensors,
                      int64_t max_shard_bytes) {
  std::vector<std::vector<NamedTensor>> shards(1);
  int64_t total = 0, in_shard = 0;
  for (const NamedTensor& one : tensors) {
    if (in_shard > 0 && in_shard + one.tensor.nbytes() > max_shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(one);
    in_shard += one.tensor.nbytes();
    total += one.tensor.nbytes();
  }
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (shards.size() == 1) return write_safetensors_file(directory / "model.safetensors", tensors, metadata);
  OrderedJson map = OrderedJson::object();
  std::set<std::string> names;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    for (const NamedTensor& one : shards[i]) {
      LADDER_CHECK(names.insert(one.name).second, "{}: two tensors are called {}", directory.string(),
                   one.name);
      map[one.name] = file;
    }
    write_safetensors_file(directory / file, shards[i], metadata);
  }
  const OrderedJson index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_file_atomically(directory / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace ladder
