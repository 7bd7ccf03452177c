// Task 2.3: from checkpoint tensors to parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/decoder/decoder_model.h"
#include "step2_model/families/family.h"
#include "step2_model/loading/weight_loader.h"
#include "step2_model/model.h"
#include "tests/support/numerics.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::bitwise_equal;
using ::testing::HasSubstr;
using testing::NamedTensors;
using ::testing::Not;
using testing::TemporaryFolder;
using testing::to_double;
using testing::write_file;
using testing::write_safetensors;

const std::filesystem::path kSource = testing::source_folder();

// A golden checkpoint taken apart, to be put together again in other ways.
class Parts {
 public:
  explicit Parts(const char* golden) : directory_(kSource / "tests/goldens" / golden) {
    const Checkpoint checkpoint(directory_);
    for (const Checkpoint::Entry& entry : checkpoint.entries())
      tensors.emplace_back(entry.info->name, entry.tensor().clone());
  }

  NamedTensors tensors;

  Tensor& operator[](const std::string& name) {
    for (auto& [key, tensor] : tensors)
      if (key == name) return tensor;
    tensors.emplace_back(name, Tensor());
    return tensors.back().second;
  }
  void erase(const std::string& name) {
    std::erase_if(tensors, [&](const auto& entry) { return entry.first == name; });
  }
  void write(const TemporaryFolder& folder) const {
    std::filesystem::copy_file(directory_ / "config.json", folder / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    write_safetensors(folder / "model.safetensors", tensors);
  }

 private:
  std::filesystem::path directory_;
};

std::unique_ptr<Model> load(const std::filesystem::path& directory, ModelOptions options = {}) {
  return load_model({}, directory, load_decoder_spec(directory), options);
}

// Every parameter of a model, in the model's order.
std::vector<Tensor> weights(Model& model) {
  std::vector<Tensor> tensors;
  for (const Parameter* parameter : dynamic_cast<DecoderModel&>(model).parameters())
    tensors.push_back(parameter->tensor);
  return tensors;
}

std::vector<Tensor> weights(const Parts& parts, ModelOptions options = {}) {
  TemporaryFolder folder;
  parts.write(folder);
  return weights(*load(folder.path(), options));
}

bool equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), bitwise_equal);
}

