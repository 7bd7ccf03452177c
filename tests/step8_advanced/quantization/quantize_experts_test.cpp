// Task 8.5: models whose layers have experts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/json.h"
#include "step7_parallel/expert/expert_parallel.h"
#include "step8_advanced/quantization/algorithms/awq.h"
#include "step8_advanced/quantization/algorithms/gptq.h"
#include "step8_advanced/quantization/algorithms/hessian.h"
#include "step8_advanced/quantization/algorithms/sparse.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"
#include "step8_advanced/quantization/numbers/packing.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"
#include "step8_advanced/quantization/quantizer/evaluate.h"
#include "step8_advanced/quantization/quantizer/quantize.h"
#include "step8_advanced/quantization/quantizer/smooth_layer.h"
#include "tests/support/model_session.h"
#include "tests/support/reference_model.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

std::filesystem::path golden(const std::string& name) {
  return testing::source_folder() / "tests" / "goldens" / name;
}

// Groups of four divide the widths of all these small experts.
const std::string kInt4 = R"("scheme": {"weights": {"num_bits": 4, "type": "int", "group_size": 4}})";

std::string recipe(const std::string& stages) {
  return fmt::format(R"({{"stages": [{}]}})", stages);
}

// Enough tokens that all experts get some.
std::vector<TokenIds> long_texts() {
  std::vector<TokenIds> texts(3);
  for (size_t text = 0; text < texts.size(); ++text)
    for (int32_t i = 0; i < 20; ++i)
      texts[text].push_back((7 + 31 * static_cast<int32_t>(text) + i * (i + 5)) % 131);
  return texts;
}

QuantizeOptions options_of(const std::string& model, const std::filesystem::path& output,
                           const std::string& stages, std::vector<TokenIds> texts = long_texts()) {
  QuantizeOptions options;
  options.model = golden(model);
  options.output = output;
  options.recipe = parse_recipe(recipe(stages), "recipe.json", DType::f32);
  if (options.recipe.needs_calibration()) options.texts = std::move(texts);
  return options;
}

