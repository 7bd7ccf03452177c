#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "step1_layers/core/error.h"
#include "step1_layers/rotary/rope.h"
#include "step1_layers/rotary/rope_frequencies.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using namespace ladder::testing;

nlohmann::json golden_tables() {
  std::ifstream file(testing::source_folder().string() + "/tests/goldens/rope_tables.json");
  return nlohmann::json::parse(file);
}

RopeConfig config_of(const nlohmann::json& golden) {
  const auto& rope = golden.at("rope");
  const std::string type = rope.at("rope_type");
  RopeConfig config;
  config.kind = type == "linear"     ? RopeKind::linear
                : type == "dynamic"  ? RopeKind::dynamic_ntk
                : type == "yarn"     ? RopeKind::yarn
                : type == "llama3"   ? RopeKind::llama3
                : type == "longrope" ? RopeKind::longrope
                                     : RopeKind::standard;
  config.rotary_dim = golden.at("head_dim");
  config.theta = rope.at("rope_theta");
  config.factor = rope.value("factor", 1.0);
  config.original_max_position_embeddings =
      rope.value("original_max_position_embeddings", golden.at("max_position_embeddings").get<int64_t>());
  config.beta_fast = rope.value("beta_fast", config.beta_fast);
  config.beta_slow = rope.value("beta_slow", config.beta_slow);
  if (rope.contains("attention_factor")) config.attention_factor = rope.at("attention_factor").get<double>();
  if (rope.contains("mscale")) config.mscale = rope.at("mscale").get<double>();
  if (rope.contains("mscale_all_dim")) config.mscale_all_dim = rope.at("mscale_all_dim").get<double>();
  config.truncate = rope.value("truncate", true);
  config.low_freq_factor = rope.value("low_freq_factor", config.low_freq_factor);
  config.high_freq_factor = rope.value("high_freq_factor", config.high_freq_factor);
  config.short_factor = rope.value("short_factor", config.short_factor);
  config.long_factor = rope.value("long_factor", config.long_factor);
  return config;
}

// The golden cases of the kinds that divide the frequencies by one number, or of the others.
std::vector<nlohmann::json> golden_cases(bool scaled) {
  std::vector<nlohmann::json> cases;
  const auto golden = golden_tables();
  for (const auto& one : golden.at("cases")) {
    const RopeKind kind = config_of(one).kind;
    if ((kind != RopeKind::standard && kind != RopeKind::linear) == scaled) cases.push_back(one);
  }
  return cases;
}

void expect_golden_frequencies(const std::vector<nlohmann::json>& cases) {
  for (const auto& one : cases) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    const auto frequencies = rope_frequencies(config_of(one), one.value("seq_len", int64_t{2}));
    const auto expected = one.at("inv_freq").get<std::vector<float>>();
    ASSERT_EQ(frequencies.inv_freq.size(), expected.size());
    EXPECT_EQ(frequencies.attention_factor, one.at("attention_scaling").get<float>());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_LE(std::abs(frequencies.inv_freq[i] - expected[i]),
                std::abs(std::nextafter(expected[i], 2.0f) - expected[i]))
          << "pair " << i << ": " << frequencies.inv_freq[i] << " instead of " << expected[i];
  }
}

// The number of rows that were compared.
int64_t expect_golden_rows(const std::vector<nlohmann::json>& cases) {
  int64_t compared = 0;
  for (const auto& one : cases) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    const RopeConfig config = config_of(one);
    const int64_t half = config.rotary_dim / 2;
    // Rows far out are checked while the table stays small; the base of dynamic NTK follows its length.
    int64_t length = one.value("seq_len", int64_t{0});
    if (length == 0)
      for (const auto& row : one.at("rows")) length = std::max(length, row.at("position").get<int64_t>() + 1);
    if (length * config.rotary_dim > 40'000'000) length = 200'000;
    const Tensor table = make_rope_table(config, length);
    const auto expected_frequencies = one.at("inv_freq").get<std::vector<float>>();
    const auto frequencies = rope_frequencies(config, length).inv_freq;
    for (const auto& row : one.at("rows")) {
      const auto position = row.at("position").get<int64_t>();
      if (position >= length) continue;
      const auto cosines = row.at("cos").get<std::vector<float>>();
      const auto sines = row.at("sin").get<std::vector<float>>();
      ++compared;
      for (int64_t i = 0; i < half; ++i) {
        // A frequency one unit off (above) turns the angle by that times the position, and no more is
        // allowed.
        const double bound =
            3e-7 + static_cast<double>(position) *
                       std::abs(static_cast<double>(frequencies[i]) - expected_frequencies[i]) * 1.5;
        EXPECT_NEAR(table.at<float>({position, i}), cosines[i], bound) << position << " pair " << i;
        EXPECT_NEAR(table.at<float>({position, half + i}), sines[i], bound) << position << " pair " << i;
      }
    }
  }
  return compared;
}

