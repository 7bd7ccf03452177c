// Paged attention over batches drawn at random: heads, groups, pages, lengths, prefix hits,
// chunks among single rows, sequences without a row, all tensors within wider ones, bounds above the truth.
#include "tests/step1_layers/attention_scene.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

// The size a reference in double precision can pay for: rows times keys times heads times their size.
constexpr double kMostProducts = 5e6;

struct Batch {
  DType dtype;
  HeadShape shape;
  int64_t block_size;
  std::vector<SequenceData> data;
  std::vector<Part> parts;
};

Batch random_batch(Random& random) {
  Batch batch;
  batch.dtype = random.one_of<DType>({DType::bf16, DType::bf16, DType::f16, DType::f32});
  const int64_t dim = random.one_of<int64_t>({64, 128, 128, 256, random.integer(1, 256)});
  const int64_t kv_heads = random.one_of<int64_t>({1, 2, 3, 8});
  const int64_t group = random.one_of<int64_t>({1, 2, 4, 5, 8, 16, random.integer(1, 40)});
  const bool odd = random.integer(0, 9) == 0;
  batch.shape = {kv_heads * group, kv_heads, dim, odd ? random.integer(1, 256) : dim};
  batch.block_size = random.one_of<int64_t>({16, 16, 32, 64, 128, 256, random.integer(1, 100)});

  const bool decode = random.integer(0, 1) == 0;
  const int64_t count = random.one_of<int64_t>({1, 2, random.integer(3, 12), decode ? 140 : 30});
  double left = kMostProducts / static_cast<double>(batch.shape.heads * (dim + batch.shape.v_dim));
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (int64_t i = 0; i < count; ++i) {
    const double share = left / static_cast<double>(count - i) * (random.integer(0, 3) == 0 ? 3 : 1);
    const bool single = decode || random.integer(0, 2) == 0;
    const double most = single ? std::min(share, 4000.0) : std::min(std::sqrt(share), 700.0);
    const int64_t end = random.integer(1, std::max<int64_t>(1, static_cast<int64_t>(most)));
    int64_t rows = single ? 1 : random.integer(1, end);
    if (random.integer(0, 15) == 0 && count > 1 && i > 0) rows = 0;
    left -= static_cast<double>(end * rows);
    spans.emplace_back(end - rows, end);
  }
  batch.data.reserve(spans.size());  // parts point into it
  for (const auto& [begin, end] : spans) {
    batch.data.push_back(random_sequence(random, end, batch.shape, batch.dtype));
    if (batch.shape.heads * batch.shape.v_dim < 8) take_magnitudes(batch.data.back().v);
    batch.parts.push_back({&batch.data.back(), begin, end});
    // Whole blocks before the first new row may be those of an earlier sequence.
    const auto i = batch.parts.size() - 1;
    if (i == 0 || random.integer(0, 3) != 0) continue;
    const auto with = static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1));
    const int64_t shared = std::min(begin, batch.parts[with].end) / batch.block_size;
    if (shared == 0) continue;
    batch.parts[i].shared_with = static_cast<int>(with);
    batch.parts[i].shared_blocks = shared;
    const int64_t keys = shared * batch.block_size;
    batch.data[i].k.rows(keys).copy_from(batch.data[with].k.rows(keys));
    batch.data[i].v.rows(keys).copy_from(batch.data[with].v.rows(keys));
  }
  return batch;
}

// A window into a wider tensor of NaN; mostly its heads begin at multiples of sixteen bytes.
Tensor widened(Random& random, const Shape& shape, DType dtype) {
  const int64_t step = random.integer(0, 4) == 0 ? 1 : 8, head = random.integer(0, 2),
                first = step * random.integer(0, 1);
  const Tensor wide = poisoned(
      {shape[0], shape[1] + head + random.integer(0, 2), shape[2] + first + step * random.integer(0, 2)},
      dtype);
  return wide.narrow(1, head, shape[1]).narrow(2, first, shape[2]);
}

RUNG_TEST(Task1_7_PagedAttention, RandomBatches, "paged_attention", paged_attention_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < 12 && !::testing::Test::HasFailure(); ++i) {
    const Batch batch = random_batch(random);
    const int64_t padding = random.integer(0, 3);
    AttentionInput input = lay_out(OpContext{}, random, batch.parts, batch.block_size, padding);
    AttentionMetadata& metadata = input.metadata;
    if (random.integer(0, 1))
      metadata.max_seq_len = metadata.block_tables.dim(1) * batch.block_size;  // a bound, as in a graph
    const Shape rows = {input.q.dim(0), batch.shape.heads, batch.shape.k_dim};
    const Tensor q = widened(random, rows, batch.dtype);
    q.copy_from(input.q);
    const Tensor out = widened(random, {rows[0], rows[1], batch.shape.v_dim}, batch.dtype),
                 nothing = out.clone();
    const double scale = random.uniform(0.5, 1.5) / std::sqrt(static_cast<double>(batch.shape.k_dim));
    Tensor lse;
    if (random.integer(0, 3) > 0) {
      lse = poisoned({rows[0], rows[1] + random.integer(0, 3)}, DType::f32).narrow(1, 0, rows[1]);
    }
    const Tensor tables =
        Tensor::empty({metadata.num_seqs, metadata.block_tables.dim(1) + random.integer(0, 5)}, DType::i32);
    tables.fill_bytes(0xee);
    const Tensor used_tables = tables.narrow(1, 0, metadata.block_tables.dim(1));
    used_tables.copy_from(metadata.block_tables);
    metadata.block_tables = used_tables;
    const PagedAttentionArgs args{q, input.cache, metadata, scale, out, lse};
    if (!can_run_rung(rung, ctx, args)) continue;
    SCOPED_TRACE(
        "q " + q.str() + ", cache " + input.cache.k.str() + ", " + std::to_string(batch.parts.size()) +
        " sequences, at most " + std::to_string(metadata.max_query_len) + " rows and " +
        std::to_string(metadata.max_seq_len) + " keys, values of " + std::to_string(batch.shape.v_dim));
    run_rung(rung, ctx, args);
    int64_t row = 0;
    for (size_t p = 0; p < batch.parts.size(); ++p) {
      const int64_t length = batch.parts[p].end - batch.parts[p].begin;
      if (length == 0) continue;
      const Reference expected =
          attention_reference(*batch.parts[p].data, batch.parts[p].begin, batch.parts[p].end, scale);
      // A head of few values may be the small rest of large ones: all heads of a row are one row here.
      const Tensor got = out.narrow(0, row, length).clone();
      ASSERT_TRUE(close_to(got.view({length, rows[1] * batch.shape.v_dim}), expected.out))
          << "rows " << batch.parts[p].begin << ".." << batch.parts[p].end;
      if (lse.defined()) {
        const auto sums = to_double(lse.narrow(0, row, length));
        for (size_t at = 0; at < sums.size(); ++at) ASSERT_NEAR(sums[at], expected.lse[at], 1e-4);
      }
      row += length;
    }
    const int64_t rest = rows[0] - row;
    ASSERT_TRUE(bitwise_equal(out.narrow(0, row, rest), nothing.narrow(0, row, rest)));
  }
}

}  // namespace
}  // namespace ladder
