#include "step8_advanced/quantization/quantizer/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/json.h"
#include "step8_advanced/quantization/algorithms/hessian.h"
#include "step8_advanced/quantization/algorithms/sparse.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"
#include "step8_advanced/quantization/quantizer/check_weights.h"
#include "step8_advanced/quantization/quantizer/copy_files.h"
#include "step8_advanced/quantization/quantizer/evaluate.h"
#include "step8_advanced/quantization/quantizer/finished_layers.h"
#include "step8_advanced/quantization/quantizer/smooth_layer.h"
#include "step8_advanced/quantization/quantizer/sweep.h"
#include "tests/step8_advanced/quantization/quantized_tinyworld.h"
#include "tests/support/model_session.h"
#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using testing::divergence;
using ::testing::HasSubstr;
using testing::kW4Channel;
using testing::load;
using testing::options_of;
using testing::recipe;
using testing::TemporaryFolder;
using testing::texts;
using testing::tinyworld;
using testing::write_with_outliers;

// Two layers of width 48, for what does not ask how good the result is.
QuantizeOptions small_options_of(const std::filesystem::path& output, const std::string& recipe) {
  QuantizeOptions options;
  options.model = testing::source_folder() / "tests" / "goldens" / "qwen3_tied";
  options.output = output;
  options.recipe = parse_recipe(recipe, "recipe.json", DType::f32);
  options.texts = {{1, 5, 99, 12, 40, 77, 3, 128, 17, 64},
                   {1, 30, 31, 32, 90, 91, 5, 5, 120, 7, 8, 9, 100, 60, 61}};
  return options;
}

std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files[entry.path().filename()] = read_text_file(entry.path());
  return files;
}

// |a - b| / |b|
double relative_error(const Tensor& a, const Tensor& b) {
  double error = 0, all = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double expected = b.data<float>()[i], off = a.data<float>()[i] - expected;
    error += off * off;
    all += expected * expected;
  }
  return std::sqrt(error / all);
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class Task8_5_Schemes : public ::testing::TestWithParam<std::pair<const char*, double>> {};
// The largest KL divergence x 1000 that is accepted, about twice what was measured.
INSTANTIATE_TEST_SUITE_P(All, Task8_5_Schemes,
                         ::testing::Values(std::pair{"W8A16", 0.2}, std::pair{"W4A16", 15},
                                           std::pair{"W4A16_ASYM", 12}, std::pair{"W3A16", 80},
                                           std::pair{"W8A8", 3}, std::pair{"FP8", 4},
                                           std::pair{"FP8_DYNAMIC", 3}, std::pair{"FP8_BLOCK", 3},
                                           std::pair{"NVFP4A16", 10}, std::pair{"MXFP4A16", 15},
                                           std::pair{"MXFP8A16", 3}),
                         [](const auto& info) { return std::string(info.param.first); });

// Written, read back by the model's own loader, and near the model that it was made of.
TEST_P(Task8_5_Schemes, LoadAsAnyOtherFolder) {
  TemporaryFolder folder;
  const auto [scheme, limit] = GetParam();
  const QuantizeReport report =
      quantize({}, options_of(folder / "out", recipe("rtn", fmt::format("\"{}\"", scheme))));
  EXPECT_EQ(report.linears.size(), 56u);
  EXPECT_LT(report.bytes_after, report.bytes_before * 0.65);
  const double kl = 1000 * divergence(folder / "out", 2, 120);
  EXPECT_LT(kl, limit);
  EXPECT_GT(kl, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "out.partial"));
}

TEST(Task8_5_Quantize, TiedHeadsStayTiedAndOtherFilesComeAlong) {
  TemporaryFolder folder;
  quantize({}, options_of(folder / "out", recipe("rtn", "\"W8A16\"")));
  const Checkpoint checkpoint(folder / "out");
  EXPECT_NE(checkpoint.find("model.embed_tokens.weight"), nullptr);
  EXPECT_EQ(checkpoint.find("lm_head.weight"), nullptr);
  EXPECT_EQ(checkpoint.find("model.layers.0.mlp.up_proj.weight"), nullptr);
  EXPECT_NE(checkpoint.find("model.layers.0.mlp.up_proj.weight_packed"), nullptr);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    EXPECT_EQ(read_text_file(folder / "out" / name), read_text_file(tinyworld() / name)) << name;
  const Json config = load_json(folder / "out" / "config.json");
  EXPECT_EQ(config.at("tie_word_embeddings"), true);
  EXPECT_EQ(config.at("quantization_config").at("quant_method"), "compressed-tensors");
  EXPECT_EQ(load_json(folder / "out" / "quantize_report.json").at("linears").size(), 56u);
}

// Weights that are handed on bring their licence.
TEST(Task8_5_Quantize, TheLicenceComesAlong) {
  TemporaryFolder folder;
  for (const char* name : {"from", "to"}) std::filesystem::create_directory(folder / name);
  for (const char* name : {"LICENSE", "NOTICE.txt", "USE_POLICY.md", "README.md"})
    testing::write_file(folder / "from" / name, name);
  std::filesystem::create_directory(folder / "from" / "LICENSE.txt");
  copy_other_files(folder / "from", folder / "to");
  for (const char* name : {"LICENSE", "NOTICE.txt", "USE_POLICY.md"})
    EXPECT_EQ(read_text_file(folder / "to" / name), name);
  EXPECT_FALSE(std::filesystem::exists(folder / "to" / "README.md")) << "it tells of the dense model";
  EXPECT_FALSE(std::filesystem::exists(folder / "to" / "LICENSE.txt")) << "a folder";
}