TEST(Task1_6_StandardRopeTable, FrequenciesEqualTransformersToOneUnitInTheLastPlace) {
  const auto cases = golden_cases(false);
  ASSERT_GE(cases.size(), 5u);
  expect_golden_frequencies(cases);
}

TEST(Task1_6_StandardRopeTable, CosinesAndSinesEqualTransformers) {
  EXPECT_GE(expect_golden_rows(golden_cases(false)), 40);
}

TEST(Task1_6_StandardRopeTable, TheAttentionFactorMultipliesCosinesAndSines) {
  const std::vector<float> inv_freq{1.0f, 0.25f};
  float plain[3 * 4], doubled[3 * 4];
  fill_rope_table({.inv_freq = inv_freq}, plain, 0, 3);
  fill_rope_table({.inv_freq = inv_freq, .attention_factor = 2.0f}, doubled, 0, 3);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(doubled[i], 2 * plain[i]) << "value " << i;
  EXPECT_EQ(doubled[0], 2.0f);
}

// A model may give the factor itself, one for each set of divisors; it counts before the others.
TEST(Task1_6_ScaledRopeTable, LongRopesScaleGoesWithItsFactors) {
  RopeConfig config;
  config.kind = RopeKind::longrope;
  config.rotary_dim = 4;
  config.factor = 16;
  config.original_max_position_embeddings = 256;
  config.short_factor = {1, 2};
  config.long_factor = {1, 8};
  EXPECT_EQ(rope_frequencies(config, 256).attention_factor, std::sqrt(1.5f));  // 1 + ln 16 / ln 256
  config.attention_factor = 1.75;
  config.long_mscale = 1.25;
  EXPECT_EQ(rope_frequencies(config, 256).attention_factor, 1.75f);
  EXPECT_EQ(rope_frequencies(config, 257).attention_factor, 1.25f);
  config.short_mscale = 1.5;
  EXPECT_EQ(rope_frequencies(config, 256).attention_factor, 1.5f);
  EXPECT_EQ(rope_frequencies(config, 256).inv_freq[1], 4 * rope_frequencies(config, 257).inv_freq[1]);
  config.long_factor = {1};
  EXPECT_THROW(rope_frequencies(config, 256), Error);
}

TEST(Task1_6_ScaledRopeTable, FrequenciesEqualTransformersToOneUnitInTheLastPlace) {
  const auto cases = golden_cases(true);
  ASSERT_GE(cases.size(), 12u);
  expect_golden_frequencies(cases);
}

TEST(Task1_6_ScaledRopeTable, CosinesAndSinesEqualTransformers) {
  EXPECT_GE(expect_golden_rows(golden_cases(true)), 100);
}

TEST(Task1_6_ScaledRopeTable, DynamicNtkIsFixedByTheTableLength) {
  RopeConfig config{.kind = RopeKind::dynamic_ntk,
                    .rotary_dim = 64,
                    .factor = 2.0,
                    .original_max_position_embeddings = 128};
  // Up to the original length nothing changes; beyond it the whole table does, its early rows included.
  const Tensor plain = make_rope_table({.rotary_dim = 64}, 128);
  EXPECT_TRUE(bitwise_equal(make_rope_table(config, 128), plain));
  EXPECT_FALSE(bitwise_equal(make_rope_table(config, 256).rows(128), plain));
}

