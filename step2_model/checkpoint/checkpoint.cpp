#include "step2_model/checkpoint/checkpoint.h"

#include <algorithm>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"

namespace ladder {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kFileEnd = ".safetensors", kIndexEnd = ".safetensors.index.json";

const std::string& name_of(const Checkpoint::Entry& entry) {
  return entry.info->name;
}

// A shard is a plain file name: an index must not be able to name a file outside of its folder.
void check_shard_name(const std::string& name, std::string_view what) {
  const bool plain = !name.empty() && name != "." && name.find('/') == std::string::npos &&
                     name.find('\\') == std::string::npos && name.find("..") == std::string::npos &&
                     name.find('\0') == std::string::npos;
  LADDER_CHECK(plain, "{}: weight_map names the file {}, expected a plain file name in the same folder", what,
               printable(name));
}

Json parse_index(std::string_view text, std::string_view what) {
  Json index = parse_json(text, what, 8);
  const Json& weight_map = json_at(index, "weight_map", what);
  LADDER_CHECK(weight_map.is_object() && !weight_map.empty(),
               "{}: weight_map must map tensor names to file names, found {}", what, json_brief(weight_map));
  for (const auto& [tensor, file] : weight_map.items())
    check_shard_name(json_string(file, fmt::format("{}: weight_map, {}", what, printable(tensor))), what);
  return index;
}

// model.safetensors, or else its index. Where there is neither, the only index or, without one, the only file of another name: AutoGPTQ calls
// them gptq_model-4bit-128g.safetensors.
std::filesystem::path find_weights(const std::filesystem::path& directory) {
  for (const std::string_view name : {kSingleFile, kIndexFile})
    if (std::filesystem::exists(directory / name)) return directory / name;
  std::vector<std::filesystem::path> indices, files;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(directory, unreadable)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kIndexEnd)) indices.push_back(entry.path());
    if (name.ends_with(kFileEnd)) files.push_back(entry.path());
  }
  const auto& found = indices.empty() ? files : indices;
  LADDER_CHECK(!found.empty(), "{}: has neither {} nor {}", directory.string(), kSingleFile, kIndexFile);
  LADDER_CHECK(found.size() == 1, "{}: has neither {} nor {}, and of other names {}: expected one",
               directory.string(), kSingleFile, kIndexFile, found.size());
  return found[0];
}

std::vector<std::string> shard_names(const Json& index) {
  std::vector<std::string> names;
  for (const auto& [tensor, file] : index["weight_map"].items()) names.push_back(file.get<std::string>());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

std::vector<std::string> parse_safetensors_index(std::string_view text, std::string_view what) {
  return shard_names(parse_index(text, what));
}

// >>> task 2.2: open the files of a checkpoint and make one table of their tensors
Checkpoint::Checkpoint(const std::filesystem::path& directory) : directory_(directory) {
  const std::filesystem::path weights = find_weights(directory);
  const std::string what = weights.string();
  Json index;
  if (weights.extension() == kFileEnd) {
    files_.push_back(std::make_unique<SafetensorsFile>(weights));
  } else {
    index = parse_index(read_text_file(weights), what);
    for (const std::string& name : shard_names(index)) {
      LADDER_CHECK(std::filesystem::exists(directory / name), "{}: weight_map names {}, which is not there",
                   what, printable(name));
      files_.push_back(std::make_unique<SafetensorsFile>(directory / name));
    }
  }

  for (const auto& file : files_)
    for (const SafetensorsInfo& info : file->tensors()) entries_.push_back({file.get(), &info});
  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), size_t{0});
  std::sort(by_name_.begin(), by_name_.end(),
            [&](size_t a, size_t b) { return name_of(entries_[a]) < name_of(entries_[b]); });
  for (size_t i = 1; i < by_name_.size(); ++i) {
    const Entry &a = entries_[by_name_[i - 1]], &b = entries_[by_name_[i]];
    LADDER_CHECK(name_of(a) != name_of(b), "{}: the tensor {} is in {} and in {}", what,
                 printable(name_of(a)), a.file->path().filename().string(),
                 b.file->path().filename().string());
  }
  if (index.is_null()) return;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const Entry* entry = find(name);
    LADDER_CHECK(entry != nullptr && entry->file->path().filename() == file.get<std::string>(),
                 "{}: weight_map says that {} holds the tensor {}, but it does not", what,
                 printable(file.get<std::string>()), printable(name));
  }
}
// <<< task 2.2

const Checkpoint::Entry* Checkpoint::find(std::string_view name) const {
  const auto position =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](size_t i, std::string_view wanted) { return name_of(entries_[i]) < wanted; });
  if (position == by_name_.end() || name_of(entries_[*position]) != name) return nullptr;
  return &entries_[*position];
}

int64_t Checkpoint::nbytes() const {
  int64_t bytes = 0;
  for (const Entry& entry : entries_) bytes += entry.info->nbytes();
  return bytes;
}

}  // namespace ladder