// What the loader makes of the file is what the quantizer meant: the model with rounded weights in their place.
TEST(Task8_5_Quantize, TheFileIsTheFakeQuantizedModel) {
  TemporaryFolder folder;
  const QuantizeOptions options = options_of(folder / "out", recipe("rtn", "\"W4A16\""));
  quantize({}, options);
  const RecipeStage& stage = options.recipe.stages[0];
  std::filesystem::create_directory(folder / "fake");
  std::filesystem::copy_file(tinyworld() / "config.json", folder / "fake" / "config.json");
  const Checkpoint checkpoint(tinyworld());
  std::vector<NamedTensor> tensors;
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    Tensor tensor = entry.tensor();
    const std::string& name = entry.info->name;
    if (name.find("_proj.weight") != std::string::npos)
      tensor =
          dequantize(quantize_linear(name, tensor.to(DType::f32), {.round = &stage}, {}, 0).linear.weight);
    tensors.push_back({name, tensor});
  }
  write_checkpoint(folder / "fake", tensors);
  const auto model = load(folder / "out"), fake = load(folder / "fake");
  const auto clusters = evaluate({}, *model, fake.get(), cut_windows(texts("text.jsonl", 1, 100), 2048), {});
  EXPECT_LT(1000 * estimate(clusters, [](const ClusterSums& sums) { return sums.kl; }).mean, 1e-3);
}

// A head in codes next to an embedding that keeps its table, which it was until then: the model with the rounded table as its head.
TEST(Task8_5_Quantize, ATiedHeadGetsCodesOfItsOwn) {
  TemporaryFolder folder;
  const QuantizeOptions options = options_of(folder / "out", R"({"stages": [
    {"method": "rtn", "scheme": "W8A16", "targets": ["re:.*down_proj"]},
    {"method": "rtn", "scheme": "W4A16", "targets": ["lm_head"]}]})");
  EXPECT_EQ(quantize({}, options).linears.back().name, "lm_head");
  const Json config = load_json(folder / "out" / "config.json");
  EXPECT_EQ(config.at("tie_word_embeddings"), false);
  EXPECT_THAT(config.at("quantization_config").at("ignore").dump(), ::testing::Not(HasSubstr("lm_head")));
  std::filesystem::create_directory(folder / "fake");
  const Checkpoint of_out(folder / "out"), original(tinyworld());
  EXPECT_EQ(of_out.find("lm_head.weight"), nullptr);
  const Tensor table = original.find("model.embed_tokens.weight")->tensor();
  ASSERT_TRUE(testing::bitwise_equal(of_out.find("model.embed_tokens.weight")->tensor(), table));
  std::vector<NamedTensor> tensors;
  for (const Checkpoint::Entry& entry : of_out.entries())
    if (!entry.info->name.starts_with("lm_head.")) tensors.push_back({entry.info->name, entry.tensor()});
  const FinishedLinear head =
      quantize_linear("lm_head", table.to(DType::f32), {.round = &options.recipe.stages[1]}, {}, 0);
  tensors.push_back({"lm_head.weight", head.values()});
  write_checkpoint(folder / "fake", tensors);
  Json dense_head = config;
  dense_head["quantization_config"]["ignore"].push_back("lm_head");
  testing::write_file(folder / "fake" / "config.json", dense_head.dump());
  const auto model = load(folder / "out"), fake = load(folder / "fake"), base = load(tinyworld());
  const auto windows = cut_windows(texts("text.jsonl", 1, 100), 2048);
  const auto kl = [&](Model& to) {
    return 1000 *
           estimate(evaluate({}, *model, &to, windows, {}), [](const auto& sums) { return sums.kl; }).mean;
  };
  EXPECT_LT(kl(*fake), 1e-3);
  EXPECT_GT(kl(*base), 0.1);
}

TEST(Task8_5_Quantize, AHeadByItselfIsQuantizedToo) {
  TemporaryFolder folder;
  QuantizeOptions options = small_options_of(
      folder / "out", R"({"stages": [{"method": "rtn", "scheme": "FP8_DYNAMIC", "targets": ["lm_head"]}]})");
  options.model = testing::source_folder() / "tests" / "goldens" / "qwen3_untied";
  EXPECT_EQ(quantize({}, options).linears.size(), 1u);
  EXPECT_EQ(Checkpoint(folder / "out").find("lm_head.weight")->info->dtype, DType::f8_e4m3);
  EXPECT_NO_THROW(load(folder / "out"));
}

TEST(Task8_5_Quantize, MixedPrecisionLoads) {
  TemporaryFolder folder;
  const auto options = options_of(folder / "out", R"({"stages": [
    {"method": "rtn", "scheme": "FP8_DYNAMIC", "targets": ["re:.*down_proj"]},
    {"method": "rtn", "scheme": "W4A16", "ignore": ["re:.*down_proj", "model.layers.0.self_attn.o_proj"]}]})");
  quantize({}, options);
  const Checkpoint checkpoint(folder / "out");
  EXPECT_EQ(checkpoint.find("model.layers.2.mlp.down_proj.weight")->info->dtype, DType::f8_e4m3);
  EXPECT_NE(checkpoint.find("model.layers.2.mlp.up_proj.weight_packed"), nullptr);
  EXPECT_EQ(checkpoint.find("model.layers.0.self_attn.o_proj.weight")->info->dtype, DType::bf16);
  EXPECT_LT(1000 * divergence(folder / "out", 1, 120), 15);
}

