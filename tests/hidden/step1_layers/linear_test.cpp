// Tasks 1.4 and 1.5: products of odd sizes between margins, layers and collectives on three, five and six ranks.
#include <gmock/gmock.h>

#include <numeric>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step1_layers/embedding/embedding.h"
#include "step1_layers/linear/linear.h"
#include "step1_layers/linear/matmul.h"
#include "tests/hidden/step1_layers/margins.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;
using ::testing::HasSubstr;

// x times weight^T, plus bias where there is one.
std::vector<double> product(const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
  const auto left = to_double(x), right = to_double(weight), added = bias.defined() ? to_double(bias) : left;
  std::vector<double> out;
  const int64_t k = x.dim(1);
  for (int64_t i = 0; i < x.dim(0); ++i)
    for (int64_t j = 0; j < weight.dim(0); ++j)
      out.push_back(std::inner_product(left.begin() + i * k, left.begin() + (i + 1) * k,
                                       right.begin() + j * k, bias.defined() ? added[j] : 0.0));
  return out;
}

std::vector<double> rounded(std::vector<double> values, DType dtype) {
  const auto size = static_cast<int64_t>(values.size());
  const Tensor exact = Tensor::empty({size}, DType::f32);
  for (int64_t i = 0; i < size; ++i) exact.data<float>()[i] = static_cast<float>(values[i]);
  return to_double(exact.to(dtype));
}

// Integers: what is summed is exact in float, so that only the last rounding is left, and that is known.
RUNG_TEST(Hidden1_4_Matmul, IsRoundedOnce, "matmul", matmul_variants()) {
  repeated(25, [&](Random& random) {
    const DType dtype = any_float(random), out_dtype = random.integer(0, 1) ? dtype : DType::f32;
    const int64_t m = random.one_of<int64_t>({1, 2, 3, random.integer(4, 14), random.integer(15, 70)}),
                  k = random.one_of<int64_t>({random.integer(1, 70), random.integer(1000, 4200)}),
                  n = random.integer(1, std::max<int64_t>(2, 2'000'000 / (m * k)) % 400 + 2);
    const Margins x(random, {m, k}, dtype), weight(random, {n, k}, dtype), out(random, {m, n}, out_dtype);
    x.inside.copy_from(random.exact({m, k}, dtype, 15));
    weight.inside.copy_from(random.exact({n, k}, dtype, 15));
    const Tensor bias = random.integer(0, 3) ? random.exact({n}, dtype, 100) : Tensor();
    const MatmulArgs args{x.inside, weight.inside, bias, out.inside};
    if (!can_run_rung(rung, ctx, args)) return;
    run_rung(rung, ctx, args);
    EXPECT_EQ(to_double(out.inside), rounded(product(x.inside, weight.inside, bias), out_dtype))
        << m << " x " << n << " x " << k;
    out.expect_untouched();
  });
}

void on_ranks(std::initializer_list<int> sizes,
              const std::function<void(const OpContext& ctx, int rank, int ranks)>& fn) {
  for (const int ranks : sizes) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    run_ranks(ranks, [&](int rank, const ParallelContext& parallel) {
      Arena arena;
      OpContext ctx;
      ctx.arena = &arena;
      ctx.parallel = &parallel;
      fn(ctx, rank, ranks);
    });
  }
}

// Full tensors of a layer's parts: windows of another type, as a checkpoint may hold them.
struct Parts {
  Parts(Random& random, int64_t in, std::vector<int64_t> sizes) {
    for (const int64_t size : sizes) {
      weights.push_back(Margins(random, {size, in}, DType::f32).inside);
      weights.back().copy_from(random.exact({size, in}, DType::f32));
      biases.push_back(random.exact({size}, DType::f32));
    }
  }
  void load(Linear& linear, const OpContext& ctx) const {
    for (Parameter* parameter : linear.parameters())
      for (size_t part = 0; part < weights.size(); ++part)
        parameter->load((parameter->name.ends_with(".bias") ? biases : weights)[part],
                        static_cast<int>(part));
    linear.process_after_load(ctx);
  }
  std::vector<Tensor> weights, biases;
};

// Columns [from, from + size) of part `part`'s full product.
void expect_part(const Tensor& out, const Tensor& x, const Parts& parts, size_t part, int64_t from) {
  const Tensor weight = parts.weights[part].narrow(0, from, out.dim(1)),
               bias = parts.biases[part].narrow(0, from, out.dim(1));
  ASSERT_EQ(to_double(out), product(x, weight, bias)) << "part " << part << " from column " << from;
}