std::unique_ptr<Model> load(const std::filesystem::path& folder, const OpContext& ctx = {},
                            const decltype(ModelMakers::mlp)& mlp = {}) {
  ModelOptions options;
  options.makers.linear_method = make_quantized_linear_methods();
  options.makers.mlp = mlp;
  return load_model(ctx, folder, load_decoder_spec(folder), options);
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<CheckpointLinear> linears_of(const std::string& model) {
  return find_linears(Checkpoint(golden(model)), load_decoder_spec(golden(model)));
}

std::vector<CheckpointLinear> of_first_layer(std::vector<CheckpointLinear> linears) {
  std::erase_if(linears, [](const CheckpointLinear& linear) { return linear.layer != 0; });
  return linears;
}

TEST(Task8_5_Experts, AreCalledAsTheCheckpointCallsThem) {
  const auto names = [](const std::string& model) {
    std::map<std::string, CheckpointLinear> all;
    for (const CheckpointLinear& linear : linears_of(model)) all[linear.name] = linear;
    return all;
  };
  auto qwen = names("qwen2_moe_shared");
  EXPECT_EQ(qwen.size(), 2u * (4 + 6 * 3 + 3 + 2) + 1u);  // and the head
  const CheckpointLinear& up = qwen.at("model.layers.1.mlp.experts.3.up_proj");
  EXPECT_EQ(up.linear, "layers.1.experts.gate_up");
  EXPECT_EQ(up.expert, 3);
  EXPECT_EQ(up.part, 7);
  EXPECT_EQ(up.n, 20);
  EXPECT_EQ(qwen.at("model.layers.1.mlp.experts.5.down_proj").expert, 5);
  EXPECT_EQ(qwen.at("model.layers.0.mlp.shared_expert.down_proj").expert, -1);
  for (const auto& [name, linear] : qwen) EXPECT_EQ(linear.is_router, name.ends_with("gate")) << name;
  const auto mixtral = names("mixtral_top2");
  EXPECT_EQ(mixtral.at("model.layers.0.block_sparse_moe.experts.2.w3").part, 5);
  EXPECT_EQ(mixtral.at("model.layers.0.block_sparse_moe.experts.2.w2").linear, "layers.0.experts.down");
  EXPECT_TRUE(mixtral.at("model.layers.0.block_sparse_moe.gate").is_router);
  // Layers with experts beside layers without.
  const auto some = names("qwen2_moe_some_layers");
  EXPECT_EQ(some.at("model.layers.0.mlp.up_proj").expert, -1);
  EXPECT_EQ(some.at("model.layers.1.mlp.experts.4.up_proj").expert, 4);
}

TEST(Task8_5_Experts, PatternsNameThemAndNeverARouter) {
  const auto assigned = [](const std::string& stages) {
    std::vector<CheckpointLinear> linears = linears_of("qwen2_moe_shared");
    assign_stages(parse_recipe(recipe(stages), "recipe.json", DType::f32), linears);
    return linears;
  };
  const std::string rtn = R"({"method": "rtn", )" + kInt4;
  for (const CheckpointLinear& linear :
       assigned(rtn + R"(, "targets": ["re:.*mlp.experts[.].*"]}, )" + rtn +
                R"(, "ignore": ["re:.*mlp.experts.*", "re:.*mlp.gate$", "lm_head"]})"))
    EXPECT_EQ(linear.stage, linear.is_router || linear.is_head ? -1
                            : linear.expert >= 0               ? 0
                                                               : 1)
        << linear.name;
  EXPECT_THAT(error_of([&] { assigned(rtn + R"(, "targets": ["re:.*mlp.gate$"]})"); }),
              HasSubstr("re:.*mlp.gate$"));
  // What the engine cannot read back is not written.
  EXPECT_THAT(error_of([&] { assigned(rtn + R"(, "targets": ["re:.*experts.3.(gate|up)_proj"]})"); }),
              HasSubstr("model.layers.0.mlp.experts.3.gate_proj"));
  EXPECT_THAT(error_of([&] { assigned(R"({"method": "gptq", "actorder": "group", )" + kInt4 + "}"); }),
              HasSubstr("each expert has an order of its own"));
  EXPECT_NO_THROW(
      assigned(R"({"method": "gptq", "actorder": "group", "ignore": ["re:.*experts.*"], )" + kInt4 + "}"));
}

// The numbers that the file's four-bit codes stand for, decoded here.
void write_decoded(const std::filesystem::path& from, const std::filesystem::path& to) {
  const Checkpoint checkpoint(from);
  testing::NamedTensors tensors;
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    const std::string& name = entry.info->name;
    if (name.ends_with(".weight_scale") || name.ends_with(".weight_shape")) continue;
    if (!name.ends_with(".weight_packed")) {
      tensors.emplace_back(name, entry.tensor().clone());
      continue;
    }
    const std::string linear = name.substr(0, name.rfind('.'));
    const Tensor scales = checkpoint.find(linear + ".weight_scale")->tensor();
    const int64_t n = scales.dim(0), groups = scales.dim(1), k = 4 * groups;
    const Tensor codes = unpack_rows(entry.tensor(), 4, k, name);
    const Tensor weight = Tensor::empty({n, k}, DType::f32);
    for (int64_t i = 0; i < n * k; ++i)
      weight.data<float>()[i] = scales.data<float>()[i / 4] * (codes.data<uint8_t>()[i] - 8.0f);
    tensors.emplace_back(linear + ".weight", weight);
  }
  std::filesystem::create_directory(to);
  testing::write_safetensors(to / "model.safetensors", tensors);
  Json config = load_json(from / "config.json");
  config.erase("quantization_config");
  testing::write_file(to / "config.json", config.dump());
}