TEST(Task1_6_RopeConfig, NamesTheFieldThatMakesNoSense) {
  const RopeConfig good{
      .kind = RopeKind::yarn, .rotary_dim = 8, .factor = 4.0, .original_max_position_embeddings = 64};
  EXPECT_NO_THROW(rope_frequencies(good, 100));
  auto fails = [&](auto&& edit) {
    RopeConfig config = good;
    edit(config);
    EXPECT_THROW(rope_frequencies(config, 100), Error);
  };
  fails([](RopeConfig& c) { c.rotary_dim = 7; });
  fails([](RopeConfig& c) { c.rotary_dim = 0; });
  fails([](RopeConfig& c) { c.theta = 0; });
  fails([](RopeConfig& c) { c.theta = NAN; });
  fails([](RopeConfig& c) { c.factor = 0; });
  fails([](RopeConfig& c) { c.original_max_position_embeddings = 0; });
  fails([](RopeConfig& c) { c.beta_slow = 0; });
  fails([](RopeConfig& c) {
    c.kind = RopeKind::llama3;
    c.high_freq_factor = c.low_freq_factor;
  });
  fails([](RopeConfig& c) {
    c.kind = RopeKind::dynamic_ntk;
    c.rotary_dim = 2;
  });
}

// The rotation in double precision with the table's own cosines and sines.
std::vector<double> rotate_reference(const Tensor& x, const Tensor& positions, const Tensor& table) {
  std::vector<double> values = to_double(x);
  const int64_t half = table.dim(1) / 2, heads = x.dim(1), head_dim = x.dim(2);
  for (int64_t token = 0; token < x.dim(0); ++token)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < half; ++i) {
        double* v = values.data() + (token * heads + head) * head_dim;
        const double c = table.at<float>({positions.at<int32_t>({token}), i});
        const double s = table.at<float>({positions.at<int32_t>({token}), half + i});
        const double first = v[i], second = v[half + i];
        v[i] = first * c - second * s;
        v[half + i] = second * c + first * s;
      }
  return values;
}

Tensor random_positions(Random& random, int64_t tokens, int64_t max_len) {
  Tensor positions = Tensor::empty({tokens}, DType::i32);
  for (int64_t i = 0; i < tokens; ++i)
    positions.at<int32_t>({i}) = static_cast<int32_t>(random.integer(0, max_len - 1));
  return positions;
}

RUNG_TEST(Task1_6_RotaryEmbedding, EqualsDoublePrecisionInsideQkvRows, "rotary_embedding",
          rotary_embedding_variants()) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (auto [head_dim, rotary_dim] :
         {std::pair{2, 2}, {20, 20}, {64, 64}, {80, 80}, {128, 128}, {96, 40}, {33, 6}}) {
      Random random;
      SCOPED_TRACE(random.describe() + " head_dim " + std::to_string(head_dim));
      const int64_t tokens = 13, heads = 6, kv_heads = 2;
      const Tensor table = make_rope_table({.rotary_dim = rotary_dim}, 300);
      const Tensor positions = random_positions(random, tokens, 300);
      Tensor qkv = random.normal({tokens, heads + 2 * kv_heads, head_dim}, dtype);
      const Tensor before = qkv.clone();
      Tensor q = qkv.narrow(1, 0, heads), k = qkv.narrow(1, heads, kv_heads);
      const auto q_expected = rotate_reference(q, positions, table);
      const auto k_expected = rotate_reference(k, positions, table);
      call(rotary_embedding, ctx, positions, q, k, table);
      EXPECT_TRUE(close_to(q, q_expected));
      EXPECT_TRUE(close_to(k, k_expected));
      EXPECT_TRUE(bitwise_equal(qkv.narrow(1, heads + kv_heads, kv_heads),
                                before.narrow(1, heads + kv_heads, kv_heads)));
      EXPECT_TRUE(bitwise_equal(qkv.narrow(2, rotary_dim, head_dim - rotary_dim),
                                before.narrow(2, rotary_dim, head_dim - rotary_dim)));
    }
}

