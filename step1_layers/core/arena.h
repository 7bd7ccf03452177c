#pragma once
// Scratch memory for one forward pass. Taking a tensor moves a pointer; nothing is freed one by one. A scope
// gives back what was taken inside it:
//
//   ArenaScope scope(*ctx.arena);
//   Tensor hidden = ctx.arena->take({tokens, hidden_size}, DType::bf16);
//
// A warm-up run with the largest batch leaves the arena as large as it will ever need to be (`peak_bytes`),
// and freeze() turns any later growth into an error: a captured CUDA graph must never see its buffers move.
#include <cstdint>
#include <vector>

#include "step1_layers/core/tensor.h"

namespace ladder {

class Arena {
 public:
  explicit Arena(Device device = {}) : device_(device) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Uninitialised, 256-byte aligned. The memory is valid until the scope it was taken in ends.
  // Error: frozen, and the arena would have to grow.
  Tensor take(const Shape& shape, DType dtype);

  // Makes sure that one piece of this many bytes is there. Memory that grows take by take leaves gaps.
  void reserve(int64_t bytes);
  void freeze() { frozen_ = true; }
  int64_t used_bytes() const;  // taken and not given back
  int64_t peak_bytes() const { return peak_bytes_; }
  int64_t reserved_bytes() const;  // what it holds from the device

 private:
  friend class ArenaScope;
  struct Chunk {
    std::shared_ptr<void> memory;
    int64_t size = 0;
  };

  void add_chunk(int64_t bytes);

  Device device_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;    // the chunk that take() looks at first
  int64_t offset_ = 0;  // first free byte in it
  int64_t peak_bytes_ = 0;
  bool frozen_ = false;
};

class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), chunk_(arena.chunk_), offset_(arena.offset_) {}
  ~ArenaScope() {
    arena_.chunk_ = chunk_;
    arena_.offset_ = offset_;
  }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  size_t chunk_;
  int64_t offset_;
};

}  // namespace ladder