// Beside rounded activations integers of fewer bits have a byte each, and so have their zero points.
TEST(Task8_5_Quantize, ZeroPointsInBytesAreThoseThatArePacked) {
  for (const int bits : {3, 4, 8}) {
    const TemporaryFolder folder;
    const std::string weights =
        fmt::format(R"("weights": {{"num_bits": {}, "symmetric": false, "group_size": 16}})", bits);
    const std::string inputs =
        R"("input_activations": {"num_bits": 8, "strategy": "token", "dynamic": true})";
    quantize({}, small_options_of(folder / "packed", recipe("rtn", "{" + weights + "}")));
    quantize({}, small_options_of(folder / "bytes", recipe("rtn", "{" + weights + ", " + inputs + "}")));
    EXPECT_EQ(Checkpoint(folder / "bytes").find("model.layers.0.mlp.up_proj.weight_packed"), nullptr);
    Json config = load_json(folder / "bytes" / "config.json");
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = nullptr;
    write_file_atomically(folder / "bytes" / "config.json", config.dump());
    const auto packed = load(folder / "packed"), bytes = load(folder / "bytes");
    const auto logits = [](Model& model) {
      return testing::to_double(
          testing::ModelSession(model, {}).step({{0, {3, 1, 4, 1, 5, 9, 2, 6}}}).clone());
    };
    EXPECT_TRUE(testing::close_to(logits(*bytes), logits(*packed), 131, 1e-5)) << bits;
  }
}

TEST(Task8_5_Quantize, WhatIsThereIsLeftAlone) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "out");
  EXPECT_THAT(error_of([&] { quantize({}, options_of(folder / "out", recipe("rtn", "\"W8A16\""))); }),
              HasSubstr("is there already"));
  std::filesystem::create_directory(folder / "new.partial");
  testing::write_file(folder / "new.partial" / "mine", "text");
  EXPECT_THAT(error_of([&] { quantize({}, options_of(folder / "new", recipe("rtn", "\"W8A16\""))); }),
              HasSubstr("left as it is"));
  EXPECT_TRUE(std::filesystem::exists(folder / "new.partial" / "mine"));
  std::filesystem::create_symlink("nowhere", folder / "link");
  EXPECT_THAT(error_of([&] { quantize({}, options_of(folder / "link", recipe("rtn", "\"W8A16\""))); }),
              HasSubstr("is there already"));
  EXPECT_FALSE(std::filesystem::exists(folder / "link.partial"));
}

TEST(Task8_5_Quantize, AQuantizedModelIsRefused) {
  TemporaryFolder folder;
  quantize({}, options_of(folder / "out", recipe("rtn", "\"W8A16\"")));
  QuantizeOptions again = options_of(folder / "again", recipe("rtn", "\"W8A16\""));
  again.model = folder / "out";
  EXPECT_THAT(error_of([&] { quantize({}, again); }), HasSubstr("quantized already"));
}

// As a loader would refuse it, and before anything is written, also where the recipe looks at weights alone.
TEST(Task8_5_Quantize, WeightsThatDoNotFitTheConfigAreRefused) {
  TemporaryFolder folder;
  const std::string down = "model.layers.1.mlp.down_proj.weight";
  const std::filesystem::path golden = small_options_of("", recipe("rtn", kW4Channel)).model;
  const auto refusal = [&](const std::string& method,
                           const std::function<void(std::vector<NamedTensor>&, NamedTensor&)>& damage) {
    const Checkpoint checkpoint(golden);
    std::vector<NamedTensor> tensors;
    for (const Checkpoint::Entry& entry : checkpoint.entries())
      tensors.push_back({entry.info->name, entry.tensor()});
    damage(tensors, *std::ranges::find(tensors, down, &NamedTensor::name));
    const std::filesystem::path model = folder / "model";
    std::filesystem::create_directories(model);
    write_checkpoint(model, tensors);
    testing::write_file(model / "config.json", read_text_file(golden / "config.json"));
    QuantizeOptions options = small_options_of(folder / "out", recipe(method, kW4Channel));
    options.model = model;
    const std::string error = error_of([&] { quantize({}, options); });
    EXPECT_FALSE(std::filesystem::exists(folder / "out"));
    EXPECT_FALSE(std::filesystem::exists(folder / "out.partial"));
    return error;
  };
  for (const char* method : {"rtn", "gptq"}) {
    EXPECT_THAT(refusal(method,
                        [&](auto& all, NamedTensor&) {
                          std::erase_if(all, [&](auto& one) { return one.name == down; });
                        }),
                HasSubstr("1 missing: \"" + down));
    EXPECT_THAT(refusal(method,
                        [](auto& all, NamedTensor& one) {
                          const NamedTensor more = {one.name.substr(0, one.name.rfind('.')) + ".bias",
                                                    one.tensor.narrow(1, 0, 1).clone()};
                          all.push_back(more);
                        }),
                HasSubstr("1 unexpected: \"model.layers.1.mlp.down_proj.bias"));
    EXPECT_THAT(refusal(method, [](auto&, NamedTensor& one) { one.tensor = one.tensor.narrow(0, 0, 40); }),
                AllOf(HasSubstr(down), HasSubstr("expected shape [48, 96], found f32[40, 96]")));
    // Rows of q are a part of what q, k and v have together.
    EXPECT_THAT(refusal(method,
                        [](auto& all, NamedTensor&) {
                          NamedTensor& q = *std::ranges::find(all, "model.layers.1.self_attn.q_proj.weight",
                                                              &NamedTensor::name);
                          q.tensor = q.tensor.narrow(0, 0, 4);
                        }),
                HasSubstr("model.layers.1.self_attn.q_proj.weight"));
    EXPECT_THAT(
        refusal(method,
                [](auto&, NamedTensor& one) { one.tensor = Tensor::zeros(one.tensor.shape(), DType::i8); }),
        AllOf(HasSubstr(down), HasSubstr("has the dtype i8")));
  }
}

