// Keys and values from the blocks of a cache into packed bytes and back, beside memcpy of as many bytes, one thread: a layer of
// Qwen3-8B (8 heads of 128, bf16), blocks of 16 in random order, 512 tokens a part. all_heads: every row of 256 bytes is copied
// by itself. one_head: as with TP 8, where a block's tokens are dense; in_order: and all blocks are. of_memcpy is the rate over
// memcpy's in the same run. checksum is what goes over the packed bytes, beside memcpy too; zstd and zstd_back are what makes
// them shorter for the way, and undoes it.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "bench/support/bench_support.h"
#include "step8_advanced/disaggregation/layout/kv_checksum.h"
#include "step8_advanced/disaggregation/layout/kv_layout.h"
#include "step8_advanced/disaggregation/transport/kv_compression.h"

namespace ladder::bench {
namespace {

constexpr int64_t kTokens = 512, kBlockSize = 16, kDim = 128;

struct Problem {
  KvLayout layout;
  RankKvCaches caches;
  std::vector<int32_t> blocks;  // of all sequences, one behind the other
  std::vector<std::byte> packed;
  KvPart part;
  int64_t num_sequences = 0, next = 0;

  Problem(int64_t heads, bool in_order, DType packed_dtype = DType::bf16) {
    layout = {.num_layers = 1,
              .num_kv_heads = heads,
              .k_dim = kDim,
              .v_dim = kDim,
              .dtype = DType::bf16,
              .stage_ends = {1},
              .block_size = kBlockSize};
    part = {.num_heads = heads, .num_tokens = kTokens};
    num_sequences = std::max<int64_t>(2, rotation_bytes() / packed_size(layout, part));
    blocks.resize(static_cast<size_t>(num_sequences * kTokens / kBlockSize));
    std::iota(blocks.begin(), blocks.end(), 0);
    if (!in_order) std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(1));
    const Shape shape = {std::ssize(blocks), kBlockSize, heads, kDim};
    caches.layers = {0, 1};
    caches.caches.push_back(
        {.k = random_tensor(shape, DType::bf16), .v = random_tensor(shape, DType::bf16, 2)});
    KvLayout sender = layout;
    sender.dtype = packed_dtype;
    packed.resize(static_cast<size_t>(packed_size(sender, part)));
  }
  std::span<const int32_t> next_sequence() {
    next = (next + 1) % num_sequences;
    return std::span(blocks).subspan(static_cast<size_t>(next * kTokens / kBlockSize), kTokens / kBlockSize);
  }
};

// Seconds per call, the best of some: a neighbour's work is not measured.
template <class Work>
double seconds_of(Work work) {
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 50; ++i) work();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count() / 50);
  }
  return best;
}

// Of as many bytes as lie at `packed`, from memory that is not in a cache.
double memcpy_seconds(std::vector<std::byte>& packed) {
  const auto size = static_cast<int64_t>(packed.size());
  const Tensor source = random_tensor({2 * rotation_bytes() / 4}, DType::f32);
  int64_t at = 0;
  return seconds_of([&] {
    if (at + size > source.nbytes()) at = 0;
    std::memcpy(packed.data(), static_cast<const char*>(source.raw()) + at, packed.size());
    benchmark::ClobberMemory();
    at += size;
  });
}

template <class Work>
void measure(const std::string& name, std::function<Problem()> make, Work work) {
  benchmark::RegisterBenchmark(("kv_pack/" + name).c_str(), [=](benchmark::State& state) {
    Problem problem = make();
    const double copy = memcpy_seconds(problem.packed);
    double seconds = 0;
    for (auto _ : state) {
      seconds = seconds_of([&] {
        work(problem);
        benchmark::ClobberMemory();
      });
    }
    state.counters["GB/s"] = static_cast<double>(problem.packed.size()) / seconds / 1e9;
    state.counters["of_memcpy"] = copy / seconds;
  })->Iterations(1);
}

void pack(Problem& problem) {
  pack_kv(problem.layout, problem.caches, problem.next_sequence(), problem.part, problem.packed);
}
void unpack(Problem& problem) {
  unpack_kv(problem.layout, problem.caches, problem.next_sequence(), problem.part, problem.packed,
            DType::bf16);
}
void unpack_f32(Problem& problem) {
  unpack_kv(problem.layout, problem.caches, problem.next_sequence(), problem.part, problem.packed,
            DType::f32);
}

// A part's bytes, and the same ones shorter.
struct Shortened {
  KvBodyPacker packer;
  KvBodyUnpacker unpacker;
  KvPackedBody body;

  void pack(const Problem& problem) {
    KvBodyCounts counts;
    body = packer.pack(problem.packed, KvBodyForm::zstd_of_2_bytes, counts);
  }
  void unpack(Problem& problem) {
    if (body.bytes.empty()) pack(problem);
    unpacker.unpack(body.form, body.bytes, problem.packed);
  }
};

const bool kRegistered = [] {
  const auto all_heads = [] { return Problem(8, false); };
  const auto one_head = [] { return Problem(1, false); };
  const auto in_order = [] { return Problem(1, true); };
  measure("pack/all_heads", all_heads, pack);
  measure("unpack/all_heads", all_heads, unpack);
  measure(
      "unpack/all_heads_from_f32", [] { return Problem(8, false, DType::f32); }, unpack_f32);
  measure("pack/one_head", one_head, pack);
  measure("unpack/one_head", one_head, unpack);
  measure("pack/in_order", in_order, pack);
  measure("unpack/in_order", in_order, unpack);
  measure("checksum", all_heads,
          [](Problem& problem) { benchmark::DoNotOptimize(kv_checksum(problem.packed)); });
  const auto with_bytes = [] {
    Problem problem(8, false);
    pack(problem);
    return problem;
  };
  const auto shortened = std::make_shared<Shortened>();
  measure("zstd", with_bytes, [shortened](Problem& problem) { shortened->pack(problem); });
  measure("zstd_back", with_bytes, [shortened](Problem& problem) { shortened->unpack(problem); });
  measure("checksum_by_table", all_heads,
          [](Problem& problem) { benchmark::DoNotOptimize(kv_checksum_by_table(problem.packed)); });
  return true;
}();

}  // namespace
}  // namespace ladder::bench
