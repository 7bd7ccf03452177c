#pragma once
// A model whose every answer is a hash of all the tokens before it, each read back from the KV cache through
// the block table. A token in a wrong slot, a stale table, a wrong position or a wrong length changes the
// hash, and with it the logits; nothing is rounded, so "the same" is the same bits.
//
// On a GPU it reads back what reached the device, thinks on the host, and writes its answers to the device:
// it waits, so it cannot be captured into a graph. On the fake device (recording_stream.h) it is two kernels, forward
// and logits, which say the numbers and addresses that they are launched with: a graph has them for good.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step2_model/model.h"
#include "step4_runner/memory.h"
#include "tests/support/recording_stream.h"

namespace ladder::testing {

inline uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 32);
}

inline uint64_t hash_of(std::span<const int32_t> tokens) {
  uint64_t hash = 1;
  for (size_t position = 0; position < tokens.size(); ++position)
    hash = mix(mix(hash, static_cast<uint64_t>(tokens[position])), position);
  return hash;
}

// In [-4, 4), a multiple of 2^-20: exact in f32.
inline float logit_of(uint64_t hash, int64_t token) {
  return static_cast<float>(static_cast<double>(mix(hash, static_cast<uint64_t>(token)) >> 41) * 0x1p-20 -
                            4.0);
}

// What the model says after these tokens.
inline std::vector<float> fake_logits(std::span<const int32_t> tokens, int64_t vocab_size) {
  std::vector<float> logits;
  for (int64_t v = 0; v < vocab_size; ++v) logits.push_back(logit_of(hash_of(tokens), v));
  return logits;
}

inline DecoderSpec fake_spec(int64_t vocab_size = 97) {
  DecoderSpec spec;
  spec.architecture = "Fake";
  spec.vocab_size = vocab_size;
  spec.hidden_size = 4;
  spec.intermediate_size = 4;
  spec.num_layers = 2;
  spec.num_heads = 4;
  spec.num_kv_heads = 4;
  spec.head_dim = 2;
  spec.max_position_embeddings = 128;
  spec.rope.rotary_dim = 2;
  return spec;
}

class FakeModel final : public Model {
 public:
  FakeModel(const OpContext& ctx, DecoderSpec spec, RunnerConfig config)
      : spec_(std::move(spec)), config_(std::move(config)), rank_(tp_group(ctx).rank()) {}

  const DecoderSpec& spec() const override { return spec_; }
  DType dtype() const override { return DType::f32; }
  int64_t max_model_len() const override { return config_.batch.max_model_len; }
  std::vector<KvCacheSpec> kv_cache_specs() const override {
    KvCacheSpec layer;
    layer.num_kv_heads = std::max<int64_t>(spec_.num_kv_heads / config_.tensor_parallel_size, 1);
    layer.k_dim = layer.v_dim = spec_.head_dim;
    return std::vector<KvCacheSpec>(static_cast<size_t>(spec_.num_layers), layer);
  }
  int64_t weight_bytes() const override { return 0; }

  Tensor forward(const OpContext& ctx, const ModelInput& input) override {
    if (on_forward) on_forward(rank_);
    const int64_t rows = input.input_ids.dim(0);
    max_rows_seen = std::max(max_rows_seen, rows);
    Tensor hidden = ctx.arena->take({rows, spec_.hidden_size}, DType::f32);
    if (ctx.device.is_cpu()) {
      think(input, hidden);
    } else if (ctx.device.type == DeviceType::fake) {
      launch_forward(ctx, input, hidden);
    } else {
      device_synchronize(ctx.device, ctx.stream);
      ModelInput host = input;
      std::vector<KvCacheView> caches;
      for (const KvCacheView& cache : input.kv_caches)
        caches.push_back({cache.k.to(Device{}), cache.v.to(Device{})});
      host.kv_caches = caches;
      AttentionMetadata& m = host.attention;
      for (Tensor* tensor : {&host.input_ids, &host.positions, &m.slot_mapping, &m.query_start_loc,
                             &m.seq_lens, &m.block_tables})
        *tensor = tensor->to(Device{});
      const Tensor answer = Tensor::empty(hidden.shape(), DType::f32);
      think(host, answer);
      hidden.copy_from(answer);
      for (size_t i = 0; i < caches.size(); ++i) {
        input.kv_caches[i].k.copy_from(caches[i].k);
        input.kv_caches[i].v.copy_from(caches[i].v);
      }
    }
    // A sum over the ranks that leaves every rank with what one rank has.
    Communicator& group = tp_group(ctx);
    if (group.rank() != 0) hidden.fill_bytes(0);
    group.all_reduce(ctx, hidden);
    return hidden;
  }

  Tensor compute_logits(const OpContext& ctx, const Tensor& hidden) override {
    max_logits_rows_seen = std::max(max_logits_rows_seen, hidden.dim(0));
    Tensor logits = ctx.arena->take({hidden.dim(0), spec_.vocab_size}, DType::f32);
    if (ctx.device.is_cpu()) {
      speak(hidden, logits);
    } else if (ctx.device.type == DeviceType::fake) {
      recording_stream(ctx).launch(
          {"logits", 0, [this, from = on_host(hidden), to = on_host(logits)] { speak(from, to); }},
          {hidden.dim(0)});
    } else {
      device_synchronize(ctx.device, ctx.stream);
      const Tensor answer = Tensor::empty(logits.shape(), DType::f32);
      speak(hidden.to(Device{}), answer);
      logits.copy_from(answer);
    }
    return logits;
  }