// It loads; but a config that names its linears, as recipes of several schemes do, would name none of the loader's.
TEST(Task8_5_Quantize, ABareModelIsRefused) {
  TemporaryFolder folder;
  QuantizeOptions options = small_options_of(folder / "out", recipe("rtn", kW4Channel));
  const Checkpoint checkpoint(options.model);
  std::vector<NamedTensor> tensors;
  for (const Checkpoint::Entry& entry : checkpoint.entries())
    tensors.push_back({entry.info->name.substr(std::string_view("model.").size()), entry.tensor()});
  write_checkpoint(folder.path(), tensors);
  testing::write_file(folder / "config.json", read_text_file(options.model / "config.json"));
  options.model = folder.path();
  EXPECT_THAT(error_of([&] { quantize({}, options); }),
              AllOf(HasSubstr("tensor \"layers."), HasSubstr("expected it behind")));
}

// Every kind of layer that a family has: biases, experts, learned positions, projections around the layers, a tied head that is stored.
TEST(Task8_5_Quantize, WeightsThatFitTheConfigAreNotRefused) {
  for (const char* name :
       {"llama_biases", "llama_one_kv_head", "mixtral_sharded_bf16", "opt_gelu_no_bias", "opt_post_norm_f16",
        "opt_pre_norm", "phimoe_short", "qwen2_bias", "qwen2_moe_shared", "qwen2_moe_some_layers",
        "qwen3_moe_new_keys", "qwen3_odd_sizes", "qwen3_tied_head_stored_bf16", "qwen3_untied"}) {
    const std::filesystem::path model = testing::source_folder() / "tests" / "goldens" / name;
    EXPECT_NO_THROW(check_weights(Checkpoint(model), load_decoder_spec(model))) << name;
  }
}

