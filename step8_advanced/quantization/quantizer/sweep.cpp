#include "step8_advanced/quantization/quantizer/sweep.h"

#include <chrono>
#include <cmath>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"
#include "step8_advanced/quantization/quantizer/quantize.h"
#include "step8_advanced/quantization/quantizer/safetensors_writer.h"

namespace ladder {
namespace {

std::unique_ptr<Model> load(const OpContext& ctx, const std::filesystem::path& folder) {
  ModelOptions options;
  options.dtype = DType::f32;
  options.makers.linear_method = make_quantized_linear_methods();
  return load_model(ctx, folder, load_decoder_spec(folder), options);
}

// What the linears take on disc of their weights, which are all rounded.
class WeightBits {
 public:
  WeightBits(const Checkpoint& checkpoint, std::span<const CheckpointLinear> linears) {
    for (const CheckpointLinear& linear : linears) {
      if (linear.is_router || linear.is_head) continue;
      dense_bytes_ += checkpoint.find(linear.name + ".weight")->tensor().nbytes();
      num_weights_ += linear.n * linear.k;
    }
  }
  double of(const QuantizeReport& report) const {
    return 8.0 * static_cast<double>(report.bytes_after - (report.bytes_before - dense_bytes_)) /
           static_cast<double>(num_weights_);
  }

 private:
  int64_t dense_bytes_ = 0, num_weights_ = 0;
};

// A quantized model that is gone again when it has been judged, or when that failed.
class PassingFolder {
 public:
  explicit PassingFolder(std::filesystem::path path) : path_(std::move(path)) {}
  ~PassingFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    std::filesystem::remove_all(path_.string() + ".partial", ignored);
  }
  PassingFolder(const PassingFolder&) = delete;
  PassingFolder& operator=(const PassingFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A folder that nothing was written into does not stay.
class RemovedIfEmpty {
 public:
  explicit RemovedIfEmpty(const std::filesystem::path& path) : path_(path) {}
  ~RemovedIfEmpty() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  RemovedIfEmpty(const RemovedIfEmpty&) = delete;
  RemovedIfEmpty& operator=(const RemovedIfEmpty&) = delete;

 private:
  const std::filesystem::path& path_;
};

}  // namespace

std::vector<Recipe> sweep_recipes(const SweepOptions& options, DType checkpoint_dtype) {
  std::vector<Recipe> recipes;
  for (const int64_t bits : options.bits)
    for (const int64_t group_size : options.group_sizes)
      for (const std::string& method : options.methods) {
        Json weights = {{"num_bits", bits}, {"type", "int"}, {"symmetric", true}, {"strategy", "channel"}};
        if (group_size > 0) weights.update({{"strategy", "group"}, {"group_size", group_size}});
        const Json stage = {{"method", method}, {"scheme", {{"weights", weights}}}};
        recipes.push_back(
            parse_recipe(Json({{"stages", Json::array({stage})}}).dump(), "--sweep", checkpoint_dtype));
      }
  return recipes;
}

std::vector<SweepRow> sweep(const OpContext& ctx, const SweepOptions& options) {
  LADDER_CHECK(!std::filesystem::exists(options.output), "{}: is there already, expected a new folder",
               options.output.string());
  LADDER_CHECK(!options.windows.empty(), "a sweep without texts to judge by");
  const DecoderSpec spec = load_decoder_spec(options.model);
  const std::vector<Recipe> recipes = sweep_recipes(options, spec.checkpoint_dtype);
  LADDER_CHECK(!recipes.empty(), "a sweep over nothing: expected bits, groups and methods");
  const Checkpoint checkpoint(options.model);
  const std::vector<CheckpointLinear> linears = find_linears(checkpoint, spec);
  for (const Recipe& recipe : recipes) {
    std::vector<CheckpointLinear> assigned = linears;
    assign_stages(recipe, assigned);
    LADDER_CHECK(!recipe.needs_calibration() || !options.texts.empty(),
                 "the sweep needs texts for calibration, there are none");
  }

  const WeightBits weight_bits(checkpoint, linears);
  const std::unique_ptr<Model> base = load(ctx, options.model);
  std::filesystem::create_directories(options.output);
  const RemovedIfEmpty unused(options.output);
  std::vector<SweepRow> rows;
  for (const Recipe& recipe : recipes) {
    const PassingFolder folder(options.output / "model");
    QuantizeOptions quantization;
    quantization.model = options.model;
    quantization.output = folder.path();
    quantization.recipe = recipe;
    if (recipe.needs_calibration()) quantization.texts = options.texts;
    const auto start = std::chrono::steady_clock::now();
    const QuantizeReport report = quantize(ctx, quantization);
    SweepRow row;
    row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const RecipeStage& stage = recipe.stages.at(0);
    const QuantizationArgs& weights = stage.linear->scheme.weights;
    row.method = method_name(stage.method);
    row.bits = weights.num_bits;
    row.group_size = weights.strategy == ScaleStrategy::group ? weights.group_size : 0;
    row.bits_per_weight = weight_bits.of(report);

    const std::unique_ptr<Model> model = load(ctx, folder.path());
    const std::vector<ClusterSums> clusters = evaluate(ctx, *model, base.get(), options.windows, {});
    row.kl = estimate(clusters, [](const ClusterSums& sums) { return sums.kl; });
    row.delta_nll = estimate(clusters, [](const ClusterSums& sums) { return sums.nll - sums.base_nll; });
    row.perplexity = std::exp(estimate(clusters, [](const ClusterSums& sums) { return sums.nll; }).mean);
    rows.push_back(row);
    // What is done is there, if the next one fails.
    write_file_atomically(options.output / "sweep.json", sweep_json(rows));
    write_file_atomically(options.output / "sweep.svg", sweep_picture(rows));
    if (options.progress) options.progress(std::ssize(rows), std::ssize(recipes));
  }
  return rows;
}

std::string sweep_json(std::span<const SweepRow> rows) {
  Json all = Json::array();
  for (const SweepRow& row : rows)
    all.push_back({{"method", row.method},
                   {"bits", row.bits},
                   {"group_size", row.group_size > 0 ? Json(row.group_size) : Json()},
                   {"bits_per_weight", row.bits_per_weight},
                   {"kl", row.kl.mean},
                   {"kl_se", row.kl.standard_error},
                   {"delta_nll", row.delta_nll.mean},
                   {"delta_nll_se", row.delta_nll.standard_error},
                   {"perplexity", row.perplexity},
                   {"seconds", row.seconds}});
  return Json({{"rows", all}}).dump(1) + "\n";
}

}  // namespace ladder