TEST(Hidden1_4_Linear, ColumnsOfThreeAndSixRanks) {
  repeated(4, [](Random& random) {
    const int64_t in = random.integer(1, 50), width = 6 * random.integer(1, 9),
                  other = 6 * random.integer(1, 9);
    const DType dtype = any_float(random);
    const Parts parts(random, in, {width, other});
    const Tensor x = random.exact({4, in}, dtype);
    on_ranks({1, 3, 6}, [&](const OpContext& ctx, int rank, int ranks) {
      MergedColumnParallelLinear linear(ctx, "gate_up", in, {width, other}, {.dtype = dtype, .bias = true});
      parts.load(linear, ctx);
      const Tensor out = poisoned({4, (width + other) / ranks}, DType::f32);
      linear.forward(ctx, x, out);
      expect_part(out.narrow(1, 0, width / ranks), x, parts, 0, rank * width / ranks);
      expect_part(out.narrow(1, width / ranks, other / ranks), x, parts, 1, rank * other / ranks);
    });
  });
}

TEST(Hidden1_4_Linear, HeadsOfThreeAndSixRanks) {
  repeated(4, [](Random& random) {
    const int64_t in = random.integer(1, 40), dim = random.integer(1, 9), heads = 6 * random.integer(1, 3),
                  kv_heads = random.one_of<int64_t>({1, 3, 6});
    const Parts parts(random, in, {heads * dim, kv_heads * dim, kv_heads * dim});
    const Tensor x = random.exact({3, in}, DType::f32);
    on_ranks({1, 3, 6}, [&](const OpContext& ctx, int rank, int ranks) {
      QkvParallelLinear linear(ctx, "qkv", in, heads, kv_heads, dim, {.dtype = DType::f32, .bias = true});
      parts.load(linear, ctx);
      ASSERT_EQ(linear.num_heads(), heads / ranks);
      ASSERT_EQ(linear.num_kv_heads(), std::max<int64_t>(1, kv_heads / ranks));
      const int64_t q = heads / ranks * dim, kv = linear.num_kv_heads() * dim,
                    first = rank * kv_heads / ranks * dim;
      const Tensor out = poisoned({3, q + 2 * kv}, DType::f32);
      linear.forward(ctx, x, out);
      expect_part(out.narrow(1, 0, q), x, parts, 0, rank * q);
      expect_part(out.narrow(1, q, kv), x, parts, 1, first);
      expect_part(out.narrow(1, q + kv, kv), x, parts, 2, first);
    });
  });
}

TEST(Hidden1_4_Linear, RowsOfThreeAndSixRanksAndWhatDoesNotDivide) {
  repeated(4, [](Random& random) {
    const int64_t in = 6 * random.integer(1, 9), size = random.integer(1, 30);
    const Parts parts(random, in, {size});
    const Tensor x = random.exact({5, in}, DType::f32);
    on_ranks({1, 3, 6}, [&](const OpContext& ctx, int rank, int ranks) {
      RowParallelLinear linear(ctx, "down", in, size, {.dtype = DType::f32, .bias = true});
      parts.load(linear, ctx);
      const Tensor out = poisoned({5, size}, DType::f32);
      linear.forward(ctx, x.narrow(1, rank * in / ranks, in / ranks), out);
      expect_part(out, x, parts, 0, 0);
      if (ranks == 1) return;
      EXPECT_THROW(RowParallelLinear(ctx, "down", in + 1, size, {}), Error);
      EXPECT_THROW(ColumnParallelLinear(ctx, "up", in, in + 1, {}), Error);
    });
  });
}

// What rank `rank` has, the same for everybody who asks.
Tensor of_rank(uint64_t seed, int rank, const Shape& shape) {
  Random random(seed + static_cast<uint64_t>(rank));
  return random.exact(shape, DType::f32, 99);
}

TEST(Hidden1_4_LocalGroup, SumsGathersAndBroadcastsOnOddRanks) {
  const uint64_t seed = fresh_seed();
  for (int64_t count : {1, 2, 7, 501})
    on_ranks({2, 3, 5, 7}, [&](const OpContext& ctx, int rank, int ranks) {
      Communicator& group = tp_group(ctx);
      std::vector<double> sum(static_cast<size_t>(count)), all;
      for (int r = 0; r < ranks; ++r) {
        const auto theirs = to_double(of_rank(seed, r, {count}));
        for (size_t i = 0; i < theirs.size(); ++i) sum[i] += theirs[i];
        all.insert(all.end(), theirs.begin(), theirs.end());
      }
      const Tensor reduced = of_rank(seed, rank, {count}), gathered = poisoned({ranks * count}, DType::f32);
      group.all_reduce(ctx, reduced);
      EXPECT_EQ(to_double(reduced), sum);
      group.all_gather(ctx, of_rank(seed, rank, {count}), gathered);
      EXPECT_EQ(to_double(gathered), all);
      const int root = static_cast<int>(seed % static_cast<uint64_t>(ranks));
      const Tensor value = of_rank(seed, rank, {count});
      group.broadcast(ctx, value, root);
      EXPECT_TRUE(bitwise_equal(value, of_rank(seed, root, {count}))) << "root " << root;
    });
}

