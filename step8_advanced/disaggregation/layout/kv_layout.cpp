#include "step8_advanced/disaggregation/layout/kv_layout.h"

#include <algorithm>

#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/task_not_implemented.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

namespace {

// Of anything that an engine has several of: far more than there is, and products of three fit 63 bits.
constexpr int64_t kMost = int64_t{1} << 12;
constexpr int64_t kLargestBlock = int64_t{1} << 20;

bool has_codes(const KvLayout& layout) {
  return layout.kept_as != KvCacheDType::automatic;
}

std::string kept_text(const KvLayout& layout) {
  return has_codes(layout) ? fmt::format("{} codes", kv_cache_dtype_name(layout.kept_as))
                           : std::string(dtype_name(layout.dtype));
}

std::string head_text(const KvLayout& layout) {
  return layout.k_dim == layout.v_dim ? fmt::format("{}", layout.k_dim)
                                      : fmt::format("{} and {}", layout.k_dim, layout.v_dim);
}

LayerRange layers_of_stage(const KvLayout& layout, int stage) {
  const auto at = static_cast<size_t>(stage);
  return {stage == 0 ? 0 : layout.stage_ends[at - 1], layout.stage_ends[at]};
}

}  // namespace

KvLayout kv_layout_of(const DecoderSpec& spec, const RunnerConfig& config) {
  LADDER_CHECK(
      config.decode_context_parallel_size == 1,
      "--decode-context-parallel-size {}: keys whose tokens are dealt out over ranks cannot be handed "
      "to another engine",
      config.decode_context_parallel_size);
  LADDER_CHECK(
      config.prefill_context_parallel_size == 1,
      "--prefill-context-parallel-size {}: keys that several ranks hold the same cannot be handed to "
      "another engine",
      config.prefill_context_parallel_size);
  KvLayout layout;
  layout.num_layers = spec.num_layers;
  layout.num_kv_heads = spec.num_kv_heads;
  layout.k_dim = layout.v_dim = spec.head_dim;
  layout.dtype = config.dtype;
  layout.kept_as = config.kv_cache_dtype;
  layout.tensor_parallel_size = config.tensor_parallel_size;
  for (int stage = 0; stage < config.pipeline_parallel_size; ++stage)
    layout.stage_ends.push_back(layers_of(config, spec.num_layers, stage).end);
  layout.block_size = config.batch.block_size;
  expect_kv_layout(layout);
  return layout;
}

void expect_kv_layout(const KvLayout& layout) {
  const auto in_range = [](std::string_view what, int64_t value, int64_t most = kMost) {
    LADDER_CHECK(value >= 1 && value <= most, "a KV layout of {} {}, expected 1 to {}", value, what, most);
  };
  in_range("layers", layout.num_layers);
  in_range("KV heads", layout.num_kv_heads);
  in_range("numbers per key", layout.k_dim);
  in_range("numbers per value", layout.v_dim);
  in_range("tensor-parallel ranks", layout.tensor_parallel_size);
  in_range("tokens per block", layout.block_size, kLargestBlock);
  in_range("pipeline stages", std::ssize(layout.stage_ends));
  LADDER_CHECK(layout.dtype == DType::f32 || layout.dtype == DType::bf16 || layout.dtype == DType::f16,
               "a KV layout of {} numbers, expected f32, bf16 or f16", dtype_name(layout.dtype));
  LADDER_CHECK(layout.kept_as <= KvCacheDType::int4, "a KV layout of unknown codes");
  for (int stage = 0; stage < std::ssize(layout.stage_ends); ++stage)
    LADDER_CHECK(layers_of_stage(layout, stage).size() > 0,
                 "a KV layout whose stage {} ends at layer {}, expected one after that of the stage before",
                 stage, layers_of_stage(layout, stage).end);
  LADDER_CHECK(layout.stage_ends.back() == layout.num_layers,
               "a KV layout whose stages end at layer {}, expected {}", layout.stage_ends.back(),
               layout.num_layers);
  heads_of_rank(layout.num_kv_heads, layout.tensor_parallel_size, 0);
}

std::string layout_text(const KvLayout& layout) {
  std::string text =
      fmt::format("{} layers of {} heads of {}, {}, TP {}", layout.num_layers, layout.num_kv_heads,
                  head_text(layout), kept_text(layout), layout.tensor_parallel_size);
  if (layout.stage_ends.size() > 1) text += fmt::format(", {} stages", layout.stage_ends.size());
  return text + fmt::format(", blocks of {}", layout.block_size);
}