struct Case {
  const char* name;
  const char* model;
  std::string stages;
};
class Task8_5_ExpertFiles : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    All, Task8_5_ExpertFiles,
    ::testing::Values(Case{"Qwen3Rtn", "qwen3_moe_normed", R"({"method": "rtn", )" + kInt4 + "}"},
                      Case{"Qwen3Gptq", "qwen3_moe_normed", R"({"method": "gptq", )" + kInt4 + "}"},
                      Case{"Qwen2Awq", "qwen2_moe_shared", R"({"method": "awq", )" + kInt4 + "}"},
                      Case{"Qwen2SomeGptq", "qwen2_moe_some_layers", R"({"method": "gptq", )" + kInt4 + "}"},
                      Case{"MixtralSparse", "mixtral_top2", R"({"method": "sparsegpt", )" + kInt4 + "}"},
                      Case{"MixtralWandaAwq", "mixtral_top2",
                           R"({"method": "wanda", "targets": ["re:.*w[13]"]}, {"method": "awq", )" + kInt4 +
                               "}"}),
    [](const auto& info) { return std::string(info.param.name); });

// On one rank, and on two that have a part of each expert or some of them whole: what the file says, in double precision.
TEST_P(Task8_5_ExpertFiles, ComputeWhatTheRoundedWeightsDo) {
  TemporaryFolder folder;
  const QuantizeOptions options = options_of(GetParam().model, folder / "out", GetParam().stages);
  const QuantizeReport report = quantize({}, options);
  const std::vector<CheckpointLinear> linears = linears_of(GetParam().model);
  EXPECT_EQ(report.linears.size(), static_cast<size_t>(std::count_if(
                                       linears.begin(), linears.end(), [](const CheckpointLinear& linear) {
                                         return !linear.is_router && !linear.is_head;
                                       })));
  const Checkpoint after(folder / "out");
  const auto ignore = load_json(folder / "out" / "config.json")
                          .at("quantization_config")
                          .at("ignore")
                          .get<std::vector<std::string>>();
  for (const CheckpointLinear& linear : linears) {
    const bool is_dense = linear.is_router || linear.is_head;
    EXPECT_EQ(after.find(linear.name + ".weight") != nullptr, is_dense) << linear.name;
    EXPECT_EQ(after.find(linear.name + ".weight_packed") != nullptr, !is_dense) << linear.name;
    EXPECT_EQ(std::count(ignore.begin(), ignore.end(), linear.name), is_dense ? 1 : 0) << linear.name;
  }

  write_decoded(folder / "out", folder / "decoded");
  const testing::ReferenceModel reference(folder / "decoded");
  const TokenIds text = {3, 1, 4, 1, 5, 9, 2, 6, 53, 58, 97, 93};
  std::vector<double> expected;
  for (const auto& row : reference.logits(text)) expected.insert(expected.end(), row.begin(), row.end());
  ASSERT_GT(reference.narrowest_choice(), 1e-4)
      << "another text, whose experts are chosen by more than rounding";
  const int64_t columns = reference.spec().vocab_size;
  const auto logits = [&](const Model& model, const OpContext& ctx) {
    return testing::ModelSession(const_cast<Model&>(model), ctx).step({{0, text}});
  };
  EXPECT_TRUE(
      testing::close_to(testing::to_double(logits(*load(folder / "out"), {})), expected, columns, 1e-4));
  for (const auto& mlp : {decltype(ModelMakers::mlp){}, decltype(ModelMakers::mlp){make_expert_parallel_mlp}})
    run_ranks(2, [&](int rank, const ParallelContext& parallel) {
      OpContext ctx;
      ctx.parallel = &parallel;
      const auto model = load(folder / "out", ctx, mlp);
      const Tensor of_ranks = logits(*model, ctx);
      if (rank != 0) return;
      EXPECT_TRUE(testing::close_to(testing::to_double(of_ranks), expected, columns, 1e-4));
    });
}

