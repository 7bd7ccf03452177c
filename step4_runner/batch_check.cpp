#include "step4_runner/batch_check.h"

#include <array>
#include <bit>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"

namespace ladder {

namespace {

constexpr int64_t kNumChecksums = 5;
using Row = std::array<int64_t, kNumChecksums>;  // BatchChecksums as it travels
constexpr std::array<std::string_view, kNumChecksums> kNames = {"step", "sequences", "tokens", "block tables",
                                                                "sampling parameters"};

Row row_of(const BatchChecksums& checksums) {
  return {checksums.step, checksums.sequences, checksums.tokens, checksums.block_tables, checksums.sampling};
}

Tensor tensor_of(Row& row) {
  return Tensor::wrap(row.data(), {kNumChecksums}, DType::i64);
}

// FNV-1a, by values instead of bytes.
class Checksum {
 public:
  void add(int64_t value) {
    hash_ = (hash_ ^ static_cast<uint64_t>(value)) * 0x100000001b3u;
    hash_ ^= hash_ >> 29;
  }
  void add(double value) { add(std::bit_cast<int64_t>(value)); }
  int64_t value() const { return static_cast<int64_t>(hash_); }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

// "the tokens differ"; empty: nothing does.
std::string difference(const Row& a, const Row& b) {
  if (a[0] != b[0]) return fmt::format("the steps are {} and {}", a[0], b[0]);
  for (size_t i = 1; i < kNumChecksums; ++i)
    if (a[i] != b[i]) return fmt::format("the {} differ", kNames[i]);
  return {};
}

}  // namespace

BatchChecksums checksums_of(int64_t step, const Batch& batch) {
  Checksum sequences, tokens, tables, sampling;
  for (const BatchSequence* sequence : batch.sequences()) {
    for (const int64_t value : {sequence->id, sequence->num_computed_tokens, sequence->num_scheduled_tokens,
                                sequence->num_prompt_tokens})
      sequences.add(value);
    tables.add(std::ssize(sequence->block_table));
    for (const int32_t block : sequence->block_table) tables.add(int64_t{block});
    const SamplingParams& asked = sequence->sampling;
    sampling.add(std::bit_cast<int64_t>(asked.seed.value_or(0)));
    sampling.add(asked.top_k);
    for (const double value : {asked.temperature, asked.top_p, asked.min_p, asked.repetition_penalty,
                               asked.presence_penalty, asked.frequency_penalty})
      sampling.add(value);
  }
  const Tensor& ids = batch.input_ids();
  for (int64_t i = 0; i < ids.numel(); ++i) tokens.add(int64_t{ids.data<int32_t>()[i]});
  return {step, sequences.value(), tokens.value(), tables.value(), sampling.value()};
}

void compare_batches(const OpContext& ctx, const BatchChecksums& mine) {
  Communicator &tp = tp_group(ctx), &pp = pp_group(ctx);
  Row row = row_of(mine);
  if (pp.rank() + 1 < pp.size()) pp.send(ctx, tensor_of(row), pp.rank() + 1);
  for (const auto& [group, kind] : {std::pair{&tp, "tensor"}, {&cp_group(ctx), "context"}}) {
    if (group->size() == 1) continue;
    std::vector<Row> rows(static_cast<size_t>(group->size()));
    group->all_gather(ctx, tensor_of(row),
                      Tensor::wrap(rows.data(), {group->size(), kNumChecksums}, DType::i64));
    for (size_t rank = 1; rank < rows.size(); ++rank) {
      const std::string what = difference(rows[0], rows[rank]);
      LADDER_CHECK(what.empty(), "step {}: {} ranks 0 and {} of stage {} do not compute the same batch: {}",
                   rows[0][0], kind, rank, pp.rank(), what);
    }
  }
  if (pp.rank() == 0) return;
  Row before = {};
  pp.recv(ctx, tensor_of(before), pp.rank() - 1);
  const std::string what = difference(before, row);
  LADDER_CHECK(what.empty(), "step {}: stages {} and {} do not compute the same batch (tensor rank {}): {}",
               before[0], pp.rank() - 1, pp.rank(), tp.rank(), what);
}

}  // namespace ladder
