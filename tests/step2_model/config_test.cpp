// Task 2.1: config.json and generation_config.json.
#include "step2_model/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step2_model/model.h"
#include "tests/support/error_of.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryFolder;
using testing::write_file;

Json qwen3() {
  return Json::parse(R"({"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","hidden_size":64,
    "intermediate_size":96,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,
    "vocab_size":1000,"max_position_embeddings":512,"rms_norm_eps":1e-6,"hidden_act":"silu",
    "tie_word_embeddings":true,"rope_theta":1000000,"torch_dtype":"bfloat16","eos_token_id":7})");
}

Json with(Json config, const std::string& key, const Json& value) {
  config[key] = value;
  return config;
}

Json without(Json config, const std::string& key) {
  config.erase(key);
  return config;
}

Json family(const std::string& architecture, const std::string& model_type) {
  Json config = with(with(qwen3(), "architectures", {architecture}), "model_type", model_type);
  config.erase("head_dim");
  return config;
}
Json qwen2() {
  return family("Qwen2ForCausalLM", "qwen2");
}
Json llama() {
  return family("LlamaForCausalLM", "llama");
}

DecoderSpec parse(const Json& config, const std::string& generation = "") {
  return parse_decoder_spec(config.dump(), "config.json", generation, "generation_config.json");
}

// The part of parse that is a task of its own.
RopeConfig parse_rope(const Json& config) {
  return parse_rope_config(ConfigObject(config, "config.json"), config.at("head_dim"),
                           config.at("max_position_embeddings"));
}

std::string error_of(const Json& config, const std::string& generation = "") {
  return error_of([&] { parse(config, generation); });
}

std::string rope_error_of(const Json& config) {
  return error_of([&] { parse_rope(config); });
}