RUNG_TEST(Task1_6_RotaryEmbedding, PairsAreHalfSplitAsInHuggingFaceCheckpoints, "rotary_embedding",
          rotary_embedding_variants()) {
  for (const int64_t half : {2, 16}) {
    Tensor table = Tensor::zeros({1, 2 * half}, DType::f32);  // all pairs turn by 90 degrees
    std::fill_n(table.data<float>() + half, half, 1.0f);
    Tensor q = Tensor::empty({1, 1, 2 * half}, DType::f32);
    std::vector<double> expected;  // of 1, 2, 3, 4: -3, -4, 1, 2; neighbours would give -2, 1, -4, 3
    for (int64_t i = 0; i < 2 * half; ++i) {
      q.at<float>({0, 0, i}) = static_cast<float>(1 + i);
      expected.push_back(static_cast<double>(i < half ? -(1 + i + half) : 1 + i - half));
    }
    const Tensor k = q.clone();
    call(rotary_embedding, ctx, Tensor::zeros({1}, DType::i32), q, k, table);
    EXPECT_EQ(to_double(q), expected);
    EXPECT_EQ(to_double(k), expected);
  }
}

RUNG_TEST(Task1_6_RotaryEmbedding, TheDotProductDependsOnTheDistanceAlone, "rotary_embedding",
          rotary_embedding_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor table = make_rope_table({.rotary_dim = 64}, 1000);
  const Tensor q = random.normal({1, 1, 64}, DType::f32), k = random.normal({1, 1, 64}, DType::f32);
  auto dot_at = [&](const Tensor& key, int32_t q_position, int32_t k_position) {
    Tensor rotated_q = q.clone(), rotated_k = key.clone(), unused = q.clone();
    call(rotary_embedding, ctx, Tensor::from<int32_t>(std::vector{q_position}, {1}), rotated_q, unused,
         table);
    call(rotary_embedding, ctx, Tensor::from<int32_t>(std::vector{k_position}, {1}), rotated_k, unused,
         table);
    double dot = 0;
    for (int64_t i = 0; i < 64; ++i) dot += rotated_q.at<float>({0, 0, i}) * rotated_k.at<float>({0, 0, i});
    return dot;
  };
  EXPECT_NEAR(dot_at(k, 17, 5), dot_at(k, 900, 888), 2e-3);
  // On the distance it does depend: with itself a vector's product is largest where nothing is turned.
  EXPECT_GT(dot_at(q, 17, 17) - dot_at(q, 17, 5), 2e-3);
}

RUNG_TEST(Task1_6_RotaryEmbedding, ARowDoesNotDependOnTheOthersOrOnThreads, "rotary_embedding",
          rotary_embedding_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor table = make_rope_table({.rotary_dim = 72}, 100);
  const Tensor positions = random_positions(random, 80, 100);
  Tensor q = random.normal({80, 4, 72}, DType::f32), k = random.normal({80, 2, 72}, DType::f32);
  const int64_t row = random.integer(0, 79);
  Tensor q_alone = q.narrow(0, row, 1).clone(), k_alone = k.narrow(0, row, 1).clone();
  with_threads(3, [&] { call(rotary_embedding, ctx, positions, q, k, table); });
  call(rotary_embedding, ctx, positions.narrow(0, row, 1), q_alone, k_alone, table);
  EXPECT_TRUE(bitwise_equal(q.narrow(0, row, 1), q_alone));
  EXPECT_TRUE(bitwise_equal(k.narrow(0, row, 1), k_alone));
}

TEST(Task1_6_RotaryEmbedding, APositionOutsideTheTableIsAnError) {
  OpContext ctx;
  const Tensor table = make_rope_table({.rotary_dim = 4}, 10);
  const Tensor q = Tensor::zeros({1, 1, 4}, DType::f32), k = q.clone();
  for (int32_t position : {-1, 10})
    EXPECT_THROW(rotary_embedding(ctx, Tensor::from<int32_t>(std::vector{position}, {1}), q, k, table),
                 Error);
  EXPECT_THROW(
      rotary_embedding(ctx, Tensor::zeros({1}, DType::i32), q, k, make_rope_table({.rotary_dim = 8}, 10)),
      Error);
}

}  // namespace
}  // namespace ladder
