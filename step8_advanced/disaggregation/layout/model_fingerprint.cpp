#include "step8_advanced/disaggregation/layout/model_fingerprint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <vector>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"

namespace ladder {

namespace {

// Of a safetensors file: its header's length and the header.
int64_t header_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, sizeof(uint64_t)> first{};
  LADDER_CHECK(file.read(first.data(), first.size()), "{} cannot be read", path.string());
  uint64_t length = 0;
  std::memcpy(&length, first.data(), sizeof length);
  const auto size = static_cast<uint64_t>(std::filesystem::file_size(path));
  LADDER_CHECK(length <= size - sizeof length, "{}: a header of {} bytes in a file of {}", path.string(),
               length, size);
  return static_cast<int64_t>(sizeof length + length);
}

Sha256Digest digest_of_config(const std::filesystem::path& folder) {
  Sha256 hash;
  Json config = load_json(folder / "config.json");
  LADDER_CHECK(config.is_object(), "{}: expected an object", (folder / "config.json").string());
  for (const char* key : {"transformers_version", "_name_or_path"}) config.erase(key);
  hash.add(config.dump());  // keys in order
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
    const bool there = std::filesystem::exists(folder / name);
    hash.add_number(there ? static_cast<int64_t>(std::filesystem::file_size(folder / name)) : -1);
    if (there) add_file(hash, folder / name);
  }
  return hash.finish();
}

Sha256Digest digest_of_weights(const std::filesystem::path& folder, LoadFormat load_format) {
  Sha256 hash;
  hash.add_number(static_cast<int64_t>(load_format));
  if (load_format == LoadFormat::dummy) return hash.finish();
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());  // a folder has no order of its own
  for (const std::filesystem::path& path : files) {
    hash.add(path.filename().native());
    const int64_t header = header_bytes(path);
    hash.add_number(header);
    add_file_begin(hash, path, header);
    add_file_samples(hash, path);
  }
  return hash.finish();
}

}  // namespace

ModelFingerprint model_fingerprint(const std::filesystem::path& folder, LoadFormat load_format) {
  return {digest_of_config(folder), digest_of_weights(folder, load_format)};
}

}  // namespace ladder
