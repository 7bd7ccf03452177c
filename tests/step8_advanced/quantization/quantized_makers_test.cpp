// Task 8.2: whole models with a quantization_config.
#include "step8_advanced/quantization/linear/quantized_makers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/json.h"
#include "step2_model/model.h"
#include "step4_runner/weight_bytes.h"
#include "step7_parallel/expert/expert_parallel.h"
#include "step8_advanced/quantization/linear/experts_method.h"
#include "tests/step8_advanced/quantization/stored_parts.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/model_session.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Random;

const std::filesystem::path kGoldens = testing::source_folder() / "tests/goldens";

using MlpMaker = decltype(ModelMakers::mlp);

std::unique_ptr<Model> load(const std::filesystem::path& folder, const OpContext& ctx = {},
                            LoadFormat format = LoadFormat::automatic, const MlpMaker& mlp = {}) {
  ModelOptions options;
  options.load_format = format;
  options.makers.linear_method = make_quantized_linear_methods(format);
  options.makers.mlp = mlp;
  return load_model(ctx, folder, load_decoder_spec(folder), options);
}

// What is counted before anything is loaded is what a rank has.
void expect_counted_weights(const Model& model, RunnerConfig config, int rank) {
  config.dtype = model.dtype();
  config.batch.max_model_len = model.spec().max_position_embeddings;
  config.linear_method = make_quantized_linear_methods();
  EXPECT_EQ(weight_bytes(model.spec(), config, {rank, 0}).total(), model.weight_bytes()) << "rank " << rank;
}

Tensor logits(Model& model, const OpContext& ctx = {}) {
  return testing::ModelSession(model, ctx).step({{0, {3, 1, 4, 1, 5, 9, 2, 6}}, {1, {7}}});
}

bool is_linear(const std::string& name) {
  for (const char* end : {"_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight"})
    if (name.ends_with(end)) return true;
  return false;
}

// The same for linears that share their input: q, k and v, and gate and up of a layer or of an expert.
std::string input_of(const std::string& name) {
  for (const char* end : {"o_proj.weight", "down_proj.weight", ".w2.weight"})
    if (name.ends_with(end)) return name;
  return name.substr(0, name.rfind('.', name.rfind('.') - 1));
}

// The width of experts, and the vocabulary of a head in codes, which some formats want in words of eight codes.
int64_t whole_words(int64_t size) {
  return (size + 7) / 8 * 8;
}

const std::string kHead = "lm_head.weight", kEmbedding = "model.embed_tokens.weight";

// With rows of random numbers behind the others.
Tensor with_more_rows(Random& random, const Tensor& table, int64_t rows) {
  const Tensor result = random.normal({rows, table.dim(1)}, DType::f32);
  result.rows(table.dim(0)).copy_from(table.to(DType::f32));
  return result;
}

// A golden checkpoint whose linears have random weights: in `quantized` stored so, under this quantization_config; in
// `dense` as the matrices that these stand for.
void write_twins(Random& random, const std::string& of, const StoredLinear& stored,
                 const Json& quantization_config, const testing::TemporaryFolder& quantized,
                 const testing::TemporaryFolder& dense, bool with_head = false) {
  const std::filesystem::path golden = kGoldens / of;
  const Checkpoint checkpoint(golden);
  const QuantizationArgs& args = stored.scheme.weights;
  testing::NamedTensors codes, matrices;
  std::map<std::string, std::vector<int32_t>> orders;  // of all linears with the same input
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    const std::string& name = entry.info->name;
    Tensor tensor = entry.tensor();
    if (with_head && name == kEmbedding) tensor = with_more_rows(random, tensor, whole_words(tensor.dim(0)));
    if (!is_linear(name) && !(with_head && name == kHead)) {
      codes.emplace_back(name, tensor);
      matrices.emplace_back(name, tensor);
      continue;
    }
    const int64_t n = whole_words(tensor.dim(0)), k = whole_words(tensor.dim(1));
    std::vector<int32_t>& order = orders[input_of(name)];
    if (args.actorder == ActivationOrder::group && order.empty())
      order = testing::random_order(random, k, args.group_size);
    const testing::StoredPart part = random_part(random, stored, n, k, order);
    const std::string linear = name.substr(0, name.size() - std::string("weight").size());
    for (const auto& [last, of_part] : part.tensors) codes.emplace_back(linear + last, of_part);
    matrices.emplace_back(name, Tensor::from<float>(part.dense, {n, k}));
  }
  testing::write_safetensors(quantized / "model.safetensors", codes);
  testing::write_safetensors(dense / "model.safetensors", matrices);
  Json config = load_json(golden / "config.json");
  if (config.contains("moe_intermediate_size"))
    config["moe_intermediate_size"] = whole_words(config["moe_intermediate_size"]);
  if (with_head) config["vocab_size"] = whole_words(config["vocab_size"]);
  testing::write_file(dense / "config.json", config.dump());
  config["quantization_config"] = quantization_config;
  testing::write_file(quantized / "config.json", config.dump());
}