// Schemes that round activations too, and NVFP4, whose G an expert's gate and up share: near the model they were made of.
TEST(Task8_5_Experts, OtherSchemesLoadAndStayNear) {
  // The largest KL divergence x 1000 that is accepted, about twice what was measured: these random models are sharp.
  for (const auto& [name, limit] :
       {std::pair{std::string("W8A8"), 15.0}, {"FP8", 150}, {"FP8_DYNAMIC", 140}, {"NVFP4A16", 60}}) {
    SCOPED_TRACE(name);
    TemporaryFolder folder;
    // Sixteen do not divide the width of down.
    const std::string targets = name == "NVFP4A16" ? R"(, "targets": ["re:.*experts.*(gate|up)_proj"])" : "";
    const QuantizeOptions options =
        options_of("qwen3_moe_normed", folder / "out",
                   fmt::format(R"({{"method": "rtn", "scheme": "{}"{}}})", name, targets));
    quantize({}, options);
    const auto model = load(folder / "out"), base = load(options.model);
    const auto clusters = evaluate({}, *model, base.get(), cut_windows(long_texts(), 64), {});
    const double kl = 1000 * estimate(clusters, [](const ClusterSums& sums) { return sums.kl; }).mean;
    EXPECT_GT(kl, 0);
    EXPECT_LT(kl, limit);
    if (name != "NVFP4A16") continue;
    const Checkpoint checkpoint(folder / "out");
    const auto global = [&](int expert, const char* part) {
      const std::string tensor =
          fmt::format("model.layers.0.mlp.experts.{}.{}_proj.weight_global_scale", expert, part);
      return checkpoint.find(tensor)->tensor().data<float>()[0];
    };
    EXPECT_EQ(global(0, "gate"), global(0, "up"));
    EXPECT_NE(global(0, "gate"), global(1, "gate"));
  }
}

// What the experts of a layer get, by hand: the norm's output for all tokens (the shared expert's input), and the router's choice.
class Routed {
 public:
  Routed(WatchedLayer& layer, const DecoderSpec& spec, const std::vector<TokenIds>& texts) {
    std::vector<Tensor> inputs;
    WatchedLinear* shared = nullptr;
    for (const auto& linear : layer.linears())
      if (linear->name.ends_with(".shared_expert.gate_up_proj")) shared = linear.get();
    shared->on_input = [&](const Tensor& x) { inputs.push_back(x.clone()); };
    for (const TokenIds& text : texts) layer.watch(text, {});
    shared->on_input = nullptr;
    const Tensor router = layer.norms()[1].routers[0].weight;
    rows_.resize(static_cast<size_t>(spec.experts.num_experts));
    for (const Tensor& x : inputs)
      for (int64_t token = 0; token < x.dim(0); ++token) {
        all_rows_.push_back(x.narrow(0, token, 1));
        std::vector<std::pair<double, size_t>> scores;
        for (size_t expert = 0; expert < rows_.size(); ++expert) {
          double sum = 0;
          for (int64_t i = 0; i < x.dim(1); ++i)
            sum += static_cast<double>(x.data<float>()[token * x.stride(0) + i]) *
                   router.data<float>()[static_cast<int64_t>(expert) * x.dim(1) + i];
          scores.emplace_back(-sum, expert);
        }
        std::sort(scores.begin(), scores.end());
        for (int64_t j = 0; j < spec.experts.rule.top_k; ++j)
          rows_[scores[static_cast<size_t>(j)].second].push_back(x.narrow(0, token, 1));
      }
  }
  // -1: of the shared expert.
  const std::vector<Tensor>& rows(int64_t expert) const {
    return expert < 0 ? all_rows_ : rows_[static_cast<size_t>(expert)];
  }

 private:
  std::vector<std::vector<Tensor>> rows_;
  std::vector<Tensor> all_rows_;
};