// Each linear's error is taken on what comes out of the quantized ones before it.
TEST(Task8_5_Sequential, InputsComeFromTheQuantizedLinearsBefore) {
  const DecoderSpec spec = load_decoder_spec(tinyworld());
  std::vector<CheckpointLinear> linears = find_linears(Checkpoint(tinyworld()), spec);
  const Recipe two_bits =
      parse_recipe(recipe("rtn", R"({"weights": {"num_bits": 2, "type": "int", "strategy": "channel"}})"),
                   "recipe.json", DType::bf16);
  assign_stages(two_bits, linears);
  const std::vector<CheckpointLinear> of_layer(linears.begin(), linears.begin() + 7);
  const std::vector<TokenIds> samples = texts("text.jsonl", 2, 60);
  ASSERT_NE(samples[0], samples[1]);  // those of qa.jsonl are about one story
  const std::vector<Tensor> hidden(samples.size());
  WatchedLayer layer({}, tinyworld(), spec, 0, 60), dense({}, tinyworld(), spec, 0, 60);
  ASSERT_EQ(layer.linears().size(), 4u);
  std::vector<Tensor> originals;
  for (const auto& linear : dense.linears())
    for (const WatchedPart& part : linear->parts) originals.push_back(part.weight);
  const std::vector<FinishedLinear> finished =
      quantize_layer(layer, two_bits, of_layer, samples, hidden).linears;
  ASSERT_EQ(finished.size(), 7u);
  EXPECT_EQ(finished[0].report.name, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(finished[3].report.name, "model.layers.0.self_attn.o_proj");
  EXPECT_EQ(finished[6].report.name, "model.layers.0.mlp.down_proj");

  // Once more by hand: the last linear's inputs in the layer that is quantized now, and in the dense one.
  const auto error_with_inputs_of = [&](WatchedLayer& from) {
    WatchedLinear& down = *from.linears().back();
    Hessian inputs(down.k(), "inputs");
    down.on_input = [&](const Tensor& x) { inputs.add(x); };
    for (size_t i = 0; i < samples.size(); ++i) from.watch(samples[i], hidden[i]);
    down.on_input = nullptr;
    return layer_error(originals[6], dequantize(finished[6].linear.weight), inputs.matrix());
  };
  const double seen = finished[6].report.error;
  EXPECT_NEAR(seen, error_with_inputs_of(layer), 1e-6 * seen);
  EXPECT_GT(std::abs(seen - error_with_inputs_of(dense)), 1e-3 * seen);

  // And the layer is left as the codes have it.
  size_t part = 0;
  for (const auto& linear : layer.linears())
    for (const WatchedPart& one : linear->parts) {
      const Tensor expected = dequantize(finished[part++].linear.weight);
      EXPECT_TRUE(std::equal(expected.data<float>(), expected.data<float>() + expected.numel(),
                             one.weight.data<float>()))
          << one.name;
    }
}

TEST(Task8_5_Sequential, ActivationsAreRoundedOnTheWay) {
  const DecoderSpec spec = load_decoder_spec(tinyworld());
  std::vector<CheckpointLinear> linears = find_linears(Checkpoint(tinyworld()), spec);
  const Recipe w8a8 = recipe_of("FP8", "rtn", DType::bf16);
  assign_stages(w8a8, linears);
  const std::vector<CheckpointLinear> of_layer(linears.begin(), linears.begin() + 7);
  const std::vector<TokenIds> samples = texts("qa.jsonl", 1, 60);
  const std::vector<Tensor> hidden(1);
  WatchedLayer layer({}, tinyworld(), spec, 0, 60);
  const auto finished = quantize_layer(layer, w8a8, of_layer, samples, hidden);
  for (const auto& linear : layer.linears()) {
    ASSERT_TRUE(linear->activations.has_value()) << linear->name;
    EXPECT_GT(linear->input_scale, 0) << linear->name;
  }
  const Tensor with = layer.run(samples[0], {});
  for (const auto& linear : layer.linears()) linear->activations.reset();
  const Tensor without = layer.run(samples[0], {});
  EXPECT_FALSE(std::equal(with.data<float>(), with.data<float>() + with.numel(), without.data<float>()));

  WatchedLayer restored({}, tinyworld(), spec, 0, 60);
  restore_layer(restored, w8a8, of_layer, finished);
  const Tensor again = restored.run(samples[0], {});
  EXPECT_TRUE(std::equal(with.data<float>(), with.data<float>() + with.numel(), again.data<float>()));
}

// By what it makes small, the errors of the linears. What that does to answers is in the chapter's table: it takes more texts
// than a test has.
TEST(Task8_5_Gptq, IsNearerThanRoundingToNearest) {
  TemporaryFolder folder;
  const auto error_of_all = [&](const char* method) {
    QuantizeOptions options = options_of(folder / method, recipe(method, kW4Channel));
    options.texts = texts("text.jsonl", 4, 200);
    double sum = 0;
    for (const auto& linear : quantize({}, options).linears) sum += linear.error;
    return sum;
  };
  const double rtn = error_of_all("rtn"), gptq = error_of_all("gptq");
  EXPECT_GT(gptq, 0);
  EXPECT_LT(gptq, 0.6 * rtn) << gptq << " against " << rtn;
}

TEST(Task8_5_Gptq, EveryOrderLoads) {
  const std::string scheme = R"({"weights": {"num_bits": 8, "type": "int", "group_size": 16}})";
  for (const char* order : {"none", "weight", "group"}) {
    TemporaryFolder folder;
    QuantizeOptions options =
        small_options_of(folder / "out", recipe("gptq", scheme, fmt::format(R"(, "actorder": "{}")", order)));
    std::string said;
    options.say = [&](const std::string& line) { said += line; };
    quantize({}, options);
    EXPECT_EQ(said.find("actorder group") != std::string::npos, order == std::string("group")) << said;
    EXPECT_EQ(Checkpoint(folder / "out").find("model.layers.1.mlp.up_proj.weight_g_idx") != nullptr,
              order == std::string("group"));
    const auto model = load(folder / "out"), base = load(options.model);
    const auto clusters = evaluate({}, *model, base.get(), cut_windows(options.texts, 64), {});
    EXPECT_LT(1000 * estimate(clusters, [](const ClusterSums& sums) { return sums.kl; }).mean, 3) << order;
  }
}

TEST(Task8_5_Smoothing, AlonePreservesTheModel) {
  TemporaryFolder folder;
  write_with_outliers(folder / "outliers", 64, 2);
  const DecoderSpec spec = load_decoder_spec(folder / "outliers");
  std::vector<CheckpointLinear> linears = find_linears(Checkpoint(folder / "outliers"), spec);
  const Recipe smooth =
      parse_recipe(R"({"stages": [{"method": "smoothquant"}, {"method": "awq", "scheme": "W4A16"}]})",
                   "recipe.json", DType::bf16);
  assign_stages(smooth, linears);
  const std::vector<CheckpointLinear> of_layer(linears.begin(), linears.begin() + 7);
  const std::vector<TokenIds> samples = texts("qa.jsonl", 2, 60);
  const std::vector<Tensor> hidden(2);
  WatchedLayer layer({}, folder / "outliers", spec, 0, 60);
  const Tensor before = layer.run(samples[0], {});
  const Tensor weight = layer.linears()[0]->parts[0].weight.clone();
  const std::vector<NamedTensor> norms = smooth_layer(layer, smooth, of_layer, samples, hidden);
  EXPECT_EQ(norms.size(), 2u);
  EXPECT_EQ(norms[0].name, "model.layers.0.input_layernorm.weight");
  EXPECT_EQ(norms[0].tensor.dtype(), DType::bf16);
  const Tensor after = layer.run(samples[0], {});
  EXPECT_GT(relative_error(layer.linears()[0]->parts[0].weight, weight), 0.1);
  EXPECT_LT(relative_error(after, before), 1e-5);
}

// Of every method and order, alone, before rounding and with it: what stays is two of four, and not less.
TEST(Task8_5_Pruning, WhateverComesAfterwardsLeavesTheZeros) {
  const std::string int4 = R"("scheme": {"weights": {"num_bits": 4, "type": "int", "group_size": 16}})";
  const std::string asym =
      R"("scheme": {"weights": {"num_bits": 4, "type": "int", "symmetric": false, "group_size": 16}})";
  TemporaryFolder folder;
  const QuantizeOptions options = small_options_of(folder / "out", recipe("rtn", "\"W8A16\""));
  const DecoderSpec spec = load_decoder_spec(options.model);
  for (const std::string& stages :
       {std::string(R"({"method": "magnitude"})"), std::string(R"({"method": "wanda"})"),
        std::string(R"({"method": "sparsegpt"})"),
        R"({"method": "sparsegpt", "actorder": "weight", )" + int4 + "}",
        R"({"method": "sparsegpt", "actorder": "none", )" + asym + "}",
        R"({"method": "wanda"}, {"method": "rtn", )" + asym + "}",
        R"({"method": "magnitude"}, {"method": "awq", )" + int4 + "}",
        R"({"method": "wanda"}, {"method": "gptq", "actorder": "none", )" + int4 + "}",
        R"({"method": "sparsegpt"}, {"method": "gptq", "actorder": "weight", )" + asym + "}",
        R"({"method": "wanda"}, {"method": "gptq", "actorder": "group", )" + int4 + "}"}) {
    std::vector<CheckpointLinear> linears = find_linears(Checkpoint(options.model), spec);
    const Recipe all = parse_recipe(fmt::format(R"({{"stages": [{}]}})", stages), "recipe.json", DType::f32);
    assign_stages(all, linears);
    const std::vector<CheckpointLinear> of_layer(linears.begin(), linears.begin() + 7);
    WatchedLayer layer({}, options.model, spec, 0, 16);
    const auto finished = quantize_layer(layer, all, of_layer, options.texts, std::vector<Tensor>(2)).linears;
    ASSERT_EQ(finished.size(), 7u);
    for (const FinishedLinear& one : finished) {
      const Tensor values = one.values();
      EXPECT_FALSE(more_than_two_of_four(values)) << one.report.name << " by " << stages;
      const auto zeros = std::count(values.data<float>(), values.data<float>() + values.numel(), 0.0f);
      EXPECT_LT(zeros, 0.75 * values.numel()) << one.report.name << " by " << stages;
      EXPECT_GT(one.report.error, 0);
      EXPECT_LT(one.report.error, 0.7) << one.report.name << " by " << stages;
      EXPECT_EQ(one.dense.defined(), !all.stages.back().rounds());
    }
    // And the layer goes on with it.
    EXPECT_FALSE(more_than_two_of_four(layer.linears()[3]->parts[0].weight));
  }
}

TEST(Task8_5_Pruning, AloneItLeavesAnOrdinaryFolder) {
  TemporaryFolder folder;
  QuantizeOptions options = options_of(folder / "out", R"({"stages": [{"method": "magnitude"}]})");
  ASSERT_TRUE(options.texts.empty());
  const QuantizeReport report = quantize({}, options);
  EXPECT_EQ(report.bytes_after, report.bytes_before);
  EXPECT_EQ(report.linears.at(0).method, "magnitude");
  EXPECT_EQ(report.linears.at(0).scheme, "bf16");
  EXPECT_EQ(load_json(folder / "out" / "config.json"), load_json(tinyworld() / "config.json"));
  const Checkpoint pruned(folder / "out"), dense(tinyworld());
  ASSERT_EQ(pruned.entries().size(), dense.entries().size());
  for (const Checkpoint::Entry& entry : dense.entries()) {
    const std::string& name = entry.info->name;
    const Tensor before = entry.tensor().to(DType::f32), after = pruned.find(name)->tensor().to(DType::f32);
    EXPECT_EQ(pruned.find(name)->info->dtype, DType::bf16);
    const Tensor expected =
        name.find("_proj.weight") != std::string::npos ? prune_by_magnitude(before, name) : before;
    EXPECT_TRUE(std::equal(after.data<float>(), after.data<float>() + after.numel(), expected.data<float>()))
        << name;
  }
}

// What is only pruned is ignored by name, and dense for whoever reads the folder.
TEST(Task8_5_Pruning, PrunedAndRoundedLinearsStandSideBySide) {
  TemporaryFolder folder;
  quantize({}, options_of(folder / "out", R"({"stages": [{"method": "magnitude", "targets": ["re:.*mlp.*"]},
    {"method": "rtn", "scheme": "W8A16", "ignore": ["re:.*down_proj"]}]})"));
  const Checkpoint checkpoint(folder / "out");
  EXPECT_FALSE(
      more_than_two_of_four(checkpoint.find("model.layers.1.mlp.down_proj.weight")->tensor().to(DType::f32)));
  EXPECT_NE(checkpoint.find("model.layers.1.mlp.up_proj.weight_packed"), nullptr);
  const Json config = load_json(folder / "out" / "config.json").at("quantization_config");
  EXPECT_THAT(config.at("ignore").get<std::vector<std::string>>(),
              ::testing::Contains("model.layers.7.mlp.down_proj"));
  EXPECT_NO_THROW(load(folder / "out"));
}