void expect_alike(const KvLayout& from, const KvLayout& to) {
  const auto same = [&](std::string_view what, const auto& theirs, const auto& mine) {
    LADDER_CHECK(theirs == mine, "keys of {} {} cannot become keys of {} ({}; {})", theirs, what, mine,
                 layout_text(from), layout_text(to));
  };
  same("layers", from.num_layers, to.num_layers);
  same("KV heads", from.num_kv_heads, to.num_kv_heads);
  same("numbers per key", from.k_dim, to.k_dim);
  same("numbers per value", from.v_dim, to.v_dim);
  if (has_codes(from) || has_codes(to)) same("in the cache", kept_text(from), kept_text(to));
}

int64_t packed_size(const KvLayout& layout, const KvPart& part) {
  return part.num_heads * part.num_tokens *
         (kv_head_bytes(layout.kept_as, layout.dtype, layout.k_dim) +
          kv_head_bytes(layout.kept_as, layout.dtype, layout.v_dim));
}

// >>> task 8.7.layout: which heads a rank keeps, and who reads which layers and heads from whom
HeadRange heads_of_rank(int64_t num_kv_heads, int tensor_parallel_size, int tensor_rank) {
  LADDER_CHECK(num_kv_heads % tensor_parallel_size == 0 || tensor_parallel_size % num_kv_heads == 0,
               "{} KV heads cannot be shared out among {} tensor-parallel ranks: expected that one number "
               "divides the other",
               num_kv_heads, tensor_parallel_size);
  if (tensor_parallel_size > num_kv_heads) return {tensor_rank / (tensor_parallel_size / num_kv_heads), 1};
  const int64_t count = num_kv_heads / tensor_parallel_size;
  return {tensor_rank * count, count};
}

// Of a stage's ranks that keep a head, how many there are.
static int copies_of_head(const KvLayout& layout) {
  return static_cast<int>(std::max<int64_t>(1, layout.tensor_parallel_size / layout.num_kv_heads));
}

// The tensor rank of `from` from which this rank of `to` reads a head. The first reader takes the first copy, the second the
// second, round and round.
static int rank_to_read(const KvLayout& from, const KvLayout& to, int64_t head, int to_stage, int to_tensor) {
  const int copies = copies_of_head(from), readers = copies_of_head(to);
  const int reader = to_stage * readers + to_tensor % readers;
  const int64_t heads_per_rank = std::max<int64_t>(1, from.num_kv_heads / from.tensor_parallel_size);
  return static_cast<int>(head / heads_per_rank) * copies + reader % copies;
}

// Of one rank of `to` and the layers that it shares with one stage of `from`.
static void add_reads_of_heads(const KvLayout& from, const KvLayout& to, int to_stage, int to_tensor,
                               int from_stage, LayerRange layers, std::vector<KvRead>& reads) {
  const HeadRange mine = heads_of_rank(to.num_kv_heads, to.tensor_parallel_size, to_tensor);
  const int to_rank = to_stage * to.tensor_parallel_size + to_tensor;
  for (int64_t head = mine.first; head < mine.first + mine.count; ++head) {
    const int from_rank =
        from_stage * from.tensor_parallel_size + rank_to_read(from, to, head, to_stage, to_tensor);
    if (!reads.empty() && reads.back().to_rank == to_rank && reads.back().from_rank == from_rank)
      ++reads.back().num_heads;
    else
      reads.push_back({from_rank, to_rank, layers.begin, layers.size(), head, 1});
  }
}

std::vector<KvRead> kv_reads(const KvLayout& from, const KvLayout& to) {
  expect_kv_layout(from);
  expect_kv_layout(to);
  expect_alike(from, to);
  std::vector<KvRead> reads;
  for (int to_stage = 0; to_stage < std::ssize(to.stage_ends); ++to_stage)
    for (int to_tensor = 0; to_tensor < to.tensor_parallel_size; ++to_tensor)
      for (int from_stage = 0; from_stage < std::ssize(from.stage_ends); ++from_stage) {
        const LayerRange wanted = layers_of_stage(to, to_stage), there = layers_of_stage(from, from_stage);
        const LayerRange both = {std::max(wanted.begin, there.begin), std::min(wanted.end, there.end)};
        if (both.size() > 0) add_reads_of_heads(from, to, to_stage, to_tensor, from_stage, both, reads);
      }
  return reads;
}
// <<< task 8.7.layout

}  // namespace ladder
