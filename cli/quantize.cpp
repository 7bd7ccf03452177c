// ladder quantize: a dense checkpoint becomes a quantized one.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/direct_model_flags.h"
#include "cli/flag_values.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step2_model/json.h"
#include "step6_engine/load_engine.h"
#include "step8_advanced/quantization/quantizer/quantize.h"
#include "step8_advanced/quantization/quantizer/sweep.h"

namespace ladder {

namespace {

constexpr int64_t kDefaultMaxSeqLen = 2048;

struct QuantizeFlags {
  DirectModelFlags run;
  std::string model, output, recipe, scheme, calibration;
  std::string method = "rtn";
  int64_t num_samples = 512;
  int64_t max_seq_len = 0;
  const CLI::Option* method_option = nullptr;
  // --sweep
  bool sweep = false;
  std::vector<int64_t> bits = {3, 4, 8}, groups = {0, 128, 32};
  std::vector<std::string> methods = {"rtn", "gptq"};
  std::string data;
  int64_t max_documents = 0;
  std::vector<const CLI::Option*> sweep_options;
};

// --output, without the slash that a shell's completion puts behind it: what is not finished lies beside the folder, not within it.
std::filesystem::path new_folder(const std::string& output) {
  std::filesystem::path folder = std::filesystem::path(output).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  LADDER_CHECK(!folder.empty(), "--output: expected a new folder, found no name");
  LADDER_CHECK(!std::filesystem::exists(std::filesystem::symlink_status(folder)),
               "--output {}: is there already, expected a new folder", output);
  return folder;
}

Recipe recipe_of_flags(const QuantizeFlags& flags, DType checkpoint_dtype) {
  LADDER_CHECK(flags.recipe.empty() != flags.scheme.empty(), "--recipe and --scheme: expected one of them");
  if (flags.recipe.empty()) return recipe_of(flags.scheme, flags.method, checkpoint_dtype);
  LADDER_CHECK(flags.method_option->count() == 0, "--method: the recipe says the methods, expected --scheme");
  return parse_recipe(read_text_file(flags.recipe), flags.recipe, checkpoint_dtype);
}

// So many samples of at most so many tokens. Error, naming the flag: the file has fewer.
std::vector<TokenIds> calibration_texts(const QuantizeFlags& flags, const ModelFolder& folder) {
  LADDER_CHECK(!flags.calibration.empty(), "--calibration: the recipe needs a text for calibration");
  const int64_t positions = folder.spec.max_position_embeddings;
  const int64_t longest = flags.max_seq_len > 0 ? flags.max_seq_len : std::min(kDefaultMaxSeqLen, positions);
  LADDER_CHECK(longest <= positions, "--max-seq-len {}: the model has {} positions", longest, positions);
  const std::vector<TokenIds> documents =
      read_texts(flags.calibration, folder.tokenizer.get(), folder.spec.vocab_size, false);
  std::vector<TokenIds> texts;
  for (TextWindow& window : cut_windows(documents, longest))
    if (std::ssize(texts) < flags.num_samples) texts.push_back(std::move(window.ids));
  LADDER_CHECK(std::ssize(texts) == flags.num_samples,
               "--num-samples {}: {} has {} texts of at most {} tokens (--max-seq-len)", flags.num_samples,
               flags.calibration, texts.size(), longest);
  return texts;
}

void say(const std::string& line) {
  std::fprintf(stderr, "ladder: %s\n", harmless(line).c_str());
}

// Multiplications and additions a second that one core may be expected to do; an estimate has to begin somewhere.
constexpr double kOperationsPerCore = 2e10;

void say_estimate(const QuantizeOptions& options, const DecoderSpec& spec) {
  const QuantizeEstimate estimate = estimate_quantize(options, spec);
  const double seconds = estimate.operations / kOperationsPerCore / num_threads();
  say(fmt::format("{} of weights, {} layers; about {} of memory{}", format_bytes(estimate.bytes_before),
                  spec.num_layers, format_bytes(estimate.memory_bytes),
                  estimate.operations > 0 ? fmt::format(" and {}", format_seconds(seconds)) : ""));
}

// A row per linear, in the order of the layers.
std::string error_table(const QuantizeReport& report) {
  std::vector<std::vector<std::string>> rows = {{"linear", "method", "scheme", "relative error"}};
  for (const LinearReport& one : report.linears) {
    rows.push_back({one.name, one.method, one.scheme, fmt::format("{:.3e}", one.error)});
    if (one.dead_columns > 0)
      rows.back().back() += fmt::format(" ({} columns without input)", one.dead_columns);
    if (one.unreached) rows.back().back() += " (no token of calibration)";
  }
  return format_table(rows);
}

// Experts that calibration said nothing about are worse than they need be; more or other texts would help.
std::string unreached_summary(const QuantizeReport& report) {
  constexpr size_t kMostNames = 24;  // the table has them all
  std::vector<std::string> names;
  for (const LinearReport& one : report.linears)
    if (one.unreached) names.push_back(one.name);
  if (names.empty()) return "";
  const size_t count = names.size();
  names.resize(std::min(count, kMostNames));
  return fmt::format(
      "no token of calibration came to {} linears of experts, which were rounded to nearest or pruned by "
      "magnitude: {}{}\n",
      count, fmt::join(names, ", "),
      count > kMostNames ? fmt::format(" and {} more", count - kMostNames) : "");
}

std::string sweep_table(std::span<const SweepRow> sweep_rows) {
  std::vector<std::vector<std::string>> rows = {
      {"method", "bits", "group", "bits a weight", "KL x 1000", "delta NLL x 1000", "perplexity"}};
  const auto with_error = [](const Estimate& estimate) {  // one document has none
    const std::string mean = fmt::format("{:.3f}", 1000 * estimate.mean);
    return std::isnan(estimate.standard_error)
               ? mean
               : fmt::format("{} +- {:.3f}", mean, 1000 * estimate.standard_error);
  };
  for (const SweepRow& row : sweep_rows)
    rows.push_back({row.method, std::to_string(row.bits),
                    row.group_size > 0 ? std::to_string(row.group_size) : "row",
                    fmt::format("{:.2f}", row.bits_per_weight), with_error(row.kl), with_error(row.delta_nll),
                    fmt::format("{:.4f}", row.perplexity)});
  return format_table(rows);
}

void run_sweep(const QuantizeFlags& flags) {
  const OpContext ctx = flags.run.context();
  const ModelFolder folder = open_model_folder(flags.model, "vllm");
  LADDER_CHECK(flags.recipe.empty() && flags.scheme.empty() && flags.method_option->count() == 0,
               "--sweep: it makes its recipes itself, expected neither --recipe, --scheme nor --method");
  LADDER_CHECK(!flags.data.empty(), "--data: --sweep needs a text to judge by");
  SweepOptions options;
  options.model = flags.model;
  options.output = new_folder(flags.output);
  options.bits = flags.bits;
  options.group_sizes = flags.groups;
  options.methods = flags.methods;
  const std::vector<Recipe> recipes = sweep_recipes(options, folder.spec.checkpoint_dtype);
  if (std::any_of(recipes.begin(), recipes.end(), [](const Recipe& one) { return one.needs_calibration(); }))
    options.texts = calibration_texts(flags, folder);
  else
    LADDER_CHECK(flags.calibration.empty(),
                 "--calibration: these methods look at weights alone, expected none");
  options.windows = cut_windows(
      read_texts(flags.data, folder.tokenizer.get(), folder.spec.vocab_size, false, flags.max_documents),
      std::min<int64_t>(2048, folder.spec.max_position_embeddings));
  LADDER_CHECK(!options.windows.empty(), "--data {}: no text of two tokens or more", flags.data);

  std::vector<SweepRow> rows;
  {
    ProgressBar bar("quantizing and judging", std::ssize(recipes), "models");
    options.progress = [&bar](int64_t done, int64_t) { bar.set(done); };
    rows = sweep(ctx, options);
  }
  write_out(sweep_table(rows));
  write_out(fmt::format("{}: sweep.json and sweep.svg\n", flags.output));
}

void run_quantize(const QuantizeFlags& flags) {
  if (flags.sweep) return run_sweep(flags);
  for (const CLI::Option* option : flags.sweep_options)
    LADDER_CHECK(option->count() == 0, "{}: expected --sweep beside it", option->get_name());
  const OpContext ctx = flags.run.context();
  const ModelFolder folder = open_model_folder(flags.model, "vllm");
  QuantizeOptions options;
  options.model = flags.model;
  options.output = new_folder(flags.output);
  options.recipe = recipe_of_flags(flags, folder.spec.checkpoint_dtype);
  if (options.recipe.needs_calibration())
    options.texts = calibration_texts(flags, folder);
  else
    LADDER_CHECK(flags.calibration.empty(),
                 "--calibration: this recipe looks at weights alone, expected none");
  say_estimate(options, folder.spec);

  const auto start = std::chrono::steady_clock::now();
  QuantizeReport report;
  {
    ProgressBar bar("quantizing", folder.spec.num_layers, "layers");
    options.progress = [&bar](int64_t done, int64_t) { bar.set(done); };
    options.say = [&bar](const std::string& line) {
      bar.clear();
      say(line);
    };
    report = quantize(ctx, options);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (report.resumed_layers > 0)
    say(fmt::format("{} layers had been finished by an earlier run", report.resumed_layers));
  write_out(error_table(report));
  write_out(unreached_summary(report));
  write_out(fmt::format("{}: {} of {}, in {}\n", flags.output, format_bytes(report.bytes_after),
                        format_bytes(report.bytes_before), format_seconds(seconds)));
}

}  // namespace

RunCommand add_quantize_command(CLI::App& app) {
  auto flags = std::make_shared<QuantizeFlags>();
  app.add_option("--model", flags->model, "folder with config.json and safetensors, dense")
      ->required()
      ->type_name("DIR");
  app.add_option("--output,--out", flags->output,
                 "the quantized model's folder, in compressed-tensors' formats; must not be there. Finished "
                 "layers wait in DIR.partial: the same command goes on after it was stopped")
      ->required()
      ->type_name("DIR");
  app.add_option("--scheme", flags->scheme,
                 "how all linears are stored: W4A16, W8A8, FP8_DYNAMIC, ... (names of compressed-tensors)")
      ->type_name("NAME");
  flags->method_option =
      app.add_option("--method", flags->method, "with --scheme: rtn (round to nearest), gptq or awq")
          ->check(CLI::IsMember({"rtn", "gptq", "awq"}))
          ->type_name("METHOD")
          ->capture_default_str();
  app.add_option("--recipe", flags->recipe,
                 "instead of --scheme: stages, each with a method, a scheme and the linears it is for")
      ->type_name("FILE.json");
  app.add_option("--calibration", flags->calibration,
                 "texts that go through the model, as --data of eval has them; of all methods but rtn")
      ->type_name("FILE");
  app.add_option("--num-samples", flags->num_samples, "texts of calibration")
      ->check(whole_in_range(1, int64_t{1} << 30))
      ->type_name("N")
      ->capture_default_str();
  app.add_option(
         "--max-seq-len", flags->max_seq_len,
         "tokens of a text at most; longer ones are cut into several [2048, or the model's positions]")
      ->check(whole_in_range(2, kMaxModelLenRange.max))
      ->type_name("N");
  const char* group = "Several at once: what bits cost, by which method";
  app.add_flag("--sweep", flags->sweep,
               "quantize for each of --bits, --groups and --methods, and judge each by its KL divergence "
               "from --model on --data: a table, and sweep.json and sweep.svg in --output. The models are "
               "not kept")
      ->group(group);
  const auto list = [&](const char* name, auto& values, const char* type, const char* text) {
    CLI::Option* option = app.add_option(name, values, text);
    flags->sweep_options.push_back(option);
    return option->delimiter(',')->allow_extra_args(false)->type_name(type)->group(group);
  };
  list("--bits", flags->bits, "N,...", "integers of so many bits [3,4,8]")->check(whole_in_range(2, 8));
  list("--groups", flags->groups, "N,...", "weights that share a scale; 0: a row [0,128,32]")
      ->check(whole_in_range(0, int64_t{1} << 20));
  list("--methods", flags->methods, "NAME,...",
       "rtn, gptq, awq, sparsegpt (two of four and rounded, jointly) [rtn,gptq]")
      ->check(CLI::IsMember({"rtn", "gptq", "awq", "sparsegpt"}));
  flags->sweep_options.push_back(app.add_option("--data", flags->data, "texts to judge by, as eval has them")
                                     ->type_name("FILE")
                                     ->group(group));
  flags->sweep_options.push_back(
      app.add_option("--max-documents", flags->max_documents, "the first N documents of --data [all]")
          ->check(whole_in_range(1, int64_t{1} << 40))
          ->type_name("N")
          ->group(group));
  flags->run.add(app, false);
  return [flags] { run_quantize(*flags); };
}

}  // namespace ladder