TEST(Task2_1_Config, ReadsQwen3) {
  const DecoderSpec spec = parse(qwen3());
  EXPECT_EQ(spec.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(spec.vocab_size, 1000);
  EXPECT_EQ(spec.hidden_size, 64);
  EXPECT_EQ(spec.intermediate_size, 96);
  EXPECT_EQ(spec.num_layers, 3);
  EXPECT_EQ(spec.num_heads, 4);
  EXPECT_EQ(spec.num_kv_heads, 2);
  EXPECT_EQ(spec.head_dim, 32);  // not hidden_size / heads
  EXPECT_EQ(spec.max_position_embeddings, 512);
  EXPECT_DOUBLE_EQ(spec.norm_eps, 1e-6);
  EXPECT_TRUE(spec.tie_word_embeddings);
  EXPECT_TRUE(spec.qk_norm);
  EXPECT_FALSE(spec.qkv_bias || spec.o_bias || spec.mlp_bias);
  EXPECT_EQ(spec.activation, MlpActivation::silu);
  EXPECT_EQ(spec.rope.kind, RopeKind::standard);
  EXPECT_DOUBLE_EQ(spec.rope.theta, 1e6);
  EXPECT_EQ(spec.rope.rotary_dim, 32);
  EXPECT_EQ(spec.checkpoint_dtype, DType::bf16);
  EXPECT_THAT(spec.eos_token_ids, ElementsAre(7));
  EXPECT_EQ(spec.bos_token_id, -1);
}

TEST(Task2_1_Config, FamiliesDifferInBiasesAndDefaults) {
  EXPECT_TRUE(parse(qwen2()).qkv_bias);
  EXPECT_FALSE(parse(qwen2()).o_bias);
  EXPECT_FALSE(parse(qwen2()).qk_norm);
  // Qwen2's bias is not the config's to say.
  EXPECT_TRUE(parse(with(qwen2(), "attention_bias", false)).qkv_bias);
  EXPECT_FALSE(parse(with(qwen2(), "attention_bias", true)).o_bias);

  const DecoderSpec biased = parse(with(with(llama(), "attention_bias", true), "mlp_bias", true));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
  EXPECT_FALSE(parse(llama()).qkv_bias || parse(llama()).o_bias || parse(llama()).mlp_bias);
  EXPECT_TRUE(parse(with(qwen3(), "attention_bias", true)).o_bias);

  EXPECT_EQ(parse(llama()).head_dim, 16);
  EXPECT_EQ(parse(with(llama(), "head_dim", nullptr)).head_dim, 16);
  EXPECT_EQ(parse(with(llama(), "head_dim", 20)).head_dim, 20);
  EXPECT_EQ(parse(qwen2()).head_dim, 16);
  EXPECT_EQ(parse(without(qwen3(), "head_dim")).head_dim, 128);

  EXPECT_EQ(parse(without(llama(), "num_key_value_heads")).num_kv_heads, 4);
  EXPECT_EQ(parse(with(qwen2(), "num_key_value_heads", nullptr)).num_kv_heads, 4);

  for (const Json& config : {qwen2(), llama(), qwen3()}) {
    EXPECT_FALSE(parse(without(config, "tie_word_embeddings")).tie_word_embeddings);
    EXPECT_DOUBLE_EQ(parse(without(config, "rope_theta")).rope.theta, 10000.0);
    EXPECT_DOUBLE_EQ(parse(without(config, "rms_norm_eps")).norm_eps, 1e-6);
  }
}

TEST(Task2_1_Config, TakesTheModelTypeWhereNoArchitectureIsNamed) {
  EXPECT_EQ(parse(without(llama(), "architectures")).architecture, "LlamaForCausalLM");
  EXPECT_EQ(parse(without(qwen2(), "model_type")).architecture, "Qwen2ForCausalLM");
}

TEST(Task2_1_Config, ReadsTheNewerKeys) {
  Json config = without(without(qwen3(), "rope_theta"), "torch_dtype");
  config["dtype"] = "float16";
  config["rope_parameters"] = {{"rope_theta", 5e5}, {"rope_type", "default"}};
  EXPECT_EQ(parse(config).checkpoint_dtype, DType::f16);
  EXPECT_DOUBLE_EQ(parse(config).rope.theta, 5e5);
  EXPECT_EQ(parse(config).rope.kind, RopeKind::standard);
}

TEST(Task2_1_Rope, ReadsEveryKindUnderBothNames) {
  struct Case {
    Json rope;
    RopeKind kind;
  };
  const Json llama3 = {{"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 128}};
  for (const char* type_key : {"rope_type", "type"}) {
    const Case cases[] = {
        {{{type_key, "default"}}, RopeKind::standard},
        {{{type_key, "linear"}, {"factor", 2}}, RopeKind::linear},
        {{{type_key, "dynamic"}, {"factor", 2.5}}, RopeKind::dynamic_ntk},
        {{{type_key, "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}}, RopeKind::yarn},
        {with(llama3, type_key, "llama3"), RopeKind::llama3}};
    for (const Case& one : cases) {
      SCOPED_TRACE(one.rope.dump());
      const RopeConfig older = parse_rope(with(qwen3(), "rope_scaling", one.rope));
      EXPECT_EQ(older.kind, one.kind);
      EXPECT_DOUBLE_EQ(older.theta, 1e6);
      const RopeConfig newer = parse_rope(
          with(without(qwen3(), "rope_theta"), "rope_parameters", with(one.rope, "rope_theta", 123456)));
      EXPECT_EQ(newer.kind, one.kind);
      EXPECT_DOUBLE_EQ(newer.theta, 123456.0);
      if (one.kind != RopeKind::standard) {
        EXPECT_EQ(newer.factor, one.rope["factor"].get<double>());
      }
      if (one.kind == RopeKind::yarn || one.kind == RopeKind::llama3) {
        EXPECT_EQ(older.original_max_position_embeddings, 128);
      } else if (one.kind == RopeKind::dynamic_ntk) {
        EXPECT_EQ(older.original_max_position_embeddings, 512);
      }
    }
  }
}

TEST(Task2_1_Rope, WhereTwoKeysSayTheSameOneCounts) {
  Json config = with(qwen3(), "rope_scaling",
                     {{"rope_type", "yarn"},
                      {"type", "linear"},
                      {"factor", 4.0},
                      {"rope_theta", 5000},
                      {"original_max_position_embeddings", 64}});
  config["rope_parameters"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  config["original_max_position_embeddings"] = 128;
  const RopeConfig rope = parse_rope(config);
  EXPECT_EQ(rope.kind, RopeKind::yarn);
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_DOUBLE_EQ(rope.theta, 5000);                     // not the one beside, 1e6
  EXPECT_EQ(rope.original_max_position_embeddings, 128);  // but here the one beside
}

TEST(Task2_1_Rope, ReadsYarnsOptions) {
  Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  RopeConfig rope = parse_rope(with(qwen3(), "rope_scaling", yarn));
  EXPECT_EQ(rope.original_max_position_embeddings, 512);  // absent: max_position_embeddings
  EXPECT_EQ(rope.beta_fast, 32);
  EXPECT_EQ(rope.beta_slow, 1);
  EXPECT_FALSE(rope.attention_factor || rope.mscale || rope.mscale_all_dim);
  EXPECT_TRUE(rope.truncate);

  yarn["attention_factor"] = 1.25;
  yarn["beta_fast"] = 16;
  yarn["beta_slow"] = 2;
  yarn["mscale"] = 0.707;
  yarn["mscale_all_dim"] = 1.0;
  yarn["truncate"] = false;
  yarn["original_max_position_embeddings"] = 64;
  rope = parse_rope(with(qwen3(), "rope_scaling", yarn));
  EXPECT_EQ(rope.attention_factor, 1.25);
  EXPECT_EQ(rope.beta_fast, 16);
  EXPECT_EQ(rope.beta_slow, 2);
  EXPECT_EQ(rope.mscale, 0.707);
  EXPECT_EQ(rope.mscale_all_dim, 1.0);
  EXPECT_FALSE(rope.truncate);
  EXPECT_EQ(rope.original_max_position_embeddings, 64);

  yarn.erase("factor");
  EXPECT_EQ(parse_rope(with(qwen3(), "rope_scaling", yarn)).factor, 8.0);  // 512 / 64
}

TEST(Task2_1_Rope, ReadsLongRopesFactors) {
  std::vector<double> fast(16, 1.25), slow(16, 3.0);
  slow[7] = 40;
  Json longrope = {{"type", "longrope"},
                   {"short_factor", fast},
                   {"long_factor", slow},
                   {"original_max_position_embeddings", 64}};
  RopeConfig rope = parse_rope(with(qwen3(), "rope_scaling", longrope));
  EXPECT_EQ(rope.kind, RopeKind::longrope);
  EXPECT_EQ(rope.short_factor, fast);
  EXPECT_EQ(rope.long_factor, slow);
  EXPECT_EQ(rope.original_max_position_embeddings, 64);
  EXPECT_EQ(rope.factor, 8.0);  // 512 / 64
  EXPECT_FALSE(rope.attention_factor || rope.short_mscale || rope.long_mscale);
  longrope["factor"] = 3.0;
  longrope["attention_factor"] = 1.5;
  longrope["short_mscale"] = 1.1;
  longrope["long_mscale"] = 1.2;
  rope = parse_rope(with(qwen3(), "rope_scaling", longrope));
  EXPECT_EQ(rope.factor, 3.0);
  EXPECT_EQ(rope.attention_factor, 1.5);
  EXPECT_EQ(rope.short_mscale, 1.1);
  EXPECT_EQ(rope.long_mscale, 1.2);
}

TEST(Task2_1_Config, EndTokensComeFromGenerationConfigFirst) {
  EXPECT_THAT(parse(qwen3(), R"({"eos_token_id":9})").eos_token_ids, ElementsAre(9));
  EXPECT_THAT(parse(qwen3(), R"({"eos_token_id":[9,8,9]})").eos_token_ids, ElementsAre(9, 8));
  EXPECT_THAT(parse(qwen3(), R"({"temperature":0.6})").eos_token_ids, ElementsAre(7));
  EXPECT_THAT(parse(qwen3(), R"({"eos_token_id":null})").eos_token_ids, ElementsAre(7));
  EXPECT_THAT(parse(with(qwen3(), "eos_token_id", {3, 4})).eos_token_ids, ElementsAre(3, 4));
  EXPECT_THAT(parse(with(qwen3(), "eos_token_id", nullptr)).eos_token_ids, IsEmpty());
  EXPECT_THAT(parse(without(qwen3(), "eos_token_id")).eos_token_ids, IsEmpty());
  // Beyond the vocabulary: can never be produced.
  EXPECT_THAT(parse(with(qwen3(), "eos_token_id", 151645)).eos_token_ids, IsEmpty());
  EXPECT_EQ(parse(with(qwen3(), "bos_token_id", 5)).bos_token_id, 5);
  EXPECT_EQ(parse(with(qwen3(), "bos_token_id", 151643)).bos_token_id, -1);
  DecoderSpec spec = parse(with(qwen3(), "eos_token_id", {3, 4}));
  for (const int64_t id : {int64_t{6}, int64_t{3}, spec.vocab_size, int64_t{-1}}) spec.add_eos_token(id);
  EXPECT_THAT(spec.eos_token_ids, ElementsAre(3, 4, 6));
}

TEST(Task2_1_Config, RefusesValuesThatMakeNoSense) {
  struct Case {
    Json config;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {with(qwen3(), "num_attention_heads", 0), "num_attention_heads"},
      {with(qwen3(), "num_attention_heads", -4), "num_attention_heads"},
      {with(qwen3(), "num_attention_heads", 4.0), "num_attention_heads"},
      {with(qwen3(), "num_attention_heads", "4"), "num_attention_heads"},
      {with(qwen3(), "num_attention_heads", nullptr), "num_attention_heads"},
      {with(qwen3(), "num_key_value_heads", 3), "num_key_value_heads"},
      {with(qwen3(), "num_key_value_heads", 8), "num_key_value_heads"},
      {with(qwen3(), "num_key_value_heads", 0), "num_key_value_heads"},
      {without(qwen2(), "num_key_value_heads"), "num_key_value_heads"},
      {with(llama(), "hidden_size", 66), "hidden_size"},
      {with(llama(), "hidden_size", 60), "head_dim"},
      {with(llama(), "hidden_size", 1 << 19), "head_dim"},
      {with(qwen3(), "head_dim", 31), "head_dim"},
      {with(qwen3(), "head_dim", 0), "head_dim"},
      {with(qwen3(), "head_dim", -2), "head_dim"},
      {with(qwen3(), "hidden_size", 0), "hidden_size"},
      {with(qwen3(), "hidden_size", int64_t{1} << 40), "hidden_size"},
      {with(qwen3(), "hidden_size", uint64_t{1} << 63), "hidden_size"},
      {with(qwen3(), "hidden_size", 1e30), "hidden_size"},
      {without(qwen3(), "vocab_size"), "vocab_size"},
      {with(qwen3(), "vocab_size", -1), "vocab_size"},
      {with(qwen3(), "intermediate_size", 0), "intermediate_size"},
      {with(qwen3(), "num_hidden_layers", 0), "num_hidden_layers"},
      {with(qwen3(), "num_hidden_layers", 100000), "num_hidden_layers"},
      {with(qwen3(), "max_position_embeddings", 0), "max_position_embeddings"},
      {with(qwen3(), "rms_norm_eps", -1e-6), "rms_norm_eps"},
      {with(qwen3(), "rms_norm_eps", "small"), "rms_norm_eps"},
      {with(qwen3(), "rms_norm_eps", 3), "rms_norm_eps"},
      {with(qwen3(), "tie_word_embeddings", 1), "tie_word_embeddings"},
      {with(qwen3(), "hidden_act", "relu"), "hidden_act"},
      {with(qwen3(), "torch_dtype", "int8"), "torch_dtype"},
      {with(qwen3(), "rope_theta", 0), "rope_theta"},
      {with(qwen3(), "rope_theta", -1.0), "rope_theta"},
      {with(qwen3(), "rope_theta", 1.0), "rope_theta"},
      {with(qwen3(), "eos_token_id", -1), "eos_token_id"},
      {with(qwen3(), "eos_token_id", {1, "2"}), "eos_token_id"},
      {with(qwen3(), "architectures", {"GPT2LMHeadModel"}), "GPT2LMHeadModel"},
      {with(qwen3(), "architectures", "Qwen3ForCausalLM"), "architectures"},
      {with(qwen3(), "architectures", {1}), "architectures"},
      {with(qwen3(), "model_type", "llama"), "model_type"},
      {without(without(qwen3(), "architectures"), "model_type"), "architectures"},
      {with(without(qwen3(), "architectures"), "model_type", "bert"), "bert"},
      {Json::array(), "config.json"},
      {Json(3), "config.json"}};
  for (const Case& one : cases) {
    const std::string error = error_of(one.config);
    EXPECT_THAT(error, HasSubstr(one.expected)) << one.config.dump();
    EXPECT_EQ(error.find("config.json"), 0u) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  EXPECT_THAT(error_of(qwen3(), R"({"eos_token_id":"x"})"),
              HasSubstr("generation_config.json: eos_token_id"));
  EXPECT_THAT(error_of(qwen3(), "[]"), HasSubstr("generation_config.json"));
  EXPECT_THAT(error_of(qwen3(), "{"), HasSubstr("generation_config.json"));
}

TEST(Task2_1_Rope, RefusesWhatMakesNoSense) {
  struct Case {
    Json rope;
    const char* expected;
  };
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 128}};
  const Json list = std::vector<double>(16, 1.5);
  Json zero = list;
  zero[3] = 0;
  const std::vector<Case> cases = {
      {{{"rope_type", "proportional"}}, "rope_type"},
      {{{"rope_type", "longrope"}, {"long_factor", list}}, "short_factor"},
      {{{"rope_type", "longrope"}, {"short_factor", list}}, "long_factor"},
      {{{"rope_type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", list}}, "short_factor"},
      {{{"rope_type", "longrope"}, {"short_factor", list}, {"long_factor", 2}}, "long_factor"},
      {{{"rope_type", "longrope"}, {"short_factor", list}, {"long_factor", zero}}, "long_factor"},
      {{{"rope_type", "longrope"}, {"short_factor", list}, {"long_factor", list}, {"long_mscale", 0}},
       "long_mscale"},
      {{{"type", "mrope"}}, "rope_type"},
      {{{"rope_type", 3}}, "rope_type"},
      {{{"rope_type", "default"}, {"mrope_section", {1, 2}}}, "mrope_section"},
      {{{"rope_type", "linear"}}, "factor"},
      {{{"rope_type", "linear"}, {"factor", 0}}, "factor"},
      {{{"rope_type", "linear"}, {"factor", 0.5}}, "factor"},
      {{{"rope_type", "dynamic"}, {"factor", "2"}}, "factor"},
      {{{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 0}},
       "original_max_position_embeddings"},
      {{{"rope_type", "yarn"}, {"factor", 4}, {"attention_factor", -1}}, "attention_factor"},
      {{{"rope_type", "yarn"}, {"factor", 4}, {"beta_fast", 1}, {"beta_slow", 2}}, "beta_fast"},
      {{{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}, "partial_rotary_factor"},
      {without(llama3, "low_freq_factor"), "low_freq_factor"},
      {without(llama3, "high_freq_factor"), "high_freq_factor"},
      {with(llama3, "high_freq_factor", 1.0), "high_freq_factor"},
      {{{"full_attention", {{"rope_type", "default"}}}}, "full_attention"},
      {Json::array({1}), "rope_"}};
  for (const Case& one : cases) {
    EXPECT_THAT(rope_error_of(with(qwen3(), "rope_scaling", one.rope)), HasSubstr(one.expected))
        << one.rope.dump();
    if (one.rope.is_object()) {
      EXPECT_THAT(rope_error_of(with(qwen3(), "rope_parameters", one.rope)), HasSubstr(one.expected))
          << one.rope.dump();
    }
  }
}

TEST(Task2_1_Config, RefusesKeysThatChangeTheMathematics) {
  const std::vector<std::pair<std::string, Json>> keys = {
      {"attn_logit_softcapping", 50.0},
      {"final_logit_softcapping", 30.0},
      {"query_pre_attn_scalar", 256},
      {"embedding_multiplier", 12.0},
      {"residual_multiplier", 0.22},
      {"logits_scaling", 8.0},
      {"attention_multiplier", 0.0078125},
      {"clip_qkv", 8.0},
      {"num_local_experts", 8},
      {"is_encoder_decoder", true},
      {"pruned_heads", {{"1", {0}}}},
      {"layer_types", {"full_attention", "sliding_attention", "full_attention"}},
      {"layer_types", {"full_attention"}},
      {"partial_rotary_factor", 0.25}};
  for (const auto& [key, value] : keys)
    EXPECT_THAT(error_of(with(qwen3(), key, value)), HasSubstr("config.json: " + key)) << value.dump();
  Json window = with(with(qwen3(), "use_sliding_window", true), "sliding_window", 128);
  window["max_window_layers"] = 2;
  EXPECT_THAT(error_of(window), HasSubstr("use_sliding_window"));
  window["max_window_layers"] = 3;  // begins after the last layer: no layer has a window
  EXPECT_EQ(error_of(window), "no error");
}

// Whether there is a linear method for it, load_model says (Task2_4_ModelMakers).
TEST(Task2_1_Config, KeepsTheQuantizationConfig) {
  EXPECT_EQ(parse(qwen3()).quantization_config, "");
  for (const char* key : {"quantization_config", "compression_config"}) {
    const Json quantized = {{"quant_method", "fp8"}};
    EXPECT_EQ(parse(with(qwen3(), key, quantized)).quantization_config, quantized.dump());
    for (const Json& none : {Json(nullptr), Json(false), Json::object()})
      EXPECT_EQ(parse(with(qwen3(), key, none)).quantization_config, "");
    EXPECT_THAT(error_of(with(qwen3(), key, "fp8")), HasSubstr(std::string("config.json: ") + key));
    const std::string in_order = R"({"z":{},"a":{"y":1,"b":2}})";
    std::string text = with(qwen3(), key, "here").dump();
    text.replace(text.find("\"here\""), 6, in_order);
    EXPECT_EQ(parse_decoder_spec(text, "config.json", "", "generation_config.json").quantization_config,
              in_order);
  }
}

// As transformers' Qwen2Config and Qwen3Config read the keys.
TEST(Task2_1_Config, AnAbsentSlidingWindowIsAWindow) {
  Json window = with(with(qwen3(), "use_sliding_window", true), "max_window_layers", 2);
  window["max_position_embeddings"] = 4097;
  EXPECT_THAT(error_of(window), HasSubstr("use_sliding_window"));  // of 4096 tokens
  EXPECT_EQ(error_of(with(window, "max_position_embeddings", 4096)), "no error");
  EXPECT_EQ(error_of(with(window, "sliding_window", nullptr)), "no error");
  EXPECT_EQ(error_of(with(window, "max_window_layers", 3)), "no error");
  window.erase("max_window_layers");  // 28, and there are 3 layers
  EXPECT_EQ(error_of(window), "no error");
  EXPECT_THAT(error_of(with(window, "num_hidden_layers", 29)), HasSubstr("use_sliding_window"));
  // layer_types counts more than both.
  window["max_window_layers"] = 0;
  window["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(error_of(window), "no error");
  window["layer_types"][2] = "sliding_attention";
  EXPECT_THAT(error_of(window), HasSubstr("layer_types"));
}

// It hides nothing from a text that fits into it. With another rotary embedding texts may be longer.
TEST(Task2_1_Config, AWindowOfTheLongestTextIsFullAttention) {
  Json window = with(with(qwen3(), "use_sliding_window", true), "max_window_layers", 0);  // 512 positions
  EXPECT_THAT(error_of(with(window, "sliding_window", 511)), HasSubstr("use_sliding_window"));
  window["sliding_window"] = 512;
  EXPECT_EQ(error_of(window), "no error");
  EXPECT_EQ(error_of(with(window, "rope_parameters", {{"rope_type", "default"}})), "no error");
  const Json dynamic = {{"factor", 2.0}, {"rope_type", "dynamic"}};
  for (const char* key : {"rope_scaling", "rope_parameters"})
    EXPECT_THAT(error_of(with(window, key, dynamic)), HasSubstr("use_sliding_window")) << key;
  const Json older = {{"factor", 2.0}, {"type", "linear"}};
  EXPECT_THAT(error_of(with(window, "rope_scaling", older)), HasSubstr("use_sliding_window"));
}

// The config.json of Llama-2-7b as it was published first: no theta, no head_dim, a null rope_scaling.
TEST(Task2_1_Config, ReadsLlama2) {
  const DecoderSpec spec = parse(Json::parse(R"({"_name_or_path":"meta-llama/Llama-2-7b-hf",
    "architectures":["LlamaForCausalLM"],"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,
    "initializer_range":0.02,"intermediate_size":11008,"max_position_embeddings":4096,"model_type":"llama",
    "num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":32,"pretraining_tp":1,
    "rms_norm_eps":1e-05,"rope_scaling":null,"tie_word_embeddings":false,"torch_dtype":"float16",
    "transformers_version":"4.31.0.dev0","use_cache":true,"vocab_size":32000})"));
  EXPECT_EQ(spec.num_kv_heads, 32);
  EXPECT_EQ(spec.head_dim, 128);
  EXPECT_EQ(spec.norm_eps, 1e-5);
  EXPECT_EQ(spec.rope.kind, RopeKind::standard);
  EXPECT_EQ(spec.rope.theta, 10000.0);
  EXPECT_EQ(spec.checkpoint_dtype, DType::f16);
  EXPECT_FALSE(spec.qkv_bias || spec.o_bias || spec.mlp_bias || spec.qk_norm || spec.tie_word_embeddings);
  EXPECT_EQ(spec.num_parameters(), 6738415616);  // "7B"
}

TEST(Task2_1_Config, IgnoresWhatIsHarmless) {
  Json config = qwen3();
  config.update(Json::parse(R"({"attention_dropout":0.1,"use_cache":false,"initializer_range":0.02,
    "use_sliding_window":false,"sliding_window":4096,"max_window_layers":1,"pretraining_tp":1,"auto_map":{},
    "transformers_version":"4.51.0","quantization_config":null,"final_logit_softcapping":null,"rope_scaling":null,
    "embedding_multiplier":1.0,"layer_types":["full_attention","full_attention","full_attention"],
    "partial_rotary_factor":1.0,"some_key_of_tomorrow":{"a":[1]},"is_encoder_decoder":false})"));
  EXPECT_EQ(error_of(config), "no error");
}

TEST(Task2_1_Config, RefusesHostileJson) {
  auto error_of_text = [](const std::string& text) {
    try {
      parse_decoder_spec(text, "config.json", "", "");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of_text(""), HasSubstr("config.json"));
  EXPECT_THAT(error_of_text(std::string(1000000, '[')), HasSubstr("config.json"));
  std::string text = qwen3().dump();
  text.insert(1, "\"hidden_size\":32,");
  EXPECT_THAT(error_of_text(text), HasSubstr("hidden_size"));
  EXPECT_THAT(error_of_text(R"({"rms_norm_eps":NaN})"), HasSubstr("config.json"));
  EXPECT_THAT(error_of_text(R"({"rms_norm_eps":1e999})"), HasSubstr("config.json"));
}

TEST(Task2_1_Config, ReadsAFolder) {
  TemporaryFolder folder;
  auto error = [&](const std::filesystem::path& path) {
    try {
      load_decoder_spec(path);
    } catch (const Error& failure) {
      return std::string(failure.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error(folder / "x"), HasSubstr((folder / "x").string()));
  EXPECT_THAT(error(folder.path()), HasSubstr("config.json"));
  write_file(folder / "config.json", qwen3().dump());
  EXPECT_THAT(load_decoder_spec(folder.path()).eos_token_ids, ElementsAre(7));
  write_file(folder / "generation_config.json", R"({"eos_token_id":[1,2]})");
  EXPECT_THAT(load_decoder_spec(folder.path()).eos_token_ids, ElementsAre(1, 2));
}

// The published sizes, so that a parameter that is forgotten or counted twice shows.
TEST(Task2_1_Config, CountsTheParametersOfPublishedModels) {
  const std::filesystem::path models = testing::source_folder() / "models";
  const std::pair<const char*, int64_t> published[] = {
      {"qwen3-0.6b", 596049920},    {"qwen3-1.7b", 1720574976},     {"qwen3-4b", 4022468096},
      {"qwen3-8b", 8190735360},     {"qwen2.5-0.5b", 494032768},    {"llama-3.2-1b", 1235814400},
      {"llama-3.1-8b", 8030261248}, {"qwen3-30b-a3b", 30532122624}, {"mixtral-8x7b", 46702792704},
      {"opt-125m", 125239296},      {"phi-3.5-moe", 41873153344},   {"qwen3-32b", 32762123264},
  };
  for (const auto& [name, parameters] : published)
    EXPECT_EQ(load_decoder_spec(models / name).num_parameters(), parameters) << name;
  // "A3B"; and what the authors of the other two call 13B and 6.6B.
  EXPECT_EQ(load_decoder_spec(models / "qwen3-30b-a3b").num_active_parameters(), 3353032704);
  EXPECT_EQ(load_decoder_spec(models / "mixtral-8x7b").num_active_parameters(), 12879925248);
  EXPECT_EQ(load_decoder_spec(models / "phi-3.5-moe").num_active_parameters(), 6640999744);
  EXPECT_EQ(load_decoder_spec(models / "qwen3-8b").num_active_parameters(), 8190735360);
}

Json opt() {
  return Json::parse(R"({"architectures":["OPTForCausalLM"],"model_type":"opt","hidden_size":64,"ffn_dim":96,
    "num_hidden_layers":3,"num_attention_heads":4,"vocab_size":1000,"max_position_embeddings":512,
    "torch_dtype":"float16","eos_token_id":2})");
}

TEST(Task2_1_Config, ReadsOpt) {
  const DecoderSpec spec = parse(opt());  // and what it does not say
  EXPECT_EQ(spec.intermediate_size, 96);
  EXPECT_EQ(spec.activation, MlpActivation::relu);
  EXPECT_EQ(spec.norm, NormKind::layer_norm);
  EXPECT_EQ(spec.norm_eps, 1e-5);
  EXPECT_EQ(spec.num_kv_heads, 4);
  EXPECT_EQ(spec.head_dim, 16);
  EXPECT_EQ(spec.rope.kind, RopeKind::none);
  EXPECT_EQ(spec.position_offset, 2);
  EXPECT_EQ(spec.embedding_size, 0);
  EXPECT_TRUE(spec.qkv_bias && spec.o_bias && spec.mlp_bias && spec.tie_word_embeddings);
  EXPECT_TRUE(spec.final_norm && spec.learned_positions && !spec.post_norm && !spec.gated_mlp);

  Json other = with(with(opt(), "do_layer_norm_before", false), "word_embed_proj_dim", 24);
  const DecoderSpec post = parse(with(other, "activation_function", "gelu"));
  EXPECT_TRUE(post.post_norm && !post.final_norm);
  EXPECT_EQ(post.embedding_size, 24);
  EXPECT_EQ(post.activation, MlpActivation::gelu);
  EXPECT_FALSE(parse(with(opt(), "_remove_final_layer_norm", true)).final_norm);
  EXPECT_FALSE(parse(with(opt(), "enable_bias", false)).mlp_bias);

  EXPECT_THAT(error_of(without(opt(), "ffn_dim")), HasSubstr("ffn_dim"));
  EXPECT_THAT(error_of(with(opt(), "activation_function", "silu")), HasSubstr("activation_function"));
  EXPECT_THAT(error_of(with(opt(), "layer_norm_elementwise_affine", false)),
              HasSubstr("layer_norm_elementwise_affine"));
  EXPECT_THAT(error_of(with(opt(), "word_embed_proj_dim", 0)), HasSubstr("word_embed_proj_dim"));
  EXPECT_THAT(error_of(with(qwen3(), "hidden_act", "relu")), HasSubstr("hidden_act"));
}

Json qwen3_moe() {
  Json config = with(with(qwen3(), "architectures", {"Qwen3MoeForCausalLM"}), "model_type", "qwen3_moe");
  return with(with(config, "num_experts", 6), "moe_intermediate_size", 40);
}

TEST(Task2_7_Config, ReadsTheExpertsOfEveryFamily) {
  const Json qwen = with(with(qwen3_moe(), "num_experts_per_tok", 3), "num_hidden_layers", 6);
  const DecoderSpec spec = parse(qwen);
  EXPECT_EQ(spec.experts.num_experts, 6);
  EXPECT_EQ(spec.experts.intermediate_size, 40);
  EXPECT_EQ(spec.experts.rule.top_k, 3);
  EXPECT_FALSE(spec.experts.rule.normalize);  // where the file does not say it
  EXPECT_TRUE(parse(with(qwen, "norm_topk_prob", true)).experts.rule.normalize);
  EXPECT_EQ(spec.experts.shared_intermediate_size, 0);
  EXPECT_EQ(spec.num_expert_layers(), 6);
  // The name that transformers 5 gives the number of experts.
  EXPECT_EQ(parse(with(without(qwen, "num_experts"), "num_local_experts", 5)).experts.num_experts, 5);
  const Json some = with(with(qwen, "decoder_sparse_step", 2), "mlp_only_layers", {0, 3});
  EXPECT_THAT(parse(some).experts.layers, ElementsAre(false, true, false, false, false, true));

  Json shared = with(with(qwen, "architectures", {"Qwen2MoeForCausalLM"}), "model_type", "qwen2_moe");
  shared["shared_expert_intermediate_size"] = 72;
  EXPECT_EQ(parse(shared).experts.shared_intermediate_size, 72);
  EXPECT_TRUE(parse(shared).qkv_bias);
  EXPECT_FALSE(parse(shared).qk_norm);

  Json mixtral = without(with(with(qwen, "architectures", {"MixtralForCausalLM"}), "model_type", "mixtral"),
                         "num_experts");
  mixtral["num_local_experts"] = 4;
  EXPECT_EQ(parse(mixtral).experts.num_experts, 4);
  EXPECT_EQ(parse(mixtral).experts.intermediate_size, 96);
  EXPECT_TRUE(parse(mixtral).experts.rule.normalize);
}

// The sizes of Phi-3.5-MoE-instruct, whose authors speak of 41.9 billion parameters, 6.6 of them active.
Json phimoe() {
  const std::vector<double> factors(64, 1.5);
  return {{"architectures", {"PhiMoEForCausalLM"}},
          {"model_type", "phimoe"},
          {"vocab_size", 32064},
          {"hidden_size", 4096},
          {"intermediate_size", 6400},
          {"num_hidden_layers", 32},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"num_local_experts", 16},
          {"num_experts_per_tok", 2},
          {"router_jitter_noise", 0.02},
          {"max_position_embeddings", 131072},
          {"original_max_position_embeddings", 4096},
          {"sliding_window", 131072},
          {"attention_bias", true},
          {"lm_head_bias", true},
          {"torch_dtype", "bfloat16"},
          {"rope_scaling",
           {{"type", "longrope"},
            {"short_factor", factors},
            {"long_factor", factors},
            {"original_max_position_embeddings", 4096}}}};
}

TEST(Task2_7_Config, ReadsPhiMoe) {
  const DecoderSpec spec = parse(phimoe());
  EXPECT_EQ(spec.num_parameters(), 41873153344);
  EXPECT_EQ(spec.num_active_parameters() / 100'000'000, 66);
  EXPECT_EQ(spec.norm, NormKind::layer_norm);
  EXPECT_EQ(spec.norm_eps, 1e-5);  // where the file does not say it
  EXPECT_TRUE(spec.qkv_bias && spec.o_bias && spec.lm_head_bias);
  EXPECT_EQ(spec.experts.rule.score, RouterScore::sparsemixer);
  EXPECT_EQ(spec.experts.rule.jitter, 0.02);
  EXPECT_EQ(spec.rope.kind, RopeKind::longrope);
  EXPECT_EQ(parse(with(phimoe(), "architectures", {"PhimoeForCausalLM"})).norm, NormKind::layer_norm);
  const DecoderSpec plain = parse(without(without(phimoe(), "attention_bias"), "lm_head_bias"));
  EXPECT_FALSE(plain.qkv_bias || plain.o_bias || plain.lm_head_bias);
  EXPECT_THAT(error_of(with(phimoe(), "num_experts_per_tok", 3)), HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(error_of(with(phimoe(), "num_local_experts", 1)), HasSubstr("num_local_experts"));
  EXPECT_THAT(error_of(with(phimoe(), "router_jitter_noise", -1)), HasSubstr("router_jitter_noise"));
  EXPECT_THAT(error_of(with(phimoe(), "sliding_window", 2048)), HasSubstr("sliding_window"));
  EXPECT_THAT(error_of(with(phimoe(), "tie_word_embeddings", true)), HasSubstr("lm_head_bias"));
}

TEST(Task2_7_Config, RefusesExpertsThatMakeNoSense) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{{"num_experts", -1},
                                                                            {"num_experts_per_tok", 7},
                                                                            {"num_experts_per_tok", 0},
                                                                            {"moe_intermediate_size", 0},
                                                                            {"decoder_sparse_step", 0},
                                                                            {"mlp_only_layers", {3}},
                                                                            {"mlp_only_layers", 1},
                                                                            {"hidden_act", "gelu"}})
    EXPECT_THAT(error_of(with(qwen3_moe(), key, value)), HasSubstr(key)) << value;
  EXPECT_THAT(error_of(with(qwen3(), "num_experts", 8)), HasSubstr("num_experts"));
  // Together they would be more than 2^63 parameters, each alone is in its range.
  EXPECT_THAT(error_of(with(with(qwen3_moe(), "num_experts", 1 << 14), "moe_intermediate_size", 1 << 20)),
              HasSubstr("16384 experts"));
}

}  // namespace
}  // namespace ladder
