// Task 2.4: the parts of a decoder layer that a program may exchange, with fakes.
#include "step2_model/model_makers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "step1_layers/attention/attention_with_store.h"
#include "step1_layers/core/error.h"
#include "step1_layers/linear/matmul.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/decoder/composites.h"
#include "step2_model/decoder/dense_mlp.h"
#include "step2_model/json.h"
#include "step2_model/model.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/model_session.h"
#include "tests/support/numerics.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::bitwise_equal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ModelSession;

const std::filesystem::path kGolden = testing::source_folder() / "tests/goldens/qwen3_untied";

std::unique_ptr<Model> load(const std::filesystem::path& folder, const ModelMakers& makers,
                            LoadFormat format = LoadFormat::automatic) {
  ModelOptions options;
  options.load_format = format;
  options.makers = makers;
  return load_model({}, folder, load_decoder_spec(folder), options);
}

Tensor logits(Model& model) {
  return ModelSession(model, {}).step({{0, {3, 1, 4, 1, 5, 9, 2, 6}}});
}

// Keeps half of the dense weight, called "halves", and doubles it after loading.
class Halves final : public LinearMethod {
 public:
  std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const override {
    return {{"halves", shape.dtype, {LinearDimension::along_out(), LinearDimension::along_in()}}};
  }
  void process_after_load(const OpContext&, const LinearShape&,
                          std::vector<Tensor>& parameters) const override {
    float* values = parameters[0].data<float>();
    for (int64_t i = 0; i < parameters[0].numel(); ++i) values[i] *= 2;
  }
  void apply(const OpContext& ctx, const LinearShape&, const std::vector<Tensor>& parameters, const Tensor& x,
             const Tensor& out) const override {
    matmul(ctx, x, parameters[0], Tensor(), out);
  }
};

// "...o_proj.halves" and "lm_head.halves" of the weights of linears; empty: it is none.
std::string name_of_halves(const std::string& name) {
  for (const char* end : {"_proj.weight", "lm_head.weight"})
    if (name.ends_with(end)) return name.substr(0, name.rfind('.')) + ".halves";
  return "";
}

// The golden checkpoint with every linear's weight (or of this layer alone) halved and renamed, and a quantization_config.
void write_halves(const testing::TemporaryFolder& folder, const std::string& layer = "") {
  const Checkpoint checkpoint(kGolden);
  testing::NamedTensors tensors;
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    std::string name = entry.info->name;
    Tensor tensor = entry.tensor().to(DType::f32).clone();
    if (const std::string halves = name_of_halves(name);
        !halves.empty() && name.find(layer) != std::string::npos) {
      name = halves;
      for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] /= 2;
    }
    tensors.emplace_back(name, tensor);
  }
  testing::write_safetensors(folder / "model.safetensors", tensors);
  Json config = load_json(kGolden / "config.json");
  config["quantization_config"] = {{"quant_method", "halves"}};
  testing::write_file(folder / "config.json", config.dump());
}

TEST(Task2_4_ModelMakers, ALinearMethodIsMadeForEveryLinearByName) {
  std::vector<std::string> names, parts;
  std::set<std::string> configs;
  ModelMakers makers;
  makers.linear_method = [&](const OpContext&, const NamedLinear& linear) {
    names.push_back(linear.name);
    if (names.size() <= 4) parts.insert(parts.end(), linear.part_names.begin(), linear.part_names.end());
    configs.insert(linear.spec.quantization_config);
    return nullptr;  // dense
  };
  const auto model = load(kGolden, makers);
  ASSERT_EQ(model->spec().num_layers, 2);
  EXPECT_THAT(names, ElementsAre("layers.0.qkv_proj", "layers.0.o_proj", "layers.0.gate_up_proj",
                                 "layers.0.down_proj", "layers.1.qkv_proj", "layers.1.o_proj",
                                 "layers.1.gate_up_proj", "layers.1.down_proj"));
  EXPECT_THAT(parts, ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
                                 "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.o_proj",
                                 "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj",
                                 "model.layers.0.mlp.down_proj"));
  EXPECT_THAT(configs, ElementsAre(""));
  EXPECT_TRUE(bitwise_equal(logits(*model), logits(*load(kGolden, {}))));
}