std::string error_of(const Parts& parts) {
  TemporaryFolder folder;
  parts.write(folder);
  try {
    load(folder.path());
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "no error";
}

TEST(Task2_3_Loading, ListsWhatIsMissingAndWhatIsUnexpected) {
  Parts parts("qwen3_untied");
  parts.erase("model.layers.1.self_attn.k_proj.weight");
  parts.erase("lm_head.weight");
  EXPECT_THAT(error_of(parts), ::testing::AllOf(HasSubstr("model.layers.1.self_attn.k_proj.weight"),
                                                HasSubstr("lm_head.weight")));
  parts["model.layers.0.mlp.extra.weight"] = Tensor::zeros({2}, DType::f32);
  EXPECT_THAT(error_of(parts), HasSubstr("\"model.layers.0.mlp.extra.weight\""));

  Parts biased("qwen3_untied");  // attention_bias is false: there is no place for it
  biased["model.layers.0.self_attn.q_proj.bias"] = Tensor::zeros({64}, DType::f32);
  EXPECT_THAT(error_of(biased), HasSubstr("\"model.layers.0.self_attn.q_proj.bias\""));

  Parts deep("qwen3_untied");  // a layer more than config.json has
  deep["model.layers.2.input_layernorm.weight"] = Tensor::zeros({40}, DType::f32);
  EXPECT_THAT(error_of(deep), HasSubstr("\"model.layers.2.input_layernorm.weight\""));

  Parts empty("qwen3_untied");
  const size_t count = empty.tensors.size();
  empty.tensors.clear();
  EXPECT_THAT(error_of(empty), HasSubstr(std::to_string(count)));
  EXPECT_LT(error_of(empty).size(), 1500u);  // not all of them by name
}

TEST(Task2_3_Loading, EveryTensorIsNeeded) {
  for (const char* golden : {"qwen3_attention_bias", "qwen2_bias", "llama_biases"}) {
    const Parts whole(golden);
    for (const auto& [name, tensor] : whole.tensors) {
      Parts parts(golden);
      parts.erase(name);
      EXPECT_THAT(error_of(parts), HasSubstr("\"" + name + "\"")) << golden;
    }
  }
}

TEST(Task2_3_Loading, NamesTheTensorOfAnotherShapeOrDtype) {
  Parts parts("qwen3_untied");
  parts["model.layers.0.self_attn.v_proj.weight"] = Tensor::zeros({32, 41}, DType::f32);
  EXPECT_THAT(error_of(parts), HasSubstr("\"model.layers.0.self_attn.v_proj.weight\""));
  EXPECT_THAT(error_of(parts), HasSubstr("[32, 40]"));
  EXPECT_THAT(error_of(parts), HasSubstr("[32, 41]"));

  Parts norm("qwen3_untied");
  norm["model.norm.weight"] = Tensor::zeros({40, 1}, DType::f32);
  EXPECT_THAT(error_of(norm), HasSubstr("\"model.norm.weight\""));
  EXPECT_THAT(error_of(norm), HasSubstr("[40, 1]"));

  Parts whole("qwen3_untied");
  whole["model.norm.weight"] = Tensor::zeros({40}, DType::i32);
  EXPECT_THAT(error_of(whole), HasSubstr("i32"));
}

TEST(Task2_3_Loading, AcceptsNamesOfABareModel) {
  const Parts parts("qwen3_tied");
  Parts bare("qwen3_tied");
  for (auto& [name, tensor] : bare.tensors) name = name.substr(6);
  EXPECT_TRUE(equal(weights(bare), weights(parts)));

  Parts twice("qwen3_tied");
  twice["norm.weight"] = twice["model.norm.weight"].clone();
  EXPECT_THAT(error_of(twice), HasSubstr("norm.weight"));
}

TEST(Task2_3_Loading, PassesOverWhatCarriesNothing) {
  const auto expected = weights(Parts("qwen3_tied"));
  Parts parts("qwen3_tied");
  parts["model.layers.0.self_attn.rotary_emb.inv_freq"] = Tensor::zeros({8}, DType::f32);
  parts["model.rotary_emb.inv_freq"] = Tensor::zeros({8}, DType::f32);
  parts["lm_head.weight"] = Tensor::zeros({131, 48}, DType::f32);  // the embedding counts, as in transformers
  EXPECT_TRUE(equal(weights(parts), expected));
}

TEST(Task2_3_Loading, OrderShardsAndAlignmentDoNotMatter) {
  Parts parts("qwen3_odd_sizes");
  const auto expected = weights(parts);
  std::reverse(parts.tensors.begin(), parts.tensors.end());
  EXPECT_TRUE(equal(weights(parts), expected));

  TemporaryFolder folder;
  parts.write(folder);
  std::filesystem::remove(folder / "model.safetensors");
  NamedTensors shards[2];
  std::string map;
  for (size_t i = 0; i < parts.tensors.size(); ++i) {
    // A leading byte puts every tensor of the shard at an odd address.
    shards[i % 2].push_back(parts.tensors[i]);
    map += fmt::format("{}\"{}\":\"{}.safetensors\"", i == 0 ? "" : ",", parts.tensors[i].first, i % 2);
  }
  for (int i = 0; i < 2; ++i) {
    std::string file = testing::encode_safetensors(shards[i]);
    const auto header = static_cast<unsigned char>(file[0]) + 256 * static_cast<unsigned char>(file[1]);
    file.insert(8 + static_cast<size_t>(header), " ");  // white space at the end of the header
    file[0] = static_cast<char>((header + 1) & 255);
    file[1] = static_cast<char>((header + 1) >> 8);
    write_file(folder / fmt::format("{}.safetensors", i), file);
  }
  write_file(folder / "model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  EXPECT_TRUE(equal(weights(*load(folder.path())), expected));
}

TEST(Task2_3_Loading, ConvertsMixedDtypes) {
  // Stored in half precision, run in f32: the same as a checkpoint of the rounded values in f32.
  for (const DType stored : {DType::bf16, DType::f16}) {
    Parts half("llama_biases"), rounded("llama_biases");
    for (size_t i = 0; i < half.tensors.size(); ++i) {
      if (half.tensors[i].first.find("norm") != std::string::npos) continue;  // norms stay in f32
      half.tensors[i].second = half.tensors[i].second.to(stored);
      rounded.tensors[i].second = half.tensors[i].second.to(DType::f32);
    }
    EXPECT_TRUE(equal(weights(half), weights(rounded))) << dtype_name(stored);
  }
}

TEST(Task2_3_Loading, ReportsProgress) {
  TemporaryFolder folder;
  const Parts parts("qwen3_sharded");
  parts.write(folder);
  std::vector<int64_t> done;
  int64_t total = 0;
  ModelOptions options;
  options.progress = [&](int64_t now, int64_t all) {
    done.push_back(now);
    total = all;
  };
  load(folder.path(), options);
  ASSERT_EQ(done.size(), parts.tensors.size());
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), total);
  int64_t bytes = 0;
  for (const auto& [name, tensor] : parts.tensors) bytes += tensor.nbytes();
  EXPECT_EQ(total, bytes);
}

