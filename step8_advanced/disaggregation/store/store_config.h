#pragma once
// How an engine uses a prefix store.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "step3_sequence/prefix/block_hash.h"

namespace ladder {

struct KvStoreConfig {
  std::filesystem::path folder;
  int64_t max_bytes = int64_t{10} << 30;  // of all files in the folder
  // Packed blocks that wait to be written: further ones are not stored.
  int64_t queue_bytes = int64_t{512} << 20;
  int num_loaders = 4;  // threads that read, each a block at a time
  // Names blocks. The same in every process that shares the folder; a test may have one whose names collide.
  std::function<std::unique_ptr<BlockHasher>()> make_hasher = [] {
    return std::make_unique<Sha256BlockHasher>(0);
  };
  // Called once, by any thread: what keeps blocks from being written. The engine goes on without.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

}  // namespace ladder
