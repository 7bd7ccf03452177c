// Tasks 2.1 to 2.4: configs, files and whole models of random sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/config/config.h"
#include "step2_model/decoder/composites.h"
#include "step2_model/families/family.h"
#include "step2_model/model.h"
#include "tests/step1_layers/norm_rotate_reference.h"
#include "tests/step2_model/random_model.h"
#include "tests/support/model_session.h"
#include "tests/support/numerics.h"
#include "tests/support/reference_model.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using namespace ladder::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

DecoderSpec parse(const Json& config, const std::string& generation = "") {
  return parse_decoder_spec(config.dump(), "config.json", generation, "generation_config.json");
}

TEST(Hidden2_1_Config, ReadsSizesBiasesAndDefaultsOfAnyModel) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 100; ++round) {
    Json config = Json::parse(random_config(random).dump());
    const std::string architecture = config["architectures"][0];
    const bool qwen2 = architecture == "Qwen2ForCausalLM", qwen3 = architecture == "Qwen3ForCausalLM";
    const bool tied = config["tie_word_embeddings"], attention = config.value("attention_bias", false),
               mlp = config.value("mlp_bias", false);
    const int64_t heads = config["num_attention_heads"];
    // Some fields are left to the family.
    const bool no_tie = random.integer(0, 1), no_dim = random.integer(0, 1);
    if (no_tie) config.erase("tie_word_embeddings");
    if (no_dim) {
      config.erase("head_dim");
      if (!qwen3) config["hidden_size"] = heads * 2 * random.integer(2, 20);
    }
    const DecoderSpec spec = parse(config);
    SCOPED_TRACE(config.dump());
    EXPECT_EQ(spec.hidden_size, config["hidden_size"].get<int64_t>());
    EXPECT_EQ(spec.intermediate_size, config["intermediate_size"].get<int64_t>());
    EXPECT_EQ(spec.num_kv_heads, config["num_key_value_heads"].get<int64_t>());
    EXPECT_EQ(spec.num_layers, config["num_hidden_layers"].get<int64_t>());
    EXPECT_EQ(spec.tie_word_embeddings, !no_tie && tied);
    EXPECT_EQ(spec.head_dim,
              no_dim ? (qwen3 ? 128 : spec.hidden_size / heads) : config["head_dim"].get<int64_t>());
    EXPECT_EQ(spec.qk_norm, qwen3);
    EXPECT_EQ(spec.qkv_bias, qwen2 || attention);
    EXPECT_EQ(spec.o_bias, !qwen2 && attention);
    EXPECT_EQ(spec.mlp_bias, mlp);
    EXPECT_EQ(spec.rope.rotary_dim, spec.head_dim);
  }
}

TEST(Hidden2_1_Config, EndTokensAndWindows) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 30; ++round) {
    Json config = Json::parse(random_config(random).dump());
    const int64_t a = random.integer(0, 3), b = random.integer(4, 7);
    config["eos_token_id"] = a;
    EXPECT_THAT(parse(config).eos_token_ids, ElementsAre(a));
    EXPECT_THAT(parse(config, Json{{"eos_token_id", b}}.dump()).eos_token_ids, ElementsAre(b));
    EXPECT_THAT(parse(config, Json{{"eos_token_id", {b, a}}}.dump()).eos_token_ids, ElementsAre(b, a));
    if (config["architectures"][0] == "LlamaForCausalLM") continue;
    config["use_sliding_window"] = true;
    config["max_window_layers"] = 0;
    config["max_position_embeddings"] = 4097;
    for (const char* key : {"rope_scaling", "rope_parameters"})
      config.erase(key);  // they may allow longer texts
    const auto said = [&] { return error_of([&] { parse(config); }); };
    EXPECT_THAT(said(), HasSubstr("use_sliding_window")) << "an absent window is one of 4096 tokens";
    config["sliding_window"] = nullptr;
    EXPECT_EQ(said(), "no error");
    for (const int64_t window : {int64_t{4097}, random.integer(4098, 9000)}) {
      config["sliding_window"] = window;
      EXPECT_EQ(said(), "no error") << "no text is longer than " << window;
    }
    config["sliding_window"] = random.integer(1, 4096);
    EXPECT_THAT(said(), HasSubstr("use_sliding_window"));
    config["max_window_layers"] = config["num_hidden_layers"];
    EXPECT_EQ(said(), "no error");
  }
}