const std::string kExpertsGateUp = R"("targets": ["re:.*mlp.experts.*(gate|up)_proj"], )";

TEST(Task8_5_Experts, AreCalibratedOnTheTokensThatTheirRouterSendsThem) {
  const QuantizeOptions options =
      options_of("qwen2_moe_shared", "unused", R"({"method": "gptq", )" + kExpertsGateUp + kInt4 + "}");
  const DecoderSpec spec = load_decoder_spec(options.model);
  std::vector<CheckpointLinear> linears = linears_of("qwen2_moe_shared");
  assign_stages(options.recipe, linears);
  WatchedLayer layer({}, options.model, spec, 0, 64);
  const Routed routed(layer, spec, options.texts);
  std::map<std::string, Tensor> expected;
  QuantizationArgs args = options.recipe.stages[0].linear->scheme.weights;
  for (const auto& linear : layer.linears()) {
    if (!linear->name.ends_with(".experts.gate_up")) continue;
    ASSERT_GT(routed.rows(linear->expert).size(), 3u) << linear->expert;
    ASSERT_LT(routed.rows(linear->expert).size(), 60u) << "not all of the tokens";
    Hessian hessian(linear->k(), "expected");
    for (const Tensor& row : routed.rows(linear->expert)) hessian.add(row);
    for (const WatchedPart& part : linear->parts)
      expected[part.name] = dequantize(gptq(part.weight, hessian.matrix(), args, part.name).weight);
  }
  const FinishedLayer finished =
      quantize_layer(layer, options.recipe, of_first_layer(linears), options.texts, std::vector<Tensor>(3));
  ASSERT_EQ(finished.linears.size(), 12u);
  for (const FinishedLinear& one : finished.linears) {
    EXPECT_TRUE(testing::bitwise_equal(one.values(), expected.at(one.report.name))) << one.report.name;
    EXPECT_FALSE(one.report.unreached);
  }
}

// AWQ's factors for the norm that feeds them all, with the rows by hand: those of an expert, and all for the shared one.
void expect_factors_of_all_readers(const std::vector<TokenIds>& texts) {
  const QuantizeOptions options = options_of(
      "qwen2_moe_shared", "unused", R"({"method": "awq", "targets": ["re:.*mlp.*"], )" + kInt4 + "}", texts);
  const DecoderSpec spec = load_decoder_spec(options.model);
  std::vector<CheckpointLinear> linears = linears_of("qwen2_moe_shared");
  assign_stages(options.recipe, linears);
  const QuantizationArgs& args = options.recipe.stages[0].linear->scheme.weights;
  WatchedLayer layer({}, options.model, spec, 0, 64);
  const Routed routed(layer, spec, texts);
  std::vector<std::pair<Tensor, std::vector<Tensor>>> readers;  // inputs and weights
  std::vector<Tensor> all_weights;
  Hessian all_inputs(spec.hidden_size, "expected");
  for (const auto& linear : layer.linears()) {
    if (!linear->name.ends_with("gate_up") && !linear->name.ends_with("gate_up_proj")) continue;
    const std::vector<Tensor>& rows = routed.rows(linear->expert);
    std::vector<Tensor> weights;
    for (const WatchedPart& part : linear->parts) weights.push_back(part.weight);
    all_weights.insert(all_weights.end(), weights.begin(), weights.end());
    if (rows.empty()) continue;
    const Tensor x = Tensor::empty({std::ssize(rows), spec.hidden_size}, DType::f32);
    for (int64_t i = 0; i < x.dim(0); ++i) x.narrow(0, i, 1).copy_from(rows[static_cast<size_t>(i)]);
    all_inputs.add(x);
    readers.emplace_back(x, weights);
  }
  const AwqScales expected =
      search_awq_scales(all_inputs.mean_abs(), all_weights, args, "expected", [&](const Tensor& scales) {
        double sum = 0;
        for (const auto& [x, weights] : readers)
          sum += static_cast<double>(x.dim(0)) * awq_error(x, weights, args, scales, "expected");
        return sum;
      });
  const Tensor before = layer.norms()[1].gain.clone();
  smooth_layer(layer, options.recipe, of_first_layer(linears), texts, std::vector<Tensor>(texts.size()));
  for (int64_t i = 0; i < before.numel(); ++i) {
    const float found = layer.norms()[1].gain.data<float>()[i];
    EXPECT_NEAR(found, before.data<float>()[i] / expected.scales.data<float>()[i], 1e-4 * std::abs(found))
        << i;
  }
}

