#pragma once
// The trained tiny model, quantized by a recipe and judged by how far it then is from itself.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "step2_model/checkpoint/checkpoint.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"
#include "step8_advanced/quantization/quantizer/evaluate.h"
#include "step8_advanced/quantization/quantizer/quantize.h"
#include "tests/support/source_folder.h"

namespace ladder::testing {

inline std::filesystem::path tinyworld() {
  return source_folder() / "models" / "tinyworld";
}

// The first `count` documents of a file of its eval/, each cut to its first `longest` tokens.
inline std::vector<TokenIds> texts(const char* file, int64_t count, int64_t longest = 2048) {
  const Tokenizer tokenizer = Tokenizer::load(tinyworld());
  std::vector<TokenIds> all = read_texts(tinyworld() / "eval" / file, &tokenizer, 3072, false, count);
  for (TokenIds& ids : all) ids.resize(std::min<size_t>(ids.size(), static_cast<size_t>(longest)));
  return all;
}

inline const std::string kW4Channel = R"({"weights": {"num_bits": 4, "type": "int", "strategy": "channel"}})";

// A recipe of one stage.
inline std::string recipe(const std::string& method, const std::string& scheme,
                          const std::string& more = "") {
  return fmt::format(R"({{"stages": [{{"method": "{}", "scheme": {}{}}}]}})", method, scheme, more);
}

inline QuantizeOptions options_of(const std::filesystem::path& output, const std::string& recipe,
                                  int64_t samples = 2, int64_t longest = 60) {
  QuantizeOptions options;
  options.model = tinyworld();
  options.output = output;
  options.recipe = parse_recipe(recipe, "recipe.json", DType::bf16);
  if (options.recipe.needs_calibration()) options.texts = texts("qa.jsonl", samples, longest);
  return options;
}

// In f32, whatever its folder has.
inline std::unique_ptr<Model> load(const std::filesystem::path& folder,
                                   KvCacheDType kept_as = KvCacheDType::automatic) {
  ModelOptions options;
  options.makers.linear_method = make_quantized_linear_methods();
  options.makers.kv_cache_dtype = kept_as;
  return load_model(OpContext{}, folder, load_decoder_spec(folder), options);
}

// The mean KL divergence from the model as it is, over held-out stories.
inline double divergence(Model& model, std::span<const TokenIds> of) {
  const auto base = load(tinyworld());
  const auto clusters = evaluate({}, model, base.get(), cut_windows(of, 2048), {});
  return estimate(clusters, [](const ClusterSums& sums) { return sums.kl; }).mean;
}

inline double divergence(const std::filesystem::path& folder, int64_t documents, int64_t longest = 2048) {
  return divergence(*load(folder), texts("text.jsonl", documents, longest));
}

// tinyworld as models with outliers are: some features of what the norms give are `factor` times as large, and their columns
// so much smaller. A power of two: the same model, bit for bit.
inline void write_with_outliers(const std::filesystem::path& folder, float factor, int features) {
  std::filesystem::create_directory(folder);
  for (const char* name :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    std::filesystem::copy_file(tinyworld() / name, folder / name);
  std::vector<NamedTensor> tensors;
  const Checkpoint checkpoint(tinyworld());
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    Tensor tensor = entry.tensor();
    const std::string& name = entry.info->name;
    const auto ends = [&](const char* end) { return name.ends_with(end); };
    const bool norm = ends("input_layernorm.weight") || ends("post_attention_layernorm.weight");
    const bool fed = ends("q_proj.weight") || ends("k_proj.weight") || ends("v_proj.weight") ||
                     ends("gate_proj.weight") || ends("up_proj.weight");
    if (norm || fed) {
      tensor = tensor.clone();
      const int64_t k = tensor.dim(-1);
      for (int64_t i = 0; i < tensor.numel(); ++i)
        if (const int64_t feature = i % k; feature % 29 == 3 && feature / 29 < features) {
          bf16& value = tensor.data<bf16>()[i];
          value = bf16(norm ? float(value) * factor : float(value) / factor);
        }
    }
    tensors.push_back({name, tensor});
  }
  write_checkpoint(folder, tensors);
}

}  // namespace ladder::testing