class Task8_5_PruningOrder : public ::testing::Test {
 protected:
  // With every stage for these linears alone, calibrated on stories that the judge does not see.
  std::filesystem::path prune(const std::string& targets, const std::string& stages) {
    Json recipe = Json::parse(fmt::format(R"({{"stages": [{}]}})", stages));
    for (Json& stage : recipe["stages"]) stage["targets"] = {targets};
    const std::filesystem::path out = folder_ / std::to_string(count_++);
    QuantizeOptions options = options_of(out, recipe.dump());
    if (options.recipe.needs_calibration()) {
      options.texts = texts("text.jsonl", 14, 150);
      options.texts.erase(options.texts.begin(), options.texts.begin() + 6);
    }
    error_ = 0;
    for (const LinearReport& one : quantize({}, options).linears) error_ += one.error;
    return out;
  }
  double error_ = 0;  // of the last one's linears together

 private:
  TemporaryFolder folder_;
  int count_ = 0;
};

// Of the first half's MLPs, where few texts tell them apart; the whole model is in the chapter's table.
TEST_F(Task8_5_PruningOrder, SparseGptBelowWandaBelowMagnitude) {
  const auto kl = [&](const std::string& method) {
    return divergence(prune("re:model.layers.[0-3][.]mlp[.].*", fmt::format(R"({{"method": "{}"}})", method)),
                      5, 200);
  };
  const double magnitude = kl("magnitude"), wanda = kl("wanda"), sparse_gpt = kl("sparsegpt");
  EXPECT_GT(sparse_gpt, 0);
  EXPECT_LT(wanda, 0.85 * magnitude);
  EXPECT_LT(sparse_gpt, 0.5 * wanda);
}