// Of few tokens, so that experts are asked unequally often.
TEST(Task8_5_Experts, AwqJudgesEachByTheTokensThatItsRouterSendsIt) {
  for (const int32_t first : {3, 9, 10, 11}) {
    TokenIds text;
    for (int32_t i = 0; i < 5; ++i) text.push_back((11 * first + i * (i + first)) % 131);
    SCOPED_TRACE(fmt::format("{}", fmt::join(text, ", ")));
    expect_factors_of_all_readers({text});
  }
}

// Two tokens ask three of six experts each. By this stage alone, for the gates and ups of a layer's experts.
void expect_rounding_to_nearest_without_tokens(const std::string& stages) {
  SCOPED_TRACE(stages);
  const std::vector<TokenIds> texts = {{17, 4}};
  const DecoderSpec spec = load_decoder_spec(golden("qwen2_moe_shared"));
  const QuantizeOptions options = options_of("qwen2_moe_shared", "unused", stages, texts);
  const RecipeStage& stage = options.recipe.stages[0];
  std::vector<CheckpointLinear> linears = linears_of("qwen2_moe_shared");
  assign_stages(options.recipe, linears);
  WatchedLayer layer({}, options.model, spec, 0, 2);
  const Routed routed(layer, spec, texts);
  int64_t reached = 0;
  float largest_input = 0;
  for (int64_t expert = 0; expert < 6; ++expert) {
    reached += routed.rows(expert).empty() ? 0 : 1;
    for (const Tensor& row : routed.rows(expert))
      largest_input = std::max(largest_input, largest_absolute(row));
  }
  ASSERT_GE(reached, 3);
  ASSERT_LT(reached, 6);
  std::map<std::string, Tensor> weights;
  std::map<std::string, int64_t> experts;
  for (const auto& linear : layer.linears())
    for (const WatchedPart& part : linear->parts) {
      weights[part.name] = part.weight.clone();
      experts[part.name] = linear->expert;
    }
  const FinishedLayer finished =
      quantize_layer(layer, options.recipe, of_first_layer(linears), texts, std::vector<Tensor>(1));
  ASSERT_EQ(finished.linears.size(), 12u);
  for (const FinishedLinear& one : finished.linears) {
    const std::string& name = one.report.name;
    SCOPED_TRACE(name);
    const bool unreached = routed.rows(experts.at(name)).empty();
    EXPECT_EQ(one.report.unreached, unreached);
    EXPECT_EQ(one.report.calibrated, !unreached);
    EXPECT_EQ(more_than_two_of_four(one.values()).has_value(), !stage.prunes());
    if (!unreached) {
      EXPECT_EQ(one.report.method, method_name(stage.method));
      continue;
    }
    Tensor expected = weights.at(name);
    if (stage.prunes()) expected = prune_by_magnitude(expected, name);
    if (stage.rounds()) expected = dequantize(quantize_weight(expected, stage.linear->scheme.weights, name));
    EXPECT_TRUE(testing::bitwise_equal(one.values(), expected));
    EXPECT_THAT(one.report.method, HasSubstr(stage.prunes() ? "magnitude" : "rtn"));
    if (!stage.rounds() || !stage.linear->scheme.input_activations) continue;
    // As if it had got the largest input of its neighbours.
    EXPECT_EQ(one.linear.input_scale,
              make_grid(-largest_input, largest_input, *stage.linear->scheme.input_activations).scale);
  }
}