TEST(Hidden2_1_Rope, OfOlderAndNewerKeys) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200; ++round) {
    const int64_t positions = random.integer(600, 9000), original = random.integer(50, 500);
    const double inside = random.uniform(100, 1e6), beside = random.uniform(100, 1e6),
                 factor = random.uniform(1.5, 9);
    Json config = {{"max_position_embeddings", positions}, {"rope_theta", beside}};
    const std::string kind = random.one_of<std::string>({"linear", "dynamic", "yarn", "llama3"});
    Json rope = {{random.integer(0, 1) ? "type" : "rope_type", kind},
                 {"factor", factor},
                 {"original_max_position_embeddings", original},
                 {"low_freq_factor", 1.0},
                 {"high_freq_factor", 4.0}};
    const bool has_theta = random.integer(0, 1), has_factor = kind != "yarn" || random.integer(0, 1);
    if (has_theta) rope["rope_theta"] = inside;
    if (!has_factor) rope.erase("factor");
    config[random.integer(0, 1) ? "rope_scaling" : "rope_parameters"] = rope;
    SCOPED_TRACE(config.dump());
    const RopeConfig seen = parse_rope_config(ConfigObject(config, "config.json"), 64, positions);
    EXPECT_EQ(seen.kind, kind == "linear"    ? RopeKind::linear
                         : kind == "dynamic" ? RopeKind::dynamic_ntk
                         : kind == "yarn"    ? RopeKind::yarn
                                             : RopeKind::llama3);
    EXPECT_DOUBLE_EQ(seen.theta, has_theta ? inside : beside);
    EXPECT_DOUBLE_EQ(seen.factor,
                     has_factor ? factor : static_cast<double>(positions) / static_cast<double>(original));
    if (kind != "linear") {
      EXPECT_EQ(seen.original_max_position_embeddings, kind == "dynamic" ? positions : original);
    }
  }
}

// A header with its length before it, and data of zeros.
std::string file_of(const Json& header, int64_t data) {
  const std::string text = header.dump();
  const auto length = static_cast<uint64_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&length), 8) + text +
         std::string(static_cast<size_t>(data), '\0');
}

TEST(Hidden2_2_Safetensors, HeadersTileTheirData) {
  Random random;
  SCOPED_TRACE(random.describe());
  const TemporaryFolder folder;
  for (int round = 0; round < 25; ++round) {
    Json header = Json::object();
    std::vector<std::string> names;
    int64_t end = 0;
    for (int64_t i = random.integer(2, 8); i > 0; --i) {
      const Json shape = {random.integer(1, 5), random.integer(1, 5)};
      const int64_t bytes = 2 * shape[0].get<int64_t>() * shape[1].get<int64_t>();
      names.push_back("t" + std::to_string(random.integer(0, 1 << 30)));
      header[names.back()] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
      end += bytes;
    }
    const auto said = [&](const Json& changed, int64_t data) {
      write_file(folder / "model.safetensors", file_of(changed, data));
      return error_of([&] { SafetensorsFile file(folder / "model.safetensors"); });
    };
    ASSERT_EQ(said(header, end), "no error");
    EXPECT_NE(said(header, end + 2), "no error") << "bytes behind the last tensor";
    EXPECT_NE(said(header, end - 2), "no error");
    Json hole = header;  // from some tensor on all lie two bytes further
    const size_t from = static_cast<size_t>(random.integer(0, std::ssize(names) - 1));
    for (size_t i = from; i < names.size(); ++i)
      for (Json& offset : hole[names[i]]["data_offsets"]) offset = offset.get<int64_t>() + 2;
    EXPECT_NE(said(hole, end + 2), "no error") << "a hole before tensor " << from;
    Json large = header;  // the last one has two bytes more than its shape
    large[names.back()]["data_offsets"][1] = end + 2;
    EXPECT_NE(said(large, end + 2), "no error");
  }
}

TEST(Hidden2_2_Safetensors, ShardsAreOneTable) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 15; ++round) {
    const TemporaryFolder folder;
    const int64_t count = random.integer(2, 4);
    std::vector<NamedTensors> shards(static_cast<size_t>(count));
    Json map = Json::object();
    const auto file_name = [&](int64_t i) { return "model-" + std::to_string(i) + ".safetensors"; };
    for (int64_t i = 0; i < 4 * count; ++i) {
      const std::string name = "layer." + std::to_string(i);
      shards[i % count].emplace_back(name, random.normal({random.integer(1, 9)}, DType::f32));
      map[name] = file_name(i % count);
    }
    const auto write = [&](const Json& index) {
      for (int64_t i = 0; i < count; ++i) write_safetensors(folder / file_name(i), shards[i]);
      write_file(folder / "model.safetensors.index.json", Json{{"weight_map", index}}.dump());
    };
    const auto said = [&] { return error_of([&] { Checkpoint checkpoint(folder.path()); }); };
    write(map);
    const Checkpoint whole(folder.path());
    ASSERT_EQ(whole.entries().size(), static_cast<size_t>(4 * count));
    for (const NamedTensors& shard : shards)
      for (const auto& [name, tensor] : shard)
        EXPECT_TRUE(bitwise_equal(whole.find(name)->tensor(), tensor)) << name;
    Json moved = map;
    moved["layer.0"] = file_name(1);
    write(moved);
    EXPECT_THAT(said(), HasSubstr("layer.0")) << "the index names another shard";
    shards[1].push_back(shards[0][0]);
    write(map);
    EXPECT_THAT(said(), HasSubstr("layer.0")) << "it lies in two shards";
  }
}

