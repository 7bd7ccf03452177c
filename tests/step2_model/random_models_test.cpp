// Task 2.4: models of random shape and kind against the reference model. The goldens hold the reference to
// transformers; here the engine is compared with itself on shapes that no golden file has.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "step1_layers/core/parallel.h"
#include "step1_layers/distributed/local_group.h"
#include "tests/support/model_session.h"
#include "tests/support/numerics.h"
#include "tests/support/reference_model.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using nlohmann::json;
using testing::close_to;
using testing::ModelSession;
using testing::NamedTensors;
using testing::Random;
using testing::ReferenceModel;
using testing::TemporaryFolder;
using testing::to_double;
using testing::write_file;
using testing::write_safetensors;

template <class T>
const T& pick(Random& random, const std::vector<T>& choices) {
  return choices[static_cast<size_t>(random.integer(0, static_cast<int64_t>(choices.size()) - 1))];
}

json random_rope(Random& random) {
  const std::vector<json> kinds = {
      {{"rope_type", "default"}},
      {{"rope_type", "linear"}, {"factor", 2.5}},
      {{"rope_type", "dynamic"}, {"factor", 3.0}},
      {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}},
      {{"rope_type", "llama3"},
       {"factor", 8.0},
       {"low_freq_factor", 1.0},
       {"high_freq_factor", 4.0},
       {"original_max_position_embeddings", 16}}};
  json rope = pick(random, kinds);
  rope["rope_theta"] = pick<double>(random, {100.0, 10000.0, 1e6});
  return rope;
}

json random_config(Random& random) {
  const std::string family = pick<std::string>(random, {"Qwen3", "Qwen2", "Llama"});
  const int64_t kv_heads = pick<int64_t>(random, {1, 2, 3, 4});
  const int64_t heads = kv_heads * pick<int64_t>(random, {1, 2, 3, 5, 8});
  json config = {{"architectures", {family + "ForCausalLM"}},
                 {"hidden_size", random.integer(12, 90)},
                 {"intermediate_size", random.integer(1, 130)},
                 {"num_hidden_layers", random.integer(1, 3)},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", kv_heads},
                 {"head_dim", pick<int64_t>(random, {4, 6, 10, 16, 18, 64, 66, 130})},
                 // Logits are compared by their rows: one of a single logit may be as small as it likes.
                 {"vocab_size", random.integer(8, 300)},
                 {"max_position_embeddings", 64},
                 {"rms_norm_eps", pick<double>(random, {1e-6, 1e-2, 0.3})},
                 {"hidden_act", pick<std::string>(random, {"silu", "gelu", "gelu_pytorch_tanh"})},
                 {"tie_word_embeddings", random.integer(0, 1) == 1},
                 {"rope_parameters", random_rope(random)}};
  if (family != "Qwen2") config["attention_bias"] = random.integer(0, 1) == 1;
  if (family == "Llama") config["mlp_bias"] = random.integer(0, 1) == 1;
  return config;
}

NamedTensors random_weights(Random& random, const DecoderSpec& spec) {
  NamedTensors tensors;
  auto add = [&](const std::string& name, const Shape& shape) {
    const bool gains = name.find("norm") != std::string::npos;
    const double deviation =
        shape.ndim() == 2 ? 1.5 / std::sqrt(static_cast<double>(shape[1])) : (gains ? 1.0 : 0.3);
    tensors.emplace_back(name, random.normal(shape, DType::f32, deviation));
  };
  auto add_linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  };
  const int64_t hidden = spec.hidden_size, mlp = spec.intermediate_size;
  const int64_t q = spec.num_heads * spec.head_dim, kv = spec.num_kv_heads * spec.head_dim;
  add("model.embed_tokens.weight", {spec.vocab_size, hidden});
  if (!spec.tie_word_embeddings) add("lm_head.weight", {spec.vocab_size, hidden});
  add("model.norm.weight", {hidden});
  for (int64_t i = 0; i < spec.num_layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    add(layer + "input_layernorm.weight", {hidden});
    add(layer + "post_attention_layernorm.weight", {hidden});
    add_linear(layer + "self_attn.q_proj", q, hidden, spec.qkv_bias);
    add_linear(layer + "self_attn.k_proj", kv, hidden, spec.qkv_bias);
    add_linear(layer + "self_attn.v_proj", kv, hidden, spec.qkv_bias);
    add_linear(layer + "self_attn.o_proj", hidden, q, spec.o_bias);
    if (spec.qk_norm) {
      add(layer + "self_attn.q_norm.weight", {spec.head_dim});
      add(layer + "self_attn.k_norm.weight", {spec.head_dim});
    }
    add_linear(layer + "mlp.gate_proj", mlp, hidden, spec.mlp_bias);
    add_linear(layer + "mlp.up_proj", mlp, hidden, spec.mlp_bias);
    add_linear(layer + "mlp.down_proj", hidden, mlp, spec.mlp_bias);
  }
  return tensors;
}

TEST(Task2_4_RandomModels, EqualTheReference) {
  Random random;
  SCOPED_TRACE(random.describe());
  const int threads = num_threads();
  set_num_threads(1);
  for (int round = 0; round < 40; ++round) {
    TemporaryFolder folder;
    const json config = random_config(random);
    SCOPED_TRACE(config.dump());
    write_file(folder / "config.json", config.dump());
    const DecoderSpec spec = load_decoder_spec(folder.path());
    write_safetensors(folder / "model.safetensors", random_weights(random, spec));

    std::vector<int32_t> ids(static_cast<size_t>(random.integer(1, 40)));
    for (int32_t& id : ids) id = static_cast<int32_t>(random.integer(0, spec.vocab_size - 1));
    std::vector<double> expected;
    for (const auto& row : ReferenceModel(folder.path()).logits(ids))
      expected.insert(expected.end(), row.begin(), row.end());

    auto check = [&](const OpContext& ctx) {
      const auto model = load_model(ctx, folder.path(), spec, {});
      ModelSession session(*model, ctx, /*block_size=*/3);
      const auto logits = to_double(session.step({{0, ids}}));
      EXPECT_TRUE(close_to(logits, expected, spec.vocab_size, 1e-4));
    };
    check({});
    if (spec.num_heads % 2 == 0 && spec.intermediate_size % 2 == 0 &&
        (spec.num_kv_heads == 1 || spec.num_kv_heads % 2 == 0)) {
      SCOPED_TRACE("2 ranks");
      run_ranks(2, [&](int, const ParallelContext& parallel) {
        OpContext ctx;
        ctx.parallel = &parallel;
        check(ctx);
      });
    }
    if (HasFailure()) break;
  }
  set_num_threads(threads);
}

}  // namespace
}  // namespace ladder
