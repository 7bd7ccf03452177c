#pragma once
// Task 2.2: the safetensors of a checkpoint folder: model.safetensors, or the shards that
// model.safetensors.index.json lists as {"weight_map": {"tensor name": "file name", ...}}; where there is neither, the only file or index of
// another name (gptq_model-4bit-128g.safetensors).
#include <filesystem>
#include <string_view>
#include <vector>

#include "step2_model/checkpoint/safetensors.h"

namespace ladder {

class Checkpoint {
 public:
  struct Entry {
    const SafetensorsFile* file = nullptr;
    const SafetensorsInfo* info = nullptr;
    Tensor tensor() const { return file->tensor(*info); }
  };

  // Maps every file of the folder; with both forms present the single file counts. Error: none is there, several of other names, a
  // shard is not there or its name leads out of the folder, a tensor lies in two shards, a shard does not
  // hold what the index says it holds; and all that SafetensorsFile refuses.
  explicit Checkpoint(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  const std::vector<Entry>& entries() const { return entries_; }  // sorted by file, then by offset
  const Entry* find(std::string_view name) const;                 // nullptr: no such tensor
  int64_t nbytes() const;                                         // of all tensors

 private:
  std::filesystem::path directory_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Entry> entries_;
  std::vector<size_t> by_name_;  // indices into entries_, sorted by name
};

// The file names of an index, each once, sorted. Error: malformed JSON, no weight_map, a file name that is
// empty, absolute, or has '/', '\' or '..' in it.
std::vector<std::string> parse_safetensors_index(std::string_view text, std::string_view what);

}  // namespace ladder