TEST(Hidden2_3_Names, OfEveryLayerAndBack) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const ModelFamily* family : all_families())
    for (int round = 0; round < 30; ++round) {
      const int64_t layer = random.integer(0, 200);
      const std::string before = random.integer(0, 1) ? "model." : "", number = std::to_string(layer);
      const int64_t expert = random.integer(0, 200);
      for (const TensorName& row : family->tensor_names) {
        const auto filled = [&](std::string_view pattern, const std::string& by) {
          std::string text(pattern);
          if (const size_t at = text.find('#'); at != std::string::npos) text.replace(at, 1, by);
          if (const size_t at = text.find('@'); at != std::string::npos)
            text.replace(at, 1, std::to_string(expert));
          return text;
        };
        const bool in_layer = row.checkpoint.find('#') != std::string_view::npos;
        const std::string name = filled(row.checkpoint, number);
        if (name == "lm_head.weight" && !before.empty()) continue;
        const auto target = find_tensor_target(*family, before + name);
        ASSERT_TRUE(target.has_value()) << before + name;
        EXPECT_EQ(target->parameter, filled(row.parameter, number));
        const bool of_expert = row.checkpoint.find('@') != std::string_view::npos;
        EXPECT_EQ(target->part, row.part + (of_expert ? expert * row.parts_per_expert : 0));
        EXPECT_EQ(target->layer, in_layer ? layer : -1);
        // Of two names for one the first is given back.
        const auto first = std::ranges::find_if(family->tensor_names, [&](const TensorName& other) {
          return other.parameter == row.parameter && other.part == row.part;
        });
        EXPECT_EQ(checkpoint_name_of(*family, target->parameter, target->part),
                  (name.starts_with("lm_head.") ? "" : "model.") + filled(first->checkpoint, number));
        EXPECT_FALSE(find_tensor_target(*family, before + name + ".more").has_value());
        if (!in_layer) continue;
        for (const std::string& wrong : {"0" + number, "-" + number, number + "x", std::string()})
          EXPECT_FALSE(find_tensor_target(*family, before + filled(row.checkpoint, wrong)).has_value())
              << wrong;
      }
    }
}

// A checkpoint of random shape in a folder, and what is in it.
struct RandomCheckpoint {
  explicit RandomCheckpoint(Random& random) : config(random_config(random)) {
    write_file(folder / "config.json", config.dump());
    spec = load_decoder_spec(folder.path());
    tensors = random_weights(random, spec);
    write();
  }
  void write() const { write_safetensors(folder / "model.safetensors", tensors); }
  TemporaryFolder folder;
  json config;
  DecoderSpec spec;
  NamedTensors tensors;
};

TEST(Hidden2_3_Loading, NothingMayBeMissingOrLeftOver) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 16; ++round) {
    RandomCheckpoint checkpoint(random);
    int64_t bytes = 0, told = 0, total = 0;
    for (const auto& [name, tensor] : checkpoint.tensors) bytes += tensor.nbytes();
    const auto said = [&] {
      ModelOptions options;
      options.progress = [&](int64_t done, int64_t all) { told = done, total = all; };
      return error_of([&] { load_model({}, checkpoint.folder.path(), checkpoint.spec, options); });
    };
    ASSERT_EQ(said(), "no error");
    EXPECT_EQ(told, bytes) << "progress is in bytes";
    EXPECT_EQ(total, bytes);
    const NamedTensors whole = checkpoint.tensors;
    const auto missing = static_cast<size_t>(random.integer(0, std::ssize(whole) - 1));
    checkpoint.tensors.erase(checkpoint.tensors.begin() + static_cast<int64_t>(missing));
    checkpoint.write();
    EXPECT_THAT(said(), HasSubstr("\"" + whole[missing].first + "\""));
    checkpoint.tensors = whole;
    checkpoint.tensors.emplace_back("model.layers.0.mlp.more.weight", Tensor::zeros({1}, DType::f32));
    checkpoint.write();
    EXPECT_THAT(said(), HasSubstr("model.layers.0.mlp.more.weight"));
    checkpoint.tensors = whole;
    if (!checkpoint.spec.tie_word_embeddings) continue;
    checkpoint.tensors.emplace_back(random.one_of<std::string>({"lm_head.weight", "model.lm_head.weight"}),
                                    whole[0].second.clone());
    checkpoint.tensors.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq",
                                    Tensor::zeros({4}, DType::f32));
    checkpoint.write();
    EXPECT_EQ(said(), "no error") << "tied embeddings may be stored twice, and angles";
  }
}