TEST(Task8_5_Experts, ThoseThatCalibrationDidNotReachAreRoundedToNearestAndNamed) {
  const std::string gptq = R"({"method": "gptq", )" + kExpertsGateUp + kInt4 + "}";
  expect_rounding_to_nearest_without_tokens(gptq);
  expect_rounding_to_nearest_without_tokens(R"({"method": "awq", )" + kExpertsGateUp + kInt4 + "}");
  expect_rounding_to_nearest_without_tokens(R"({"method": "sparsegpt", )" + kExpertsGateUp + kInt4 + "}");
  expect_rounding_to_nearest_without_tokens(
      R"({"method": "wanda", "targets": ["re:.*mlp.experts.*(gate|up)_proj"]})");

  TemporaryFolder folder;
  const QuantizeReport report = quantize({}, options_of("qwen2_moe_shared", folder / "out", gptq, {{17, 4}}));
  const Json json = load_json(folder / "out" / "quantize_report.json").at("linears");
  int named = 0;
  for (size_t i = 0; i < report.linears.size(); ++i) {
    EXPECT_EQ(json[i].value("unreached", false), report.linears[i].unreached);
    named += report.linears[i].unreached ? 1 : 0;
  }
  EXPECT_GT(named, 0);
  EXPECT_NO_THROW(load(folder / "out"));
}

TEST(Task8_5_Sequential, AnExpertWithoutTokensRoundsItsInputsAsItsNeighboursDo) {
  expect_rounding_to_nearest_without_tokens(R"({"method": "rtn", )" + kExpertsGateUp + R"("scheme": "FP8"})");
}

TEST(Task8_5_Sequential, AnExpertsErrorIsThatOfItsOwnTokens) {
  const QuantizeOptions options =
      options_of("qwen2_moe_shared", "unused", R"({"method": "rtn", )" + kExpertsGateUp + kInt4 + "}");
  const DecoderSpec spec = load_decoder_spec(options.model);
  std::vector<CheckpointLinear> linears = linears_of("qwen2_moe_shared");
  assign_stages(options.recipe, linears);
  WatchedLayer layer({}, options.model, spec, 0, 64), dense({}, options.model, spec, 0, 64);
  const Routed routed(layer, spec, long_texts());
  const auto finished =
      quantize_layer(layer, options.recipe, of_first_layer(linears), long_texts(), std::vector<Tensor>(3));
  size_t at = 0;
  for (const auto& linear : dense.linears()) {
    if (!linear->name.ends_with(".experts.gate_up")) continue;
    Hessian hessian(linear->k(), "expected");
    for (const Tensor& row : routed.rows(linear->expert)) hessian.add(row);
    for (const WatchedPart& part : linear->parts) {
      const FinishedLinear& one = finished.linears.at(at++);
      const double expected = layer_error(part.weight, one.values(), hessian.matrix());
      EXPECT_EQ(one.report.name, part.name);
      EXPECT_NEAR(one.report.error, expected, 1e-6 * expected);
    }
  }
  EXPECT_EQ(at, 12u);
}

double relative_error(const Tensor& a, const Tensor& b) {
  double error = 0, all = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double expected = b.data<float>()[i], off = a.data<float>()[i] - expected;
    error += off * off;
    all += expected * expected;
  }
  return std::sqrt(error / all);
}

