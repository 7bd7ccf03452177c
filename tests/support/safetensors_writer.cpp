#include "tests/support/safetensors_writer.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/support/temporary_folder.h"

namespace ladder::testing {
namespace {

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
  throw std::logic_error("unknown dtype");
}

}  // namespace

std::string encode_safetensors(const NamedTensors& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const Tensor dense = tensor.clone();
    const auto begin = data.size();
    data.append(static_cast<const char*>(dense.raw()), static_cast<size_t>(dense.nbytes()));
    std::vector<int64_t> shape(dense.shape().dims().begin(), dense.shape().dims().end());
    header[name] = {{"dtype", safetensors_dtype(dense.dtype())},
                    {"shape", shape},
                    {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(text.size() >> (8 * i));
  return file + text + data;
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors) {
  write_file(path, encode_safetensors(tensors));
}

}  // namespace ladder::testing
