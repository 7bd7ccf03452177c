#include "step7_parallel/workers/run_fingerprint.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "step1_layers/core/error.h"
#include "step7_parallel/workers/file_hash.h"

namespace ladder {

namespace {

uint64_t first_bytes(const Sha256Digest& digest) {
  uint64_t first = 0;
  std::memcpy(&first, digest.data(), sizeof first);
  return first;
}

uint64_t fingerprint_of_model(const std::filesystem::path& model) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(model))
    if (entry.path().extension() == ".json" || entry.path().extension() == ".safetensors")
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());  // a folder has no order of its own
  Sha256 hash;
  for (const std::filesystem::path& path : files) {
    hash.add(path.filename().native());
    path.extension() == ".json" ? add_file(hash, path) : add_file_samples(hash, path);
  }
  return first_bytes(hash.finish());
}

}  // namespace

RunFingerprint run_fingerprint(const std::filesystem::path& model, const std::filesystem::path& program) {
  Sha256 hash;
  add_file(hash, program);
  return {first_bytes(hash.finish()), fingerprint_of_model(model)};
}

void expect_same(const RunFingerprint& mine, const RunFingerprint& theirs, const std::string& them) {
  LADDER_CHECK(mine.program == theirs.program,
               "this program is another build than that of {}: expected the same file", them);
  LADDER_CHECK(mine.model == theirs.model,
               "the files of --model are others than those that {} sees: expected the same checkpoint", them);
}

}  // namespace ladder
