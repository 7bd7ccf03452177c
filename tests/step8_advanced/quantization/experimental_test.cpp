// What is an experiment so far, judged on a whole model: rotations under four bits on both sides, and keys with a scale per channel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "step1_layers/attention/attention.h"
#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/algorithms/hadamard.h"
#include "step8_advanced/quantization/algorithms/kivi.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"
#include "step8_advanced/quantization/quantizer/evaluate.h"
#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

std::filesystem::path tinyworld() {
  return testing::source_folder() / "models" / "tinyworld";
}

std::unique_ptr<Model> load_with(const ModelMakers& makers) {
  ModelOptions options;
  options.dtype = DType::f32;
  options.makers = makers;
  return load_model(OpContext{}, tinyworld(), load_decoder_spec(tinyworld()), options);
}

// KL(bf16's weights || with these makers) x 1000.
double divergence(const ModelMakers& makers, int64_t documents, size_t longest) {
  const Tokenizer tokenizer = Tokenizer::load(tinyworld());
  std::vector<TokenIds> texts =
      read_texts(tinyworld() / "eval" / "text.jsonl", &tokenizer, 3072, false, documents);
  for (TokenIds& ids : texts) ids.resize(std::min(ids.size(), longest));
  const auto model = load_with(makers), base = load_with({});
  const auto clusters = evaluate({}, *model, base.get(), cut_windows(texts, 2048), {});
  return 1000 * estimate(clusters, [](const ClusterSums& sums) { return sums.kl; }).mean;
}

// Weights with a scale per row and inputs with one per token, both of four bits: as they are, or both rotated.
class FourBits final : public LinearMethod {
 public:
  explicit FourBits(bool rotated) : rotated_(rotated), dense_(unquantized_linear_method()) {}

  std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const override {
    return dense_->parameters(shape);
  }
  void process_after_load(const OpContext&, const LinearShape&, std::vector<Tensor>& tensors) const override {
    if (rotated_) HadamardRotation(tensors[0].dim(1), kSeed).rotate(tensors[0]);
    const QuantizationArgs channel{.num_bits = 4, .strategy = ScaleStrategy::channel};
    tensors[0] = dequantize(quantize_weight(tensors[0], channel, "weight"));
  }
  void apply(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& tensors,
             const Tensor& x, const Tensor& out) const override {
    const QuantizationArgs token{.num_bits = 4, .strategy = ScaleStrategy::token, .dynamic = true};
    const Tensor rounded = x.clone();
    const int64_t k = x.dim(1);
    if (rotated_) HadamardRotation(k, kSeed).rotate(rounded);
    for (int64_t row = 0; row < x.dim(0); ++row) {
      float* values = rounded.data<float>() + row * k;
      const std::vector<float> before(values, values + k);
      const float scale = round_activations(before.data(), k, token, 0, values);
      for (int64_t i = 0; i < k; ++i) values[i] *= scale;
    }
    dense_->apply(ctx, shape, tensors, rounded, out);
  }

 private:
  static constexpr uint64_t kSeed = 1;
  bool rotated_;
  std::shared_ptr<const LinearMethod> dense_;
};

double divergence_of_four_bits(bool rotated) {
  ModelMakers makers;
  makers.linear_method = [rotated](const OpContext&, const NamedLinear&) {
    return std::make_shared<const FourBits>(rotated);
  };
  return divergence(makers, 4, 150);
}

TEST(Task8_5_RotatedProducts, WithFourBitsOnBothSidesRotatedIsBelowPlain) {
  const double plain = divergence_of_four_bits(false), rotated = divergence_of_four_bits(true);
  EXPECT_GT(rotated, 0);
  EXPECT_LT(rotated, 0.65 * plain) << rotated << " against " << plain;
}

// Attention over keys and values that were rounded to four bits as soon as there were kKiviGroup of them.
class RoundedCache final : public Attention {
 public:
  RoundedCache(const KvCacheSpec& cache, bool per_channel) : cache_(cache), per_channel_(per_channel) {}
  KvCacheSpec kv_cache_spec() const override { return cache_; }
  void forward(const OpContext& ctx, const QkNormRopeStoreArgs& args, const AttentionMetadata&, double scale,
               const Tensor& out) const override {
    qk_norm_rope_store(ctx, args);
    const int64_t tokens = args.q.dim(0), heads = cache_.num_kv_heads;
    const auto stored = [&](const Tensor& of,
                            int64_t dim) {  // a text's only pass: in the order of its tokens
      return of.view({of.dim(0) * of.dim(1), heads, dim}).rows(tokens).clone();
    };
    const Tensor k = stored(args.cache.k, cache_.k_dim), v = stored(args.cache.v, cache_.v_dim);
    const Tensor rounded_k = k.clone(), rounded_v = v.clone();
    per_channel_ ? round_per_channel(rounded_k) : round_per_token(rounded_k);
    round_per_token(rounded_v);
    for (int64_t begin = 0; begin < tokens; begin += kKiviGroup) {
      const int64_t count = std::min(kKiviGroup, tokens - begin);
      const auto seen = [&](const Tensor& rounded, const Tensor& exact) {
        const Tensor both = exact.rows(begin + count).clone();
        if (begin > 0) both.rows(begin).copy_from(rounded.rows(begin));
        return both;
      };
      causal_attention(ctx, args.q.narrow(0, begin, count), seen(rounded_k, k), seen(rounded_v, v), scale,
                       out.narrow(0, begin, count));
    }
  }

 private:
  KvCacheSpec cache_;
  bool per_channel_;
};

double divergence_of_keys(bool per_channel) {
  ModelMakers makers;
  makers.attention = [per_channel](const OpContext&, int64_t, const KvCacheSpec& cache) {
    return std::make_unique<RoundedCache>(cache, per_channel);
  };
  return divergence(makers, 4, 300);
}

// As many codes and scales in both.
TEST(Task8_6_Kivi, KeysWithAScalePerChannelAreBelowOnesWithAScalePerToken) {
  const double per_token = divergence_of_keys(false), per_channel = divergence_of_keys(true);
  EXPECT_GT(per_channel, 0);
  EXPECT_LT(per_channel, 0.8 * per_token) << per_channel << " against " << per_token;
}

// A channel that is large in every token, alike: it costs the others nothing, and the newest tokens stay.
TEST(Task8_6_Kivi, AChannelThatIsAlwaysLargeCostsTheOthersNothing) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const Tensor keys = random.normal({70, 2, 64}, DType::f32);
  for (int64_t token = 0; token < 70; ++token) keys.data<float>()[token * 128 + 5] += 100;
  const Tensor per_channel = keys.clone(), per_token = keys.clone();
  round_per_channel(per_channel);
  round_per_token(per_token);
  const auto worst = [&](const Tensor& rounded, int64_t first_token, int64_t last_token) {
    double error = 0;
    for (int64_t i = first_token * 128; i < last_token * 128; ++i)
      error = std::max(error, std::abs(double{rounded.data<float>()[i]} - keys.data<float>()[i]));
    return error;
  };
  EXPECT_LT(worst(per_channel, 0, 64), 0.4);  // half of a fifteenth of what 32 normal numbers span
  EXPECT_GT(worst(per_token, 0, 64), 1);
  EXPECT_GT(worst(per_channel, 32, 64), 0);
  EXPECT_EQ(worst(per_channel, 64, 70), 0);
  EXPECT_EQ(worst(per_token, 64, 70), 0);
  EXPECT_THROW(round_per_channel(Tensor::zeros({32, 2, 48}, DType::f32)), Error);
}

}  // namespace
}  // namespace ladder
