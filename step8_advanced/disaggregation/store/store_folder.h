#pragma once
// The folder of a prefix store, which any number of processes share, and nothing but it: no lock, no index, no server.
//
//   FOLDER/                       of --kv-store
//     9f86d081884c7d65.../        one model and layout: the first half of its space (block_file.h)
//       2c26b46b68ff....kv        a block, under its name; its time of modification is when it was last used
//       .2c26....kv-5f3a...-1     being written by one of them; then renamed, so that a block is there whole or not at all
//
// A block's bytes are a function of its name: that two processes write the same one is no conflict, and the second one replaces
// the first. What is unlinked while somebody reads it stays his until he has read it.
//
// The bound: who writes counts, and when there is no room looks at the whole folder, all models of it, and removes what was
// not used for the longest time until an eighth is free. What others have written in between is seen then, or after a sixteenth
// of the bound was written: with P processes the folder may be larger than the bound by (P - 1) / 16.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "step8_advanced/disaggregation/store/block_file.h"

namespace ladder {

class KvStoreFolder {
 public:
  using Time = std::chrono::system_clock::time_point;

  // Makes the folder if there is none. Error, naming it: it is none and cannot be made, or cannot be written to.
  KvStoreFolder(std::filesystem::path folder, int64_t max_bytes, const Sha256Digest& space);

  // Any thread, all of them.
  bool has(const BlockHash& name) const;
  // False: it is not there. Else it was used at this time, and is not removed before what was used earlier.
  bool touch(const BlockHash& name, Time used) const;
  // All of the file. False: it is not there, or cannot be read. Error: it has not as many bytes.
  bool read(const BlockHash& name, std::span<std::byte> bytes) const;
  void remove(const BlockHash& name);  // a damaged one

  // One thread's. Error: it cannot be written, or has no room even when all others are removed.
  void write(const BlockHash& name, std::string_view head, std::span<const std::byte> body, Time used);

  int64_t num_bytes() const { return num_bytes_; }  // of all files, as far as is known here
  std::filesystem::path file_of(const BlockHash& name) const;

 private:
  // Counts. Where so many bytes more have no room, removes what was not used for the longest time, until an eighth is free.
  void sweep(int64_t num_wanted);
  std::filesystem::path begun(const BlockHash& name);  // a file for what is being written

  const std::filesystem::path folder_, space_;
  const int64_t max_bytes_;
  const std::string writer_;  // no other writer's, of any process
  std::atomic<int64_t> num_bytes_ = 0;
  int64_t num_written_since_sweep_ = 0;
  int64_t num_begun_ = 0;
};

}  // namespace ladder