// The head too.
TEST(Task2_4_ModelMakers, AQuantizedCheckpointFillsTheParametersOfItsMethod) {
  const testing::TemporaryFolder folder;
  write_halves(folder);
  std::set<std::string> configs;
  ModelMakers makers;
  makers.linear_method = [&](const OpContext&, const NamedLinear& linear) {
    configs.insert(linear.spec.quantization_config);
    return std::make_shared<const Halves>();
  };
  const auto model = load(folder.path(), makers);
  EXPECT_THAT(configs, ElementsAre(R"({"quant_method":"halves"})"));
  EXPECT_TRUE(bitwise_equal(logits(*model), logits(*load(kGolden, {}))));
}

// A range of layers does not know the tensors of another range, whose linears may be kept in another way.
TEST(Task2_4_ModelMakers, EveryLayerMayHaveAnotherMethod) {
  const testing::TemporaryFolder folder;
  write_halves(folder, "layers.0.");
  ModelOptions options;
  options.makers.linear_method = [](const OpContext&, const NamedLinear& linear) {
    return linear.name.starts_with("layers.0.") ? std::make_shared<const Halves>() : nullptr;
  };
  const DecoderSpec spec = load_decoder_spec(folder.path());
  EXPECT_TRUE(
      bitwise_equal(logits(*load_model({}, folder.path(), spec, options)), logits(*load(kGolden, {}))));
  for (const int64_t layer : {0, 1}) {
    options.layer_begin = layer;
    options.layer_end = layer + 1;
    EXPECT_NO_THROW(load_model({}, folder.path(), spec, options)) << layer;
  }
}

// A method whose weight is of another dtype than the model's.
class Coded final : public LinearMethod {
 public:
  explicit Coded(DType dtype) : dtype_(dtype) {}
  std::vector<LinearParameterSpec> parameters(const LinearShape&) const override {
    return {{"halves", dtype_, {LinearDimension::along_out(), LinearDimension::along_in()}}};
  }
  void apply(const OpContext&, const LinearShape&, const std::vector<Tensor>&, const Tensor&,
             const Tensor&) const override {}

 private:
  DType dtype_;
};

TEST(Task2_4_ModelMakers, CodesAreLoadedAsTheyAreAndNothingElseInTheirPlace) {
  const testing::TemporaryFolder folder;
  write_halves(folder);
  const auto load_as = [&](DType dtype) {
    ModelMakers makers;
    makers.linear_method = [&](const OpContext&, const NamedLinear&) {
      return std::make_shared<const Coded>(dtype);
    };
    load(folder.path(), makers);
  };
  for (const DType dtype : {DType::i8, DType::f8_e4m3, DType::i32}) try {
      load_as(dtype);
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(".halves"));
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("has the dtype f32, expected {}", dtype_name(dtype))));
    }
  const Checkpoint checkpoint(kGolden);
  for (const DType dtype : {DType::i8, DType::f8_e4m3, DType::u8, DType::i64}) {
    testing::NamedTensors tensors;
    for (const Checkpoint::Entry& entry : checkpoint.entries()) {
      std::string name = entry.info->name;
      Tensor tensor = entry.tensor();
      if (const std::string halves = name_of_halves(name); !halves.empty()) {
        name = halves;
        tensor = Tensor::zeros(tensor.shape(), dtype);
      }
      tensors.emplace_back(name, tensor);
    }
    testing::write_safetensors(folder / "model.safetensors", tensors);
    EXPECT_NO_THROW(load_as(dtype)) << dtype_name(dtype);
    EXPECT_THROW(load_as(DType::f32), Error) << dtype_name(dtype);
  }
}

