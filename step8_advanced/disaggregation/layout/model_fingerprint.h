#pragma once
// Whether two engines compute with the same model: whose keys the other's queries can be asked with.
#include <filesystem>

#include "step2_model/model.h"
#include "step7_parallel/workers/file_hash.h"

namespace ladder {

struct ModelFingerprint {
  // Of config.json, in whatever order and with whatever spaces it is written and without the two keys that only say who wrote
  // it (transformers_version, _name_or_path); and of the tokenizer's files and the chat template, byte by byte: token ids mean
  // the same.
  Sha256Digest model{};
  // Of the *.safetensors: names, sizes, the whole headers (each tensor's name, dtype, shape and place), and of each file 16
  // pieces of a MiB; of one of up to 16 MiB all. Another training run or another quantization is told apart, since it changes
  // every tensor. What changes a few tensors only, between two samples, is not: who edits weights in place and keeps all shapes
  // gives the file another name. Of --load-format dummy: that it is.
  Sha256Digest weights{};

  bool operator==(const ModelFingerprint&) const = default;
};

// Reads 16 MiB per file, whatever its size. Error: something cannot be read.
ModelFingerprint model_fingerprint(const std::filesystem::path& folder,
                                   LoadFormat load_format = LoadFormat::automatic);

}  // namespace ladder
