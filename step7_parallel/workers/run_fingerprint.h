#pragma once
// What must be the same in all processes of an engine. Ranks that compute different models, or the same one by different
// programs, give answers that are wrong and look right.
#include <cstdint>
#include <filesystem>
#include <string>

namespace ladder {

struct RunFingerprint {
  uint64_t program = 0;  // of the program's file
  // Of the folder's *.json files, and of the names, sizes and samples (the first MiB, which holds the names of all
  // tensors, and a piece of each 16th) of its *.safetensors: minutes of reading are not spent on a comparison.
  uint64_t model = 0;
};

// `program`: this one. Error: something cannot be read.
RunFingerprint run_fingerprint(const std::filesystem::path& model,
                               const std::filesystem::path& program = "/proc/self/exe");

// Error, which names what differs: `mine` is not `theirs`. `them`: "the engine's process", for the message.
void expect_same(const RunFingerprint& mine, const RunFingerprint& theirs, const std::string& them);

}  // namespace ladder