// Router, shared expert and its gate read the same norm: one that is forgotten sees other numbers.
TEST(Task8_5_Experts, SmoothingAlonePreservesTheModel) {
  for (const char* model : {"qwen2_moe_shared", "mixtral_top2"})
    for (const std::string& stages :
         {R"({"method": "smoothquant", "smoothing_strength": 0.8}, {"method": "rtn", )" + kInt4 + "}",
          R"({"method": "awq", )" + kInt4 + "}"}) {
      SCOPED_TRACE(model + stages);
      const QuantizeOptions options = options_of(model, "unused", stages);
      const DecoderSpec spec = load_decoder_spec(options.model);
      std::vector<CheckpointLinear> linears = linears_of(model);
      assign_stages(options.recipe, linears);
      WatchedLayer layer({}, options.model, spec, 0, 64);
      const Tensor before = layer.run(options.texts[0], {});
      std::vector<Tensor> weights;
      for (const auto& linear : layer.linears()) weights.push_back(linear->parts[0].weight.clone());
      const Tensor router = layer.norms()[1].routers[0].weight.clone();
      const std::vector<NamedTensor> changed =
          smooth_layer(layer, options.recipe, of_first_layer(linears), options.texts, std::vector<Tensor>(3));
      const bool shares = spec.experts.shared_intermediate_size > 0;
      EXPECT_EQ(changed.size(), shares ? 4u : 3u);
      EXPECT_LT(relative_error(layer.run(options.texts[0], {}), before), 1e-5);
      EXPECT_GT(relative_error(layer.norms()[1].routers[0].weight, router), 0.01);
      for (size_t i = 0; i < weights.size(); ++i) {
        const WatchedLinear& linear = *layer.linears()[i];
        if (layer.norm_before(linear) == nullptr) continue;
        EXPECT_GT(relative_error(linear.parts[0].weight, weights[i]), 0.01) << linear.name;
      }
    }
}

TEST(Task8_5_Experts, HalfASmoothingIsRefused) {
  TemporaryFolder folder;
  const std::string rtn = R"({"method": "rtn", )" + kInt4 + "}";
  EXPECT_THAT(
      error_of([&] {
        quantize({}, options_of("qwen2_moe_shared", folder / "out",
                                R"({"method": "smoothquant", "targets": ["re:.*mlp.experts.*"]}, )" + rtn));
      }),
      ::testing::AllOf(HasSubstr("experts.0.gate_proj"), HasSubstr("shared_expert.gate_proj")));
  // AWQ that has not all readers of a norm leaves it as it is, and clips.
  const QuantizeOptions options = options_of(
      "qwen2_moe_shared", folder / "awq",
      R"({"method": "awq", "targets": ["re:.*experts.*(gate|up)_proj"], )" + kInt4 + "}", {{17, 4, 30, 9}});
  quantize({}, options);
  const std::string norm = "model.layers.0.post_attention_layernorm.weight";
  EXPECT_TRUE(testing::bitwise_equal(Checkpoint(folder / "awq").find(norm)->tensor(),
                                     Checkpoint(options.model).find(norm)->tensor()));
}

// Of methods that change routers, and where some experts have no tokens.
TEST(Task8_5_Experts, AStoppedRunGoesOnWithTheSameBytes) {
  struct Stopped {};
  for (const std::string& stages : {R"({"method": "smoothquant"}, {"method": "gptq", )" + kInt4 + "}",
                                    std::string(R"({"method": "rtn", "scheme": "FP8"})")}) {
    TemporaryFolder folder;
    const std::vector<TokenIds> texts = {{17, 4, 30}};
    quantize({}, options_of("qwen2_moe_shared", folder / "whole", stages, texts));
    QuantizeOptions options = options_of("qwen2_moe_shared", folder / "out", stages, texts);
    options.progress = [](int64_t done, int64_t) {
      if (done == 1) throw Stopped();
    };
    EXPECT_THROW(quantize({}, options), Stopped);
    options.progress = nullptr;
    EXPECT_EQ(quantize({}, options).resumed_layers, 1);
    for (const char* file : {"model.safetensors", "config.json", "quantize_report.json"})
      EXPECT_TRUE(read_text_file(folder / "out" / file) == read_text_file(folder / "whole" / file)) << file;
  }
}

}  // namespace
}  // namespace ladder