// Several sequences in chunks, by one rank and by three, whole and as two ranges of layers.
TEST(Hidden2_4_Decoder, ChunksRanksAndRangesEqualTheReference) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 8 && !HasFailure(); ++round) {
    const RandomCheckpoint checkpoint(random);
    const DecoderSpec& spec = checkpoint.spec;
    SCOPED_TRACE(checkpoint.config.dump());
    const ReferenceModel reference(checkpoint.folder.path());
    std::vector<std::vector<int32_t>> texts(static_cast<size_t>(random.integer(1, 3)));
    for (auto& text : texts) {
      text.resize(static_cast<size_t>(random.integer(2, 30)));
      for (int32_t& id : text) id = static_cast<int32_t>(random.integer(0, spec.vocab_size - 1));
    }
    const int64_t block_size = random.integer(1, 7);
    const auto cut = static_cast<size_t>(random.integer(1, 2));
    // All but the last tokens, then these: decodes and chunks in one step.
    const auto chunks = [&](bool first) {
      std::vector<ModelSession::Chunk> result;
      for (size_t i = 0; i < texts.size(); ++i) {
        const size_t at = texts[i].size() - std::min(cut, texts[i].size() - 1);
        result.push_back(
            {static_cast<int>(i),
             first ? std::vector<int32_t>(texts[i].begin(), texts[i].begin() + static_cast<int64_t>(at))
                   : std::vector<int32_t>(texts[i].begin() + static_cast<int64_t>(at), texts[i].end())});
      }
      return result;
    };
    std::vector<double> expected;
    for (const auto& text : texts) {
      const auto logits = reference.logits(text);
      for (size_t i = text.size() - std::min(cut, text.size() - 1); i < text.size(); ++i)
        expected.insert(expected.end(), logits[i].begin(), logits[i].end());
    }
    const auto check = [&](const OpContext& ctx) {
      const auto model = load_model(ctx, checkpoint.folder.path(), spec, {});
      ModelSession session(*model, ctx, block_size);
      session.forward(chunks(true));
      EXPECT_TRUE(close_to(to_double(session.step(chunks(false))), expected, spec.vocab_size, 1e-4));
    };
    check({});
    if (spec.num_heads % 3 == 0 && spec.intermediate_size % 3 == 0 &&
        (spec.num_kv_heads == 1 || spec.num_kv_heads == 3))
      run_ranks(3, [&](int, const ParallelContext& parallel) {
        OpContext ctx;
        ctx.parallel = &parallel;
        check(ctx);
      });
    if (spec.num_layers < 2) continue;
    ModelOptions front, back;
    front.layer_end = back.layer_begin = random.integer(1, spec.num_layers - 1);
    const auto whole = load_model({}, checkpoint.folder.path(), spec, {});
    const auto first = load_model({}, checkpoint.folder.path(), spec, front);
    const auto second = load_model({}, checkpoint.folder.path(), spec, back);
    ModelSession all(*whole, {}), one(*first, {}), two(*second, {});
    EXPECT_TRUE(
        bitwise_equal(two.forward(chunks(true), one.forward(chunks(true))), all.forward(chunks(true))));
  }
}

// The sum is in the residual after the norm, and nothing waits any more.
TEST(Hidden2_4_Composites, WhatWaitsIsAddedOnce) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 20; ++round) {
    const Shape shape = {random.integer(1, 9), random.integer(1, 70)};
    ResidualStream stream;
    stream.residual = random.exact(shape, DType::f32);
    stream.pending = random.exact(shape, DType::f32);
    stream.has_pending = true;
    auto sum = to_double(stream.residual);
    const auto more = to_double(stream.pending);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
    const Tensor weight = random.normal({shape[1]}, DType::f32), out = poisoned(shape, DType::f32);
    add_norm({}, stream, {weight, {}, 0.1}, out);
    EXPECT_EQ(to_double(stream.residual), sum);
    add_pending({}, stream);
    EXPECT_EQ(to_double(stream.residual), sum) << "added twice";
    EXPECT_TRUE(close_to(out, normed(stream.residual, weight, 0.1)));
  }
}

}  // namespace
}  // namespace ladder