struct Written {
  StoredLinear stored;
  Json config;
};

// As compressed-tensors writes it.
Json groups_config(const char* format, const Json& weights) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"ignore", {"lm_head", "re:.*gate$"}},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

std::vector<Written> written_formats() {
  std::vector<Written> all;
  const auto add = [&](StoredFormat format, int bits, int64_t group_size, bool symmetric,
                       const Json& config) {
    StoredLinear stored;
    stored.format = format;
    stored.scheme.weights.num_bits = bits;
    stored.scheme.weights.symmetric = symmetric;
    stored.scheme.weights.strategy = group_size > 0 ? ScaleStrategy::group : ScaleStrategy::channel;
    stored.scheme.weights.group_size = group_size;
    all.push_back({stored, config});
    return &all.back().stored;
  };
  add(StoredFormat::packed, 4, 8, true,
      groups_config(
          "pack-quantized",
          {{"num_bits", 4}, {"type", "int"}, {"symmetric", true}, {"strategy", "group"}, {"group_size", 8}}));
  add(StoredFormat::plain, 8, 0, true,
      groups_config("float-quantized",
                    {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", "channel"}}))
      ->scheme.weights.is_float = true;
  add(StoredFormat::gptq, 4, 8, false,
      {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 8}, {"sym", false}, {"desc_act", true}})
      ->scheme.weights.actorder = ActivationOrder::group;
  add(StoredFormat::gptq, 8, -1, true,
      {{"quant_method", "gptq"}, {"bits", 8}, {"group_size", -1}, {"desc_act", false}, {"lm_head", false}});
  add(StoredFormat::awq, 4, 8, false,
      {{"quant_method", "awq"},
       {"bits", 4},
       {"group_size", 8},
       {"zero_point", true},
       {"version", "gemm"},
       {"modules_to_not_convert", {"lm_head"}}});
  return all;
}

// Every format, on one rank and on two; `mlps`: how the two may share out a layer's MLP.
void expect_what_dense_twins_compute(const std::string& golden, const std::vector<MlpMaker>& mlps) {
  Random random;
  SCOPED_TRACE(golden + ", " + random.describe());
  // Random codes of 8 bits are large numbers. Without norms of q and k attention is so sharp then that f32's own errors pass
  // the bound.
  const bool takes_large_weights = golden.starts_with("qwen3");
  for (const Written& written : written_formats()) {
    if (written.stored.scheme.weights.num_bits == 8 && !takes_large_weights) continue;
    SCOPED_TRACE(testing::describe(written.stored));
    const testing::TemporaryFolder quantized, dense;
    write_twins(random, golden, written.stored, written.config, quantized, dense);
    const Tensor expected = logits(*load(dense.path()));
    const auto columns = expected.dim(1);
    const auto model = load(quantized.path());
    expect_counted_weights(*model, {}, 0);
    EXPECT_TRUE(
        testing::close_to(testing::to_double(logits(*model)), testing::to_double(expected), columns, 1e-4));
    for (const MlpMaker& mlp : mlps)
      run_ranks(2, [&](int rank, const ParallelContext& parallel) {
        OpContext ctx;
        ctx.parallel = &parallel;
        const auto model = load(quantized.path(), ctx, LoadFormat::automatic, mlp);
        RunnerConfig two_ranks;
        two_ranks.tensor_parallel_size = 2;
        two_ranks.expert_parallel = static_cast<bool>(mlp);
        expect_counted_weights(*model, two_ranks, rank);
        const Tensor of_ranks = logits(*model, ctx);
        if (rank != 0) return;
        EXPECT_TRUE(
            testing::close_to(testing::to_double(of_ranks), testing::to_double(expected), columns, 1e-4));
      });
  }
}

TEST(Task8_2_Makers, AQuantizedModelComputesWhatItsDenseTwinDoes) {
  expect_what_dense_twins_compute("qwen3_untied", {{}});
}

// Experts too, and shared ones: with a part of each on two ranks, or some of them whole.
TEST(Task8_2_Makers, QuantizedExpertsComputeWhatTheirDenseTwinsDo) {
  for (const char* golden : {"qwen3_moe_normed", "qwen2_moe_shared", "mixtral_top2"})
    expect_what_dense_twins_compute(golden, {{}, make_expert_parallel_mlp});
}

// As on a GPU: all experts in one call.
TEST(Task8_2_Makers, ExpertsThatRunTogetherComputeWhatTheirPartsDo) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const Written& written : written_formats()) {
    SCOPED_TRACE(testing::describe(written.stored));
    const testing::TemporaryFolder quantized, dense;
    write_twins(random, "qwen2_moe_shared", written.stored, written.config, quantized, dense);
    ModelOptions together;
    together.makers.linear_method = [make = make_quantized_linear_methods()](
                                        const OpContext& ctx,
                                        const NamedLinear& linear) -> std::shared_ptr<const LinearMethod> {
      auto method = make(ctx, linear);
      if (linear.name.ends_with(".experts.gate_up")) return experts_linear_method(std::move(method), 2);
      if (linear.name.ends_with(".experts.down")) return experts_linear_method(std::move(method), 1);
      return method;
    };
    const auto model = load_model({}, quantized.path(), load_decoder_spec(quantized.path()), together);
    EXPECT_TRUE(testing::bitwise_equal(logits(*model), logits(*load(quantized.path()))));
  }
}

