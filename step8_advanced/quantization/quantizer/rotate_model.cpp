#include "step8_advanced/quantization/quantizer/rotate_model.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/families/family.h"
#include "step2_model/json.h"
#include "step8_advanced/quantization/algorithms/hadamard.h"
#include "step8_advanced/quantization/quantizer/copy_files.h"
#include "step8_advanced/quantization/quantizer/safetensors_writer.h"
#include "step8_advanced/quantization/quantizer/watched_layer.h"

namespace ladder {
namespace {

Tensor transposed(const Tensor& matrix) {
  const Tensor out = Tensor::empty({matrix.dim(1), matrix.dim(0)}, DType::f32);
  for (int64_t row = 0; row < out.dim(0); ++row)
    for (int64_t column = 0; column < out.dim(1); ++column)
      out.at<float>({row, column}) = matrix.at<float>({column, row});
  return out;
}

class Rotated {
 public:
  Rotated(const Checkpoint& checkpoint, int64_t size, uint64_t seed)
      : checkpoint_(checkpoint), rotation_(size, seed) {}

  // What reads a norm's output: W diag(gain) Q. Without a gain: W Q.
  void add_reader(const std::string& name, const Tensor& weight, const Tensor& gain) {
    const Tensor rotated = weight.clone();
    for (int64_t row = 0; gain.defined() && row < rotated.dim(0); ++row)
      for (int64_t i = 0; i < rotated.dim(1); ++i)
        rotated.data<float>()[row * rotated.dim(1) + i] *= gain.data<float>()[i];
    rotation_.rotate(rotated);
    changed_[name] = rotated;
  }
  // What is added to the hidden states: Q^T W.
  void add_writer(const std::string& name, const Tensor& weight) {
    const Tensor columns = transposed(weight);
    rotation_.rotate(columns);
    changed_[name] = transposed(columns);
  }
  void add_ones(const std::string& name, const Tensor& gain) {
    const Tensor ones = Tensor::empty(gain.shape(), DType::f32);
    std::fill_n(ones.data<float>(), ones.numel(), 1.0f);
    changed_[name] = ones;
  }

  Tensor dense(const std::string& name) const {
    const Checkpoint::Entry* entry = checkpoint_.find(name);
    LADDER_CHECK(entry != nullptr, "{}: no tensor {}", checkpoint_.directory().string(), name);
    return entry->tensor().to(DType::f32);
  }

  // All tensors of the checkpoint, in its order, and those that it has not.
  std::vector<NamedTensor> tensors(DType dtype) const {
    std::vector<NamedTensor> all;
    std::map<std::string, Tensor> left = changed_;
    for (const Checkpoint::Entry& entry : checkpoint_.entries()) {
      const auto found = left.find(entry.info->name);
      if (found == left.end()) {
        all.push_back({entry.info->name, entry.tensor()});
        continue;
      }
      all.push_back({entry.info->name, found->second.to(entry.info->dtype)});
      left.erase(found);
    }
    for (const auto& [name, tensor] : left) all.push_back({name, tensor.to(dtype)});
    return all;
  }

 private:
  const Checkpoint& checkpoint_;
  HadamardRotation rotation_;
  std::map<std::string, Tensor> changed_;
};

void rotate_layer(const WatchedLayer& layer, const std::vector<std::unique_ptr<WatchedLinear>>& linears,
                  Rotated& rotated) {
  for (const auto& linear : linears) {
    const WatchedNorm* norm = layer.norm_before(*linear);
    for (const WatchedPart& part : linear->parts) {
      if (norm != nullptr)
        rotated.add_reader(part.name + ".weight", part.weight, norm->gain);
      else
        rotated.add_writer(part.name + ".weight", part.weight);
    }
  }
  for (const WatchedNorm& norm : layer.norms()) {
    LADDER_CHECK(!norm.bias.defined(), "{}: a norm with a bias, expected none to rotate hidden states",
                 norm.gain_name);
    for (const WatchedPart& router : norm.routers) rotated.add_reader(router.name, router.weight, norm.gain);
    rotated.add_ones(norm.gain_name, norm.gain);
  }
}

}  // namespace

void check_can_be_rotated(const std::filesystem::path& model, const DecoderSpec& spec) {
  LADDER_CHECK(
      spec.norm == NormKind::rms_norm && !spec.post_norm && spec.embedding_width() == spec.hidden_size,
      "{}: rotated are models with RMSNorm in front of attention and MLP, and embeddings of the hidden size",
      model.string());
  LADDER_CHECK(!spec.o_bias && !spec.mlp_bias,
               "{}: a bias that is added to rotated hidden states, expected none", model.string());
  HadamardRotation(spec.hidden_size, 0);
}

void write_rotated_model(const std::filesystem::path& model, const std::filesystem::path& output,
                         uint64_t seed) {
  const DecoderSpec spec = load_decoder_spec(model);
  check_can_be_rotated(model, spec);
  const ModelFamily& family = family_of(spec.architecture);
  const Checkpoint checkpoint(model);
  Rotated rotated(checkpoint, spec.hidden_size, seed);
  for (int64_t i = 0; i < spec.num_layers; ++i) {
    WatchedLayer layer({}, model, spec, i, 1);
    rotate_layer(layer, layer.linears(), rotated);
  }
  const std::string embedding = checkpoint_name_of(family, "embed_tokens.weight", 0),
                    norm = checkpoint_name_of(family, "norm.weight", 0), head = "lm_head.weight";
  const Tensor table = rotated.dense(embedding), gain = rotated.dense(norm);
  rotated.add_reader(head, spec.tie_word_embeddings ? table : rotated.dense(head), gain);
  rotated.add_reader(embedding, table, {});
  rotated.add_ones(norm, gain);

  std::filesystem::create_directories(output);
  write_checkpoint(output, rotated.tensors(spec.checkpoint_dtype));
  OrderedJson config = parse_ordered_json(read_text_file(model / "config.json"), "config.json");
  config["tie_word_embeddings"] = false;
  write_file_atomically(output / "config.json", config.dump(2) + "\n");
  copy_other_files(model, output);
}

}  // namespace ladder