// By what all three make small, the errors of the linears. What that does to answers takes more texts than a test has: the chapter's table.
TEST_F(Task8_5_PruningOrder, JointlyBelowOneAfterTheOther) {
  const auto error = [&](const std::string& stages) {
    prune("re:model.layers.[01][.]", fmt::format(fmt::runtime(stages), kW4Channel));
    return error_;
  };
  const double joint = error(R"({{"method": "sparsegpt", "scheme": {}}})");
  const double then_gptq = error(R"({{"method": "sparsegpt"}}, {{"method": "gptq", "scheme": {}}})");
  const double then_rtn = error(R"({{"method": "sparsegpt"}}, {{"method": "rtn", "scheme": {}}})");
  EXPECT_GT(joint, 0);
  EXPECT_LT(joint, 0.9 * then_gptq);
  EXPECT_LT(then_gptq, 0.9 * then_rtn);
}

SweepOptions small_sweep(const std::filesystem::path& output) {
  const QuantizeOptions small = small_options_of(output, recipe("rtn", "\"W8A16\""));
  SweepOptions options;
  options.model = small.model;
  options.output = output;
  options.bits = {3, 8};
  options.group_sizes = {0, 16};
  options.methods = {"rtn", "gptq", "sparsegpt"};
  options.texts = small.texts;
  options.windows = cut_windows(small.texts, 64);
  return options;
}

TEST(Task8_5_Sweep, JudgesEveryCombination) {
  TemporaryFolder folder;
  const SweepOptions options = small_sweep(folder / "out");
  const std::vector<SweepRow> rows = sweep({}, options);
  ASSERT_EQ(rows.size(), 12u);
  size_t at = 0;
  for (const int64_t bits : options.bits)
    for (const int64_t group_size : options.group_sizes)
      for (const std::string& method : options.methods) {
        const SweepRow& row = rows[at++];
        EXPECT_EQ(row.method, method);
        EXPECT_EQ(row.bits, bits);
        EXPECT_EQ(row.group_size, group_size);
        // Scales in f32, as this checkpoint is: 32 bits for 16 weights, or for a row of 48 and more. The rest is weight_shape, and
        // words that 3 bits do not fill.
        EXPECT_GT(row.bits_per_weight, static_cast<double>(bits) + (group_size > 0 ? 2 : 0.25));
        EXPECT_LT(row.bits_per_weight, static_cast<double>(bits) + (group_size > 0 ? 2.4 : 0.9));
        EXPECT_GT(row.kl.mean, 0);
      }
  for (size_t i = 0; i < 6; ++i)
    EXPECT_LT(rows[i + 6].kl.mean, (rows[i].method == "sparsegpt" ? 1.0 : 0.1) * rows[i].kl.mean) << i;
  EXPECT_LT(10 * rows[6].kl.mean, rows[8].kl.mean) << "two of four cost more than 8 bits";
  // The same as by itself.
  QuantizeOptions alone = small_options_of(
      folder / "alone", recipe("gptq", R"({"weights": {"num_bits": 3, "type": "int", "group_size": 16}})"));
  quantize({}, alone);
  const auto model = load(folder / "alone"), base = load(options.model);
  const auto clusters = evaluate({}, *model, base.get(), options.windows, {});
  EXPECT_EQ(rows[4].kl.mean, estimate(clusters, [](const ClusterSums& sums) { return sums.kl; }).mean);

  const auto files = files_of(folder / "out");
  ASSERT_EQ(files.size(), 2u) << "the models are not kept";
  const Json json = Json::parse(files.at("sweep.json"));
  EXPECT_EQ(json.at("rows").size(), 12u);
  EXPECT_EQ(json.at("rows")[4].at("kl"), rows[4].kl.mean);
  EXPECT_TRUE(json.at("rows")[0].at("group_size").is_null());
  EXPECT_EQ(files.at("sweep.svg"), sweep_picture(rows));
}

TEST(Task8_5_Sweep, ThePictureHasARowWhereItBelongs) {
  const auto row = [](const char* method, int64_t bits, double bits_per_weight, double kl) {
    return SweepRow{method, bits, 0, bits_per_weight, {kl, 0}, {}, 1, 1};
  };
  // 3.5 to 6 bits across 656 points, and divergences x 1000 of 1 to 100 up 348.
  const std::vector<SweepRow> rows = {row("rtn", 4, 4.0, 0.1), row("rtn", 4, 4.5, 0.01),
                                      row("gptq", 5, 5.5, 0.001)};
  const std::string picture = sweep_picture(rows);
  EXPECT_THAT(picture, HasSubstr("<circle cx=\"205.2\" cy=\"56.0\""));
  EXPECT_THAT(picture, HasSubstr("<circle cx=\"336.4\" cy=\"230.0\""));
  EXPECT_THAT(picture, HasSubstr("<circle cx=\"598.8\" cy=\"404.0\""));
  EXPECT_THAT(picture, HasSubstr("<line x1=\"205.2\" y1=\"56.0\" x2=\"336.4\" y2=\"230.0\""));
  EXPECT_THAT(picture, HasSubstr(">gptq<"));
  EXPECT_TRUE(picture.ends_with("</svg>\n"));
  // Nothing lost at all has a place too.
  EXPECT_THAT(sweep_picture(std::vector{row("rtn", 8, 8, 0)}), ::testing::Not(HasSubstr("nan")));
}

