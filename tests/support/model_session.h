#pragma once
// Drives a Model directly, without runner or scheduler: sequences with block tables in shuffled blocks, and
// steps of any mix of chunks. What the paged cache has not been given is NaN.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "step2_model/model.h"

namespace ladder::testing {

class ModelSession {
 public:
  struct Chunk {
    int sequence = 0;
    std::vector<int32_t> token_ids;  // the sequence's next tokens
  };

  // The kernels must not care which blocks a sequence got: `seed` shuffles them (the same on every rank).
  ModelSession(Model& model, const OpContext& ctx, int64_t block_size = 4, int64_t num_blocks = 160,
               uint64_t seed = 1)
      : model_(model), ctx_(ctx), block_size_(block_size) {
    ctx_.arena = &arena_;
    ctx_.batch_invariant = model.dtype() == DType::f32;
    for (const KvCacheSpec& spec : model.kv_cache_specs()) {
      KvCacheView view;
      view.k = Tensor::empty({num_blocks, block_size, spec.num_kv_heads, spec.k_dim}, spec.dtype);
      view.v = Tensor::empty({num_blocks, block_size, spec.num_kv_heads, spec.v_dim}, spec.dtype);
      view.k.fill_bytes(0xff);
      view.v.fill_bytes(0xff);
      caches_.push_back(view);
    }
    free_blocks_.resize(static_cast<size_t>(num_blocks));
    std::iota(free_blocks_.begin(), free_blocks_.end(), 0);
    std::shuffle(free_blocks_.begin(), free_blocks_.end(), std::mt19937_64(seed));
  }

  // Runs one step; hidden [rows of all chunks, hidden_size], a copy. For a model that does not begin at layer
  // 0, `hidden` is what the one before returned.
  Tensor forward(const std::vector<Chunk>& chunks, const Tensor& hidden = {}) {
    const Tensor result = [&] {
      ArenaScope scope(arena_);
      return model_.forward(ctx_, input(chunks, hidden)).clone();
    }();
    for (const Chunk& chunk : chunks)
      lengths_[chunk.sequence] += static_cast<int64_t>(chunk.token_ids.size());
    return result;
  }

  // logits [rows of all chunks, vocab_size] f32, a copy; undefined on all tensor-parallel ranks but the first.
  Tensor step(const std::vector<Chunk>& chunks) {
    const Tensor hidden = forward(chunks);
    ArenaScope scope(arena_);
    const Tensor logits = model_.compute_logits(ctx_, hidden);
    return logits.defined() ? logits.clone() : Tensor();
  }

  int64_t arena_peak_bytes() const { return arena_.peak_bytes(); }

 private:
  ModelInput input(const std::vector<Chunk>& chunks, const Tensor& hidden) {
    std::vector<int32_t> ids, positions, starts = {0}, lengths;
    std::vector<int64_t> slots;
    int64_t max_query = 0, max_length = 0;
    for (const Chunk& chunk : chunks) {
      auto& blocks = blocks_[chunk.sequence];
      const int64_t begin = lengths_[chunk.sequence];
      const auto count = static_cast<int64_t>(chunk.token_ids.size());
      for (int64_t i = 0; i < count; ++i) {
        const int64_t position = begin + i;
        if (position / block_size_ == static_cast<int64_t>(blocks.size())) {
          blocks.push_back(free_blocks_.back());
          free_blocks_.pop_back();
        }
        ids.push_back(chunk.token_ids[static_cast<size_t>(i)]);
        positions.push_back(static_cast<int32_t>(position));
        slots.push_back(blocks[static_cast<size_t>(position / block_size_)] * block_size_ +
                        position % block_size_);
      }
      starts.push_back(static_cast<int32_t>(ids.size()));
      lengths.push_back(static_cast<int32_t>(begin + count));
      max_query = std::max(max_query, count);
      max_length = std::max(max_length, begin + count);
    }
    const auto num_seqs = static_cast<int64_t>(chunks.size());
    const int64_t columns = (max_length + block_size_ - 1) / block_size_;
    Tensor tables = Tensor::empty({num_seqs, columns}, DType::i32);
    tables.fill_bytes(0x7f);  // an entry that must not be read
    for (int64_t s = 0; s < num_seqs; ++s) {
      const auto& blocks = blocks_[chunks[static_cast<size_t>(s)].sequence];
      for (size_t i = 0; i < blocks.size(); ++i)
        tables.at<int32_t>({s, static_cast<int64_t>(i)}) = static_cast<int32_t>(blocks[i]);
    }
    ModelInput input;
    input.input_ids = tensor_of(ids);
    input.positions = tensor_of(positions);
    input.hidden = hidden;
    input.attention.query_start_loc = tensor_of(starts);
    input.attention.seq_lens = tensor_of(lengths);
    input.attention.block_tables = tables;
    input.attention.slot_mapping = tensor_of(slots);
    input.attention.num_seqs = num_seqs;
    input.attention.num_tokens = static_cast<int64_t>(ids.size());
    input.attention.max_query_len = max_query;
    input.attention.max_seq_len = max_length;
    input.kv_caches = caches_;
    return input;
  }

  template <class T>
  static Tensor tensor_of(const std::vector<T>& values) {
    return Tensor::from(std::span<const T>(values), {static_cast<int64_t>(values.size())});
  }

  Model& model_;
  OpContext ctx_;
  Arena arena_;
  int64_t block_size_;
  std::vector<KvCacheView> caches_;
  std::vector<int64_t> free_blocks_;
  std::map<int, std::vector<int64_t>> blocks_;
  std::map<int, int64_t> lengths_;
};

}  // namespace ladder::testing