TEST(Hidden1_4_LocalGroup, WhoWaitsLearnsWhyARankFailed) {
  Random random;
  const int culprit = static_cast<int>(random.integer(0, 4));
  int released = 0;
  std::mutex lock;
  EXPECT_THROW(run_ranks(5,
                         [&](int rank, const ParallelContext& parallel) {
                           if (rank == culprit) throw std::runtime_error("no more paper");
                           try {
                             parallel.tp->all_reduce(OpContext{}, of_rank(1, rank, {9}));
                           } catch (const Error& error) {
                             EXPECT_THAT(error.what(), HasSubstr("no more paper"));
                             const std::lock_guard guard(lock);
                             ++released;
                             throw;
                           }
                         }),
               std::runtime_error);
  EXPECT_EQ(released, 4);
}

TEST(Hidden1_4_Exchange, PartsOfSumsRowsAndMessagesOnOddRanks) {
  const uint64_t seed = fresh_seed();
  on_ranks({2, 3, 5}, [&](const OpContext& ctx, int rank, int ranks) {
    Communicator& group = tp_group(ctx);
    const int64_t part = 3;
    const Tensor mine = poisoned({part, 2}, DType::f32);
    std::vector<double> sum(static_cast<size_t>(2 * part));
    for (int r = 0; r < ranks; ++r) {
      const auto theirs = to_double(of_rank(seed, r, {ranks * part, 2}).narrow(0, rank * part, part));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += theirs[i];
    }
    group.reduce_scatter(ctx, of_rank(seed, rank, {ranks * part, 2}), mine);
    EXPECT_EQ(to_double(mine), sum);

    // Rank r sends (r + 2 t + seed) % 4 rows to rank t.
    const auto count = [&](int from, int to) { return static_cast<int64_t>((from + 2 * to + seed) % 4); };
    std::vector<int64_t> send, receive;
    for (int r = 0; r < ranks; ++r) send.push_back(count(rank, r)), receive.push_back(count(r, rank));
    const auto total = [](const std::vector<int64_t>& of) { return std::reduce(of.begin(), of.end()); };
    const Tensor in = of_rank(seed, rank, {total(send), 3}), out = poisoned({total(receive), 3}, DType::f32);
    group.all_to_all(ctx, in, send, out, receive);
    int64_t row = 0;
    for (int from = 0; from < ranks; ++from) {
      int64_t before = 0, theirs = 0;
      for (int r = 0; r < ranks; ++r) (r < rank ? before : theirs) += count(from, r);
      const Tensor sent = of_rank(seed, from, {before + theirs, 3}).narrow(0, before, receive[from]);
      EXPECT_TRUE(bitwise_equal(out.narrow(0, row, receive[from]), sent)) << "from rank " << from;
      row += receive[from];
    }

    // Four messages each way around the ring, changed by the sender at once.
    const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    for (uint64_t i = 0; i < 4; ++i) {
      const Tensor message = of_rank(seed + 100 * i, rank, {5});
      group.send(ctx, message, next);
      message.fill_bytes(0);
    }
    for (uint64_t i = 0; i < 4; ++i) {
      const Tensor message = poisoned({5}, DType::f32);
      group.recv(ctx, message, previous);
      EXPECT_TRUE(bitwise_equal(message, of_rank(seed + 100 * i, previous, {5}))) << "message " << i;
    }
  });
}

TEST(Hidden1_5_Embedding, AndLogitsOnThreeAndFiveRanks) {
  repeated(6, [](Random& random) {
    const int64_t vocab = random.integer(1, 200), hidden = random.integer(1, 40),
                  tokens = random.integer(1, 60);
    const DType dtype = any_float(random);
    const Tensor table = random.exact({vocab, hidden}, dtype), ids = Tensor::empty({tokens}, DType::i32),
                 expected = Tensor::empty({tokens, hidden}, dtype);
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t id = random.integer(0, vocab - 1);
      ids.at<int32_t>({i}) = static_cast<int32_t>(id);
      expected.select(0, i).copy_from(table.select(0, id));
    }
    on_ranks({1, 3, 5}, [&](const OpContext& ctx, int rank, int) {
      VocabParallelEmbedding embedding(ctx, "embed", vocab, hidden, dtype);
      embedding.parameters()[0]->load(table);
      const Tensor rows = poisoned({tokens, hidden}, dtype), logits = poisoned({tokens, vocab}, DType::f32);
      embedding.forward(ctx, ids, rows);
      EXPECT_TRUE(bitwise_equal(rows, expected)) << vocab << " tokens";
      LmHead(embedding).forward(ctx, expected, logits);
      if (rank == 0) EXPECT_EQ(to_double(logits), product(expected, table)) << vocab << " tokens";
    });
  });
}

}  // namespace
}  // namespace ladder