  std::function<void(int rank)> on_forward;
  int64_t max_rows_seen = 0;
  int64_t max_logits_rows_seen = 0;

  // What a launch of "forward" says of its arguments, in this order.
  enum Argument { kRows, kNumSeqs, kNumTokens, kMaxQueryLen, kMaxSeqLen, kFirstAddress };

 private:
  static RecordingStream& recording_stream(const OpContext& ctx) {
    return static_cast<RecordingStream&>(fake_stream(ctx));
  }
  // The fake device's memory as the host may read it, when the kernel runs.
  static Tensor on_host(const Tensor& tensor) {
    return tensor.rebased(const_cast<void*>(static_cast<const void*>(tensor.raw())), Device{}, nullptr);
  }

  static void launch_forward(const OpContext& ctx, const ModelInput& input, const Tensor& hidden) {
    ModelInput host = input;
    AttentionMetadata& m = host.attention;
    std::vector<int64_t> arguments{hidden.dim(0), m.num_seqs, m.num_tokens, m.max_query_len, m.max_seq_len};
    for (Tensor* tensor : {&host.input_ids, &host.positions, &m.slot_mapping, &m.query_start_loc, &m.seq_lens,
                           &m.block_tables}) {
      arguments.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor->raw())));
      *tensor = on_host(*tensor);
    }
    std::vector<KvCacheView> caches;
    for (const KvCacheView& cache : input.kv_caches) caches.push_back({on_host(cache.k), on_host(cache.v)});
    recording_stream(ctx).launch({"forward", 0,
                                  [host, caches, to = on_host(hidden)]() mutable {
                                    host.kv_caches = caches;
                                    think(host, to);
                                  }},
                                 std::move(arguments));
  }

  // What a kernel is launched with must cover what it finds on the device.
  static void check_bounds(const AttentionMetadata& m, int64_t rows) {
    for (int64_t s = 0; s < m.num_seqs; ++s) {
      const int64_t begin = m.query_start_loc.at<int32_t>({s}), end = m.query_start_loc.at<int32_t>({s + 1});
      const int64_t length = m.seq_lens.at<int32_t>({s});
      LADDER_CHECK(0 <= begin && begin <= end && end <= rows, "sequence {} has rows [{}, {}) of {}", s, begin,
                   end, rows);
      LADDER_CHECK(length <= m.max_seq_len && end - begin <= m.max_query_len,
                   "sequence {} has {} keys and {} rows, the kernel was launched for {} and {}", s, length,
                   end - begin, m.max_seq_len, m.max_query_len);
    }
  }

  static float& at(const Tensor& cache, int64_t slot) {
    return cache.at<float>({slot / cache.dim(1), slot % cache.dim(1), 0, 0});
  }

  static void think(const ModelInput& input, const Tensor& hidden) {
    const AttentionMetadata& m = input.attention;
    check_bounds(m, hidden.dim(0));
    hidden.fill_bytes(0xff);
    for (const KvCacheView& cache : input.kv_caches) {
      for (int64_t row = 0; row < hidden.dim(0); ++row) {
        const int64_t slot = m.slot_mapping.at<int64_t>({row});
        if (slot < 0) continue;
        at(cache.k, slot) = static_cast<float>(input.input_ids.at<int32_t>({row}));
        at(cache.v, slot) = static_cast<float>(input.positions.at<int32_t>({row}));
      }
      for (int64_t s = 0; s < m.num_seqs; ++s) {
        const int64_t begin = m.query_start_loc.at<int32_t>({s}),
                      end = m.query_start_loc.at<int32_t>({s + 1});
        const int64_t length = m.seq_lens.at<int32_t>({s});
        uint64_t hash = 1;
        for (int64_t position = 0; position < length; ++position) {
          const int64_t block = m.block_tables.at<int32_t>({s, position / cache.block_size()});
          const int64_t slot = block * cache.block_size() + position % cache.block_size();
          hash = mix(mix(hash, static_cast<uint64_t>(at(cache.k, slot))),
                     static_cast<uint64_t>(at(cache.v, slot)));
          const int64_t row = begin + position - (length - (end - begin));
          if (row < begin) continue;
          for (int part = 0; part < 4; ++part)  // 16 bits in each float
            hidden.at<float>({row, part}) = static_cast<float>(hash >> (16 * part) & 0xffff);
        }
      }
    }
  }

  void speak(const Tensor& hidden, const Tensor& logits) const {
    for (int64_t row = 0; row < hidden.dim(0); ++row) {
      if (std::isnan(hidden.at<float>({row, 0}))) {  // a row of no sequence
        std::fill_n(&logits.at<float>({row, 0}), spec_.vocab_size, NAN);
        continue;
      }
      uint64_t hash = 0;
      for (int part = 0; part < 4; ++part)
        hash |= static_cast<uint64_t>(hidden.at<float>({row, part})) << (16 * part);
      for (int64_t v = 0; v < spec_.vocab_size; ++v) logits.at<float>({row, v}) = logit_of(hash, v);
    }
  }

  DecoderSpec spec_;
  RunnerConfig config_;
  int rank_;
};

}  // namespace ladder::testing