// Of the files that other programs wrote: and those of four bits take less than a third of the same in bf16.
TEST(Task8_2_Makers, WeightsAreCountedAsTheyAreStored) {
  for (const std::string& name : testing::golden_names(kGoldens / "quantized")) {
    SCOPED_TRACE(name);
    const auto model = load(kGoldens / "quantized" / name);
    expect_counted_weights(*model, {}, 0);
  }
  const DecoderSpec spec = load_decoder_spec(kGoldens / "quantized/gptq_w4_g128_sym");
  RunnerConfig config;
  config.dtype = DType::bf16;
  const int64_t dense = weight_bytes(spec, config, {}).whole;
  config.linear_method = make_quantized_linear_methods();
  const int64_t linears = dense - spec.vocab_size * spec.hidden_size * 2;
  EXPECT_LT(linears - (dense - weight_bytes(spec, config, {}).whole), linears / 3);
}

TEST(Task8_2_Makers, AModelWithoutAConfigStaysDense) {
  const std::filesystem::path folder = kGoldens / "qwen3_untied";
  const auto plain = load_model({}, folder, load_decoder_spec(folder), {});
  EXPECT_TRUE(testing::bitwise_equal(logits(*load(folder)), logits(*plain)));
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// What making a model of a golden checkpoint's shape with this quantization_config says.
std::string error_with(const std::string& golden, const Json& quantization_config) {
  const testing::TemporaryFolder folder;
  Json config = load_json(kGoldens / golden / "config.json");
  config["quantization_config"] = quantization_config;
  testing::write_file(folder / "config.json", config.dump());
  return error_of([&] { load(folder.path(), {}, LoadFormat::dummy); });
}

Json int8_config(const Json& ignore) {
  Json config = groups_config(
      "int-quantized", {{"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "channel"}});
  config["ignore"] = ignore;
  return config;
}

// As the programs that quantize a head too write it.
Json with_head(Json config) {
  config.erase("modules_to_not_convert");
  if (config.contains("ignore"))
    config["ignore"] = {"re:.*gate$"};
  else
    config["lm_head"] = true;
  return config;
}

// On two ranks each of them has 68 rows of 136: eight and a half words of codes.
TEST(Task8_2_Makers, AQuantizedHeadComputesWhatItsDenseTwinDoes) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const Written& written : written_formats()) {
    SCOPED_TRACE(testing::describe(written.stored));
    const testing::TemporaryFolder quantized, dense;
    write_twins(random, "qwen3_untied", written.stored, with_head(written.config), quantized, dense, true);
    const Tensor expected = logits(*load(dense.path()));
    const auto columns = expected.dim(1);
    ASSERT_EQ(columns, 136);
    const auto model = load(quantized.path());
    expect_counted_weights(*model, {}, 0);
    EXPECT_TRUE(
        testing::close_to(testing::to_double(logits(*model)), testing::to_double(expected), columns, 1e-4));
    run_ranks(2, [&](int rank, const ParallelContext& parallel) {
      OpContext ctx;
      ctx.parallel = &parallel;
      const auto of_rank = load(quantized.path(), ctx);
      RunnerConfig two_ranks;
      two_ranks.tensor_parallel_size = 2;
      expect_counted_weights(*of_rank, two_ranks, rank);
      const Tensor of_ranks = logits(*of_rank, ctx);
      if (rank != 0) return;
      EXPECT_TRUE(
          testing::close_to(testing::to_double(of_ranks), testing::to_double(expected), columns, 1e-4));
    });
  }
}

// Of a pipeline the last stage alone has a head, and the first one does not take its codes for somebody else's.
TEST(Task8_2_Makers, AStageWithoutAHeadLeavesItsCodes) {
  const std::filesystem::path folder = kGoldens / "quantized" / "ct_w8a16_with_head";
  ModelOptions options;
  options.makers.linear_method = make_quantized_linear_methods();
  options.layer_end = 1;
  EXPECT_NO_THROW(load_model({}, folder, load_decoder_spec(folder), options));
}

// A tied head is the embedding's table, so codes of its own are in nobody's place.
TEST(Task8_2_Makers, CodesOfATiedHeadAreRefusedByName) {
  const testing::TemporaryFolder folder;
  const std::filesystem::path golden = kGoldens / "quantized" / "ct_w8a16_with_head";
  std::filesystem::copy_file(golden / "model.safetensors", folder / "model.safetensors");
  Json config = load_json(golden / "config.json");
  config["tie_word_embeddings"] = true;
  testing::write_file(folder / "config.json", config.dump());
  EXPECT_THAT(error_of([&] { load(folder.path()); }), HasSubstr("unexpected: \"lm_head.weight_"));
}

TEST(Task8_2_Makers, ExpertsThatAreStoredDifferentlyAreRefusedByName) {
  EXPECT_THAT(
      error_with("qwen3_moe_normed", int8_config({"lm_head", "model.layers.1.mlp.experts.5.up_proj"})),
      HasSubstr("model.layers.1.mlp.experts.5.up_proj"));
}

// Codes of a router are in nobody's place.
TEST(Task8_2_Makers, AQuantizedRouterIsRefusedByName) {
  Random random;
  SCOPED_TRACE(random.describe());
  const testing::TemporaryFolder quantized, dense;
  const Written packed = written_formats()[0];
  write_twins(random, "qwen3_moe_normed", packed.stored, packed.config, quantized, dense);
  testing::NamedTensors tensors;
  {
    const Checkpoint checkpoint(quantized.path());
    for (const Checkpoint::Entry& entry : checkpoint.entries())
      if (entry.info->name == "model.layers.0.mlp.gate.weight")
        tensors.emplace_back("model.layers.0.mlp.gate.weight_packed", Tensor::zeros({8, 6}, DType::i32));
      else
        tensors.emplace_back(entry.info->name, entry.tensor().clone());
  }
  testing::write_safetensors(quantized / "model.safetensors", tensors);
  EXPECT_THAT(error_of([&] { load(quantized.path()); }),
              AllOf(HasSubstr("model.layers.0.mlp.gate.weight"),
                    HasSubstr("unexpected: \"model.layers.0.mlp.gate.weight_packed\"")));
}

TEST(Task8_2_Makers, PartsThatAreStoredDifferentlyAreRefusedByName) {
  EXPECT_THAT(
      error_with("qwen3_untied", int8_config({"lm_head", "model.layers.1.self_attn.k_proj"})),
      AllOf(HasSubstr("model.layers.1.self_attn.q_proj"), HasSubstr("model.layers.1.self_attn.k_proj")));
}

// Codes, scales and zero points of every scheme are made up, the same ones each time.
TEST(Task8_2_Makers, DummyWeightsTakeNoCheckpoint) {
  for (const Written& written : written_formats()) {
    SCOPED_TRACE(testing::describe(written.stored));
    const testing::TemporaryFolder folder;
    Json config = load_json(kGoldens / "qwen3_untied" / "config.json");
    config["quantization_config"] = written.config;
    testing::write_file(folder / "config.json", config.dump());
    const Tensor of_dummy = logits(*load(folder.path(), {}, LoadFormat::dummy));
    double smallest = INFINITY, largest = -INFINITY;
    for (const double value : testing::to_double(of_dummy)) {
      ASSERT_TRUE(std::isfinite(value));
      smallest = std::min(smallest, value);
      largest = std::max(largest, value);
    }
    EXPECT_GT(largest - smallest, 0.1);
    EXPECT_LT(largest - smallest, 100);
    EXPECT_TRUE(testing::bitwise_equal(of_dummy, logits(*load(folder.path(), {}, LoadFormat::dummy))));
  }
}

// Scales that a calibration found are of no use to weights that nobody calibrated with.
TEST(Task8_2_Makers, DummyWeightsOfStaticActivationsAreRefused) {
  Json config = int8_config({"lm_head"});
  config["config_groups"]["group_0"]["input_activations"] = {
      {"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "tensor"}, {"dynamic", false}};
  EXPECT_THAT(error_with("qwen3_untied", config),
              AllOf(HasSubstr("--load-format dummy"), HasSubstr("layers.0")));
}

TEST(Task8_2_Makers, ADeviceThatIsPlayedIsRefusedAndOnAGpuActivationsInSmallGroupsAre) {
  DecoderSpec spec = load_decoder_spec(kGoldens / "qwen3_untied");
  const auto make = make_quantized_linear_methods();
  OpContext ctx;
  ctx.device = {DeviceType::cuda, 0};
  const auto method = [&] { make(ctx, {"layers.0.o_proj", {"model.layers.0.self_attn.o_proj"}, spec}); };
  EXPECT_EQ(error_of(method), "no error");
  Json config = int8_config({"lm_head"});
  spec.quantization_config = config.dump();
  EXPECT_EQ(error_of(method), "no error");
  ctx.device = {DeviceType::fake, 0};
  EXPECT_THAT(error_of(method), HasSubstr("quantized"));
  ctx.device = {DeviceType::cuda, 0};
  config["config_groups"]["group_0"]["input_activations"] = {
      {"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "token"}, {"dynamic", true}};
  spec.quantization_config = config.dump();
  EXPECT_EQ(error_of(method), "no error");
  const auto set_group = [&](int64_t size) {
    config["config_groups"]["group_0"]["input_activations"] = {{"num_bits", 8},      {"type", "int"},
                                                               {"symmetric", true},  {"strategy", "group"},
                                                               {"group_size", size}, {"dynamic", true}};
    spec.quantization_config = config.dump();
  };
  set_group(32);
  EXPECT_EQ(error_of(method), "no error");
  set_group(8);
  EXPECT_THAT(error_of(method), AllOf(HasSubstr("layers.0.o_proj"), HasSubstr("--device cpu")));
}

}  // namespace
}  // namespace ladder