TEST(Task2_4_ModelMakers, DummyWeightsAreRefusedWhereTheyAreCodes) {
  ModelMakers makers;
  makers.linear_method = [](const OpContext&, const NamedLinear&) {
    return std::make_shared<const Coded>(DType::i8);
  };
  try {
    load(kGolden, makers, LoadFormat::dummy);
    ADD_FAILURE() << "loaded";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("layers.0.qkv_proj.halves"));
    EXPECT_THAT(error.what(), HasSubstr("dummy"));
  }
}

TEST(Task2_4_ModelMakers, AQuantizationConfigThatNoMakerTakesIsRefusedByName) {
  const testing::TemporaryFolder folder;
  write_halves(folder);
  for (const LoadFormat format : {LoadFormat::automatic, LoadFormat::dummy}) try {
      load(folder.path(), {}, format);
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("quantization_config"));
      EXPECT_THAT(error.what(), HasSubstr("halves"));
    }
}

TEST(Task2_4_ModelMakers, AnAttentionIsMadeForEveryLayerAndAsked) {
  class Counting final : public Attention {
   public:
    Counting(int64_t layer, const KvCacheSpec& cache, std::vector<int64_t>& calls)
        : layer_(layer), cache_(cache), calls_(calls) {}
    KvCacheSpec kv_cache_spec() const override {
      KvCacheSpec wider = cache_;
      wider.v_dim += wider.k_dim;  // a cache of its own kind: K and V of other widths
      return wider;
    }
    void forward(const OpContext& ctx, const QkNormRopeStoreArgs& args, const AttentionMetadata& metadata,
                 double scale, const Tensor& out) const override {
      calls_.push_back(layer_);
      QkNormRopeStoreArgs narrow = args;
      EXPECT_EQ(args.cache.v.dim(3), 2 * cache_.v_dim);
      narrow.cache.v = args.cache.v.narrow(3, 0, cache_.v_dim);
      attention_with_store(ctx, narrow, metadata, scale, out);
    }

   private:
    int64_t layer_;
    KvCacheSpec cache_;
    std::vector<int64_t>& calls_;
  };
  std::vector<int64_t> calls;
  ModelMakers makers;
  makers.attention = [&](const OpContext&, int64_t layer, const KvCacheSpec& cache) {
    return std::make_unique<Counting>(layer, cache, calls);
  };
  const auto model = load(kGolden, makers), plain = load(kGolden, {});
  EXPECT_EQ(model->kv_cache_specs()[0].v_dim, 2 * plain->kv_cache_specs()[0].v_dim);
  EXPECT_TRUE(bitwise_equal(logits(*model), logits(*plain)));
  EXPECT_THAT(calls, ElementsAre(0, 1));
}

TEST(Task2_4_ModelMakers, AnMlpIsMadeForEveryLayerAndAsked) {
  class Recording final : public Mlp {
   public:
    Recording(std::unique_ptr<Mlp> inner, std::string name, std::vector<std::string>& calls)
        : inner_(std::move(inner)), name_(std::move(name)), calls_(calls) {}
    std::vector<Parameter*> parameters() override { return inner_->parameters(); }
    void process_after_load(const OpContext& ctx) override { inner_->process_after_load(ctx); }
    void forward(const OpContext& ctx, const Norm& norm, ResidualStream& stream) const override {
      calls_.push_back(name_);
      inner_->forward(ctx, norm, stream);
    }

   private:
    std::unique_ptr<Mlp> inner_;
    std::string name_;
    std::vector<std::string>& calls_;
  };
  std::vector<std::string> calls;
  ModelMakers makers;
  makers.mlp = [&](const OpContext& ctx, int64_t layer, const DecoderSpec& spec, DType dtype,
                   const ModelMakers& all) {
    const std::string name = "layers." + std::to_string(layer);
    return std::make_unique<Recording>(std::make_unique<DenseMlp>(ctx, name, spec, dtype, all), name, calls);
  };
  const auto model = load(kGolden, makers), plain = load(kGolden, {});
  EXPECT_EQ(model->weight_bytes(), plain->weight_bytes());
  EXPECT_TRUE(bitwise_equal(logits(*model), logits(*plain)));
  EXPECT_THAT(calls, ElementsAre("layers.0", "layers.1"));
}

}  // namespace
}  // namespace ladder