TEST(Task2_3_Loading, RefusesDamagedFiles) {
  TemporaryFolder folder;
  Parts("qwen3_tied").write(folder);
  const auto file = folder / "model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 100);
  EXPECT_THROW(load(folder.path()), Error);
  std::filesystem::remove(file);
  EXPECT_THROW(load(folder.path()), Error);
}

TEST(Task2_3_Names, FindsTheTargetOfEveryName) {
  const ModelFamily& family = family_of("Qwen3ForCausalLM");
  const auto k = find_tensor_target(family, "model.layers.12.self_attn.k_proj.weight");
  ASSERT_TRUE(k.has_value());
  EXPECT_EQ(k->parameter, "layers.12.qkv_proj.weight");
  EXPECT_EQ(k->part, 1);
  EXPECT_EQ(k->layer, 12);
  EXPECT_EQ(find_tensor_target(family, "lm_head.weight")->parameter, "lm_head.weight");
  for (const char* name :
       {"", "model.", "layers..self_attn.k_proj.weight", "layers.1", "layers.-1.self_attn.k_proj.weight",
        "layers.01.self_attn.k_proj.weight", "layers.1.self_attn.k_proj.weight.x",
        "layers.99999999999999999999.self_attn.k_proj.weight", "layers.1.self_attn.k_proj.a.b",
        "layers.1.self_attn.k_proj.", "layers.1x.self_attn.k_proj.weight", "model.model.norm.weight",
        "layers.#.o_proj.weight"})
    EXPECT_FALSE(find_tensor_target(family, name).has_value()) << name;
  // What a linear method may declare.
  const auto scale = find_tensor_target(family, "layers.1.self_attn.k_proj.weight_scale");
  ASSERT_TRUE(scale.has_value());
  EXPECT_EQ(scale->parameter, "layers.1.qkv_proj.weight_scale");
  EXPECT_EQ(scale->part, 1);
  EXPECT_EQ(checkpoint_name_of(family, "layers.3.gate_up_proj.weight", 1),
            "model.layers.3.mlp.up_proj.weight");
}