TEST(Task8_5_Sweep, MistakesAreFoundBeforeAnythingIsWritten) {
  TemporaryFolder folder;
  const auto refusal = [&](const std::function<void(SweepOptions&)>& change) {
    SweepOptions options = small_sweep(folder / "out");
    change(options);
    return error_of([&] { sweep({}, options); });
  };
  EXPECT_THAT(refusal([](SweepOptions& o) { o.group_sizes = {16, 36}; }), HasSubstr("groups of 36"));
  EXPECT_THAT(refusal([](SweepOptions& o) { o.methods = {"rtn", "wanda"}; }), HasSubstr("wanda"));
  EXPECT_THAT(refusal([](SweepOptions& o) { o.bits = {}; }), HasSubstr("expected bits"));
  EXPECT_THAT(refusal([](SweepOptions& o) { o.texts = {}; }), HasSubstr("calibration"));
  EXPECT_THAT(refusal([](SweepOptions& o) { o.windows = {}; }), HasSubstr("judge"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  std::filesystem::create_directory(folder / "out");
  EXPECT_THAT(refusal([](SweepOptions&) {}), HasSubstr("is there already"));
}

// A search over twenty factors takes longer than a pass over the same texts, and has copies of a weight; only GPTQ inverts H.
TEST(Task8_5_Estimate, CountsWhatEachMethodDoes) {
  const DecoderSpec spec = load_decoder_spec(tinyworld());
  const auto of = [&](const std::string& method, const std::string& scheme, int64_t samples = 2) {
    return estimate_quantize(options_of("unused", recipe(method, scheme), samples), spec);
  };
  const QuantizeEstimate rtn = of("rtn", "\"W4A16\""), is_static = of("rtn", "\"FP8\""),
                         gptq = of("gptq", "\"W4A16\""), awq = of("awq", "\"W4A16\"");
  EXPECT_GT(rtn.operations, 0);
  EXPECT_GT(is_static.operations, rtn.operations);
  EXPECT_GT(gptq.operations, is_static.operations);
  EXPECT_GT(awq.operations, is_static.operations);
  EXPECT_GT(awq.memory_bytes, is_static.memory_bytes);
  EXPECT_GT(is_static.memory_bytes, rtn.memory_bytes);
  // 56 linears of 21 + 11 products each with the rows of the texts.
  double search = 0;
  for (const auto& [n, k, count] :
       {std::tuple{512, 256, 1}, {256, 256, 2}, {256, 512, 1}, {640, 256, 2}, {256, 640, 1}})
    search += 8.0 * 32 * n * k * count * 120;
  EXPECT_NEAR(awq.operations - is_static.operations, search, 1e-9 * search);
}

struct Stopped {};

// By GPTQ, by methods that change norms too, and by those that leave dense weights or two of four codes.
class Task8_5_Resume : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(
    Methods, Task8_5_Resume,
    ::testing::Values(
        R"({"method": "gptq", "scheme": {"weights": {"num_bits": 3, "type": "int", "group_size": 16}}})",
        R"({"method": "awq", "scheme": "W8A8"})",
        R"({"method": "sparsegpt"}, {"method": "rtn", "scheme": "W8A8", "targets": ["re:.*down_proj"]})"),
    [](const auto& info) { return info.index == 0   ? "Gptq"
                                  : info.index == 1 ? "Awq"
                                                    : "SparseGpt"; });

TEST_P(Task8_5_Resume, GoesOnWhereItWasStoppedWithTheSameBytes) {
  TemporaryFolder folder;
  const std::string stages = fmt::format(R"({{"stages": [{}]}})", GetParam());
  quantize({}, small_options_of(folder / "whole", stages));
  QuantizeOptions options = small_options_of(folder / "out", stages);
  options.progress = [](int64_t done, int64_t) {
    if (done == 1) throw Stopped();
  };
  EXPECT_THROW(quantize({}, options), Stopped);
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  options.progress = nullptr;
  const QuantizeReport report = quantize({}, options);
  EXPECT_EQ(report.resumed_layers, 1);
  EXPECT_EQ(report.linears.size(), 14u);
  EXPECT_TRUE(files_of(folder / "out") == files_of(folder / "whole"));
}

TEST(Task8_5_ResumeKey, AnotherStartsOver) {
  TemporaryFolder folder;
  QuantizeOptions options = small_options_of(folder / "out", recipe("gptq", kW4Channel));
  options.progress = [](int64_t done, int64_t) {
    if (done == 1) throw Stopped();
  };
  EXPECT_THROW(quantize({}, options), Stopped);
  std::string said;
  for (int change = 0; change < 2; ++change) {
    QuantizeOptions other = options;
    if (change == 0)
      other.recipe =
          parse_recipe(recipe("gptq", kW4Channel, ", \"damping\": 0.02"), "recipe.json", DType::f32);
    else
      other.texts[1][5] ^= 1;
    other.say = [&](const std::string& line) { said = line; };
    EXPECT_THROW(quantize({}, other), Stopped);
    EXPECT_THAT(said, HasSubstr("starting over")) << change;
    said.clear();
  }
}

// Stopped at once while it wrote the key, or while it removed the layers of another run: what is left is a folder of ours.
TEST(Task8_5_ResumeKey, OneThatIsHalfWrittenIsNobodysFolder) {
  TemporaryFolder folder;
  const QuantizeOptions options = small_options_of(folder / "out", recipe("gptq", kW4Channel));
  std::filesystem::create_directory(folder / "out.partial");
  testing::write_file(folder / "out.partial" / "key.json.writing", "{\"mod");
  quantize({}, options);
  EXPECT_TRUE(std::filesystem::exists(folder / "out" / "config.json"));

  const std::filesystem::path partial = folder / "other.partial";
  std::filesystem::create_directory(partial);
  testing::write_file(partial / "key.json", "another");
  testing::write_file(partial / "layer-00000.json", "{}");
  const FinishedLayers finished(partial, "ours");
  EXPECT_TRUE(finished.started_over());
  EXPECT_FALSE(finished.has(0));
  EXPECT_EQ(read_text_file(partial / "key.json"), "ours");
}

}  // namespace
}  // namespace ladder