// Its layers stand below another prefix, and the norm of the whole and that of a layer have one name.
TEST(Task2_3_Names, OptsNamesAreItsOwn) {
  const ModelFamily& opt = family_of("OPTForCausalLM");
  const std::pair<const char*, const char*> names[] = {
      {"model.decoder.embed_positions.weight", "embed_positions.weight"},
      {"model.decoder.final_layer_norm.bias", "norm.bias"},
      {"model.decoder.layers.5.final_layer_norm.bias", "layers.5.post_attention_layernorm.bias"},
      {"model.decoder.layers.5.self_attn_layer_norm.weight", "layers.5.input_layernorm.weight"},
      {"model.decoder.layers.5.self_attn.out_proj.bias", "layers.5.o_proj.bias"},
      {"model.decoder.layers.5.fc2.weight", "layers.5.fc2.weight"}};
  for (const auto& [checkpoint, parameter] : names) {
    const auto target = find_tensor_target(opt, checkpoint);
    ASSERT_TRUE(target.has_value()) << checkpoint;
    EXPECT_EQ(target->parameter, parameter);
    EXPECT_EQ(checkpoint_name_of(opt, parameter, 0), checkpoint);
  }
  EXPECT_EQ(find_tensor_target(opt, "decoder.layers.0.self_attn.v_proj.bias")->part, 2);
  EXPECT_FALSE(find_tensor_target(opt, "model.layers.0.fc1.weight").has_value());
}

TEST(Task2_3_Names, AnExpertsNumberChoosesThePart) {
  const ModelFamily &qwen = family_of("Qwen3MoeForCausalLM"), &mixtral = family_of("MixtralForCausalLM");
  const auto up = find_tensor_target(qwen, "model.layers.12.mlp.experts.105.up_proj.weight");
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(up->parameter, "layers.12.experts.gate_up.weight");
  EXPECT_EQ(up->part, 2 * 105 + 1);
  EXPECT_EQ(up->layer, 12);
  const auto down = find_tensor_target(mixtral, "layers.3.block_sparse_moe.experts.7.w2.weight");
  ASSERT_TRUE(down.has_value());
  EXPECT_EQ(down->parameter, "layers.3.experts.down.weight");
  EXPECT_EQ(down->part, 7);
  for (const char* name :
       {"layers.1.mlp.experts.up_proj.weight", "layers.1.mlp.experts.02.up_proj.weight",
        "layers.1.mlp.experts.-1.up_proj.weight", "layers.1.mlp.experts.2.w1.weight",
        "layers.1.mlp.experts.4611686018427387904.up_proj.weight", "layers.1.mlp.experts.2.up_proj.weight.x"})
    EXPECT_FALSE(find_tensor_target(qwen, name).has_value()) << name;
  EXPECT_EQ(checkpoint_name_of(qwen, "layers.3.experts.gate_up.weight", 11),
            "model.layers.3.mlp.experts.5.up_proj.weight");
  EXPECT_EQ(checkpoint_name_of(mixtral, "layers.3.experts.gate_up.weight", 10),
            "model.layers.3.block_sparse_moe.experts.5.w1.weight");
  EXPECT_EQ(checkpoint_name_of(mixtral, "layers.3.experts.down.weight", 5),
            "model.layers.3.block_sparse_moe.experts.5.w2.weight");
  // As programs that quantize call them now.
  for (const char* experts : {"block_sparse_moe", "mlp"}) {
    const std::string before = std::string("model.layers.3.") + experts + ".experts.7.";
    for (const auto& [name, original] :
         {std::pair{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}}) {
      const auto found = find_tensor_target(mixtral, before + name + ".weight_scale");
      const auto same = find_tensor_target(
          mixtral, std::string("model.layers.3.block_sparse_moe.experts.7.") + original + ".weight_scale");
      ASSERT_TRUE(found.has_value()) << before << name;
      EXPECT_EQ(found->parameter, same->parameter);
      EXPECT_EQ(found->part, same->part);
    }
  }
  EXPECT_EQ(find_tensor_target(mixtral, "model.layers.2.mlp.gate.weight")->parameter,
            "layers.2.router.weight");
}

TEST(Task2_3_Loading, GivesTheFilesPagesBack) {
  auto file_pages_kib = [] {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
      if (int64_t kib = 0; word == "RssFile:" && status >> kib) return kib;
    return int64_t{-1};
  };
  if (file_pages_kib() < 0) GTEST_SKIP() << "no /proc/self/status with RssFile";
  TemporaryFolder folder;
  write_file(folder / "config.json",
             R"({"architectures":["LlamaForCausalLM"],"hidden_size":512,"intermediate_size":2048,
                 "num_hidden_layers":1,"num_attention_heads":8,"vocab_size":16384,
                 "max_position_embeddings":16,"tie_word_embeddings":true})");
  NamedTensors tensors = {{"embed_tokens.weight", Tensor::zeros({16384, 512}, DType::f32)},
                          {"norm.weight", Tensor::zeros({512}, DType::f32)},
                          {"layers.0.input_layernorm.weight", Tensor::zeros({512}, DType::f32)},
                          {"layers.0.post_attention_layernorm.weight", Tensor::zeros({512}, DType::f32)},
                          {"layers.0.mlp.gate_proj.weight", Tensor::zeros({2048, 512}, DType::f32)},
                          {"layers.0.mlp.up_proj.weight", Tensor::zeros({2048, 512}, DType::f32)},
                          {"layers.0.mlp.down_proj.weight", Tensor::zeros({512, 2048}, DType::f32)}};
  for (const char* name : {"q", "k", "v", "o"})
    tensors.emplace_back(fmt::format("layers.0.self_attn.{}_proj.weight", name),
                         Tensor::zeros({512, 512}, DType::f32));
  write_safetensors(folder / "model.safetensors", tensors);  // 48 MiB
  const DecoderSpec spec = load_decoder_spec(folder.path());

  const Checkpoint checkpoint(folder.path());
  DecoderModel model({}, spec, {});
  const int64_t before = file_pages_kib();
  int64_t most = 0;
  load_weights(checkpoint, spec, model.parameters(),
               [&](int64_t, int64_t) { most = std::max(most, file_pages_kib() - before); });
  EXPECT_LT(most, 2048) << "KiB of the file still in memory after a tensor was copied";
}

TEST(Task2_3_DummyWeights, NeedNoFileAndAreTheSameEveryTime) {
  TemporaryFolder folder;
  std::filesystem::copy_file(kSource / "tests/goldens/qwen3_attention_bias/config.json",
                             folder / "config.json");
  ModelOptions options;
  options.load_format = LoadFormat::dummy;
  const auto a = load(folder.path(), options), b = load(folder.path(), options);
  const auto first = weights(*a);
  EXPECT_TRUE(equal(weights(*b), first));
  std::set<double> distinct;
  for (const Tensor& tensor : first)
    for (const double value : to_double(tensor)) {
      EXPECT_TRUE(std::isfinite(value));
      EXPECT_LT(std::abs(value), 100.0);
      distinct.insert(value);
    }
  EXPECT_GT(distinct.size(), 500u);
}

TEST(Task2_3_DummyWeights, HaveAPlausibleSize) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<Parameter> storage(3);
    const std::pair<const char*, Shape> kinds[] = {
        {"layers.0.o_proj.weight", {200, 400}}, {"norm.weight", {30000}}, {"layers.0.o_proj.bias", {30000}}};
    const double means[] = {0, 1, 0}, deviations[] = {0.05, 0.05, 0.05};  // 1 / sqrt(400)
    std::vector<Parameter*> parameters;
    for (size_t i = 0; i < 3; ++i) {
      storage[i].name = kinds[i].first;
      storage[i].tensor = testing::poisoned(kinds[i].second, dtype);
      parameters.push_back(&storage[i]);
    }
    fill_dummy_weights(parameters, {});
    for (size_t i = 0; i < 3; ++i) {
      const auto values = to_double(storage[i].tensor);
      double sum = 0, squares = 0;
      for (const double value : values) sum += value;
      const double mean = sum / static_cast<double>(values.size());
      for (const double value : values) squares += (value - mean) * (value - mean);
      EXPECT_NEAR(mean, means[i], 0.002) << storage[i].name;
      EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), deviations[i], 0.002)
          << storage[i].name;
    }
  }
}

}  // namespace
}  // namespace ladder
