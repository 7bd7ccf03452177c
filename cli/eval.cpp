// ladder eval: perplexity over a text, and how far a model is from the one that it was made of.
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/direct_model_flags.h"
#include "cli/flag_values.h"
#include "cli/json_lines.h"
#include "cli/terminal.h"
#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/core/error.h"
#include "step6_engine/load_engine.h"
#include "step8_advanced/quantization/quantizer/evaluate.h"

namespace ladder {

namespace {

constexpr int64_t kDefaultWindow = 2048;

struct EvalFlags {
  DirectModelFlags run;
  std::string model, base, data;
  std::string format = "table";
  std::string kv_cache_dtype = "auto";
  int64_t window = 0;
  int64_t max_documents = 0;
  bool joined = false;
};

// All that was measured: name, and mean and error over tokens.
struct Measure {
  const char* name;
  Estimate estimate;
};

std::vector<Measure> measures_of(std::span<const ClusterSums> clusters, bool with_base) {
  const auto of = [&](auto sum) { return estimate(clusters, sum); };
  std::vector<Measure> measures = {{"nll", of([](const ClusterSums& c) { return c.nll; })}};
  if (!with_base) return measures;
  measures.push_back({"base_nll", of([](const ClusterSums& c) { return c.base_nll; })});
  measures.push_back({"delta_nll", of([](const ClusterSums& c) { return c.nll - c.base_nll; })});
  measures.push_back({"kl", of([](const ClusterSums& c) { return c.kl; })});
  measures.push_back({"same_top", of([](const ClusterSums& c) { return static_cast<double>(c.same_top); })});
  return measures;
}

std::string cluster_line(const ClusterSums& sums, bool with_base) {
  std::string line = fmt::format("{{\"cluster\":{},\"tokens\":{},\"nll\":{}", sums.cluster, sums.tokens,
                                 json_float(sums.nll));
  if (with_base)
    line += fmt::format(",\"base_nll\":{},\"kl\":{},\"same_top\":{}", json_float(sums.base_nll),
                        json_float(sums.kl), sums.same_top);
  return line + "}\n";
}

std::string summary_line(const EvalFlags& flags, DType dtype, int64_t window,
                         std::span<const ClusterSums> clusters, int64_t tokens,
                         std::span<const Measure> measures) {
  std::string line = fmt::format(
      "{{\"summary\":{{\"model\":{},\"base\":{},\"data\":{},\"joined\":{},\"window\":{},\"dtype\":\"{}\","
      "\"kv_cache_dtype\":\"{}\","
      "\"clusters\":{},\"tokens\":{},\"perplexity\":{}",
      json_string_literal(flags.model), flags.base.empty() ? "null" : json_string_literal(flags.base),
      json_string_literal(flags.data), flags.joined, window, dtype_name(dtype), flags.kv_cache_dtype,
      clusters.size(), tokens, json_float(std::exp(measures[0].estimate.mean)));
  for (const Measure& measure : measures)
    line += fmt::format(",\"{0}\":{1},\"{0}_se\":{2}", measure.name, json_float(measure.estimate.mean),
                        json_float(measure.estimate.standard_error));
  return line + "}}\n";
}

// With two digits more than the error has; one cluster: no error is known.
std::string with_error(double value, double error, int digits) {
  if (std::isnan(error)) return fmt::format("{:.{}f}", value, digits);
  return fmt::format("{:.{}f} +- {:.{}f}", value, digits, error, digits);
}

std::string summary_table(std::span<const ClusterSums> clusters, int64_t tokens, int64_t window,
                          std::span<const Measure> measures) {
  const auto perplexity = [](const Estimate& nll) {
    const double value = std::exp(nll.mean);
    return with_error(value, value * nll.standard_error, 4);
  };
  const auto row = [](const Estimate& estimate, double scale, int digits) {
    return with_error(scale * estimate.mean, scale * estimate.standard_error, digits);
  };
  std::vector<std::pair<std::string, std::string>> pairs = {
      {"tokens",
       fmt::format("{} of {} clusters, windows of {}", format_count(tokens), clusters.size(), window)},
      {"perplexity", perplexity(measures[0].estimate)},
      {"NLL, nats", row(measures[0].estimate, 1, 5)},
  };
  if (measures.size() > 1) {
    pairs.emplace_back("perplexity of the base", perplexity(measures[1].estimate));
    pairs.emplace_back("delta NLL x 1000", row(measures[2].estimate, 1000, 3));
    pairs.emplace_back("KL(base || model) x 1000", row(measures[3].estimate, 1000, 3));
    pairs.emplace_back("same likeliest token, %", row(measures[4].estimate, 100, 2));
  }
  return format_pairs(pairs);
}

// The base must read the same ids.
void expect_same_tokens(const ModelFolder& folder, const ModelFolder& base, const EvalFlags& flags,
                        std::span<const TokenIds> texts) {
  LADDER_CHECK(folder.spec.vocab_size == base.spec.vocab_size,
               "--base {}: a vocabulary of {}, expected {}, as --model has", flags.base, base.spec.vocab_size,
               folder.spec.vocab_size);
  if (folder.tokenizer == nullptr || base.tokenizer == nullptr) return;
  LADDER_CHECK(read_texts(flags.data, base.tokenizer.get(), base.spec.vocab_size, flags.joined,
                          flags.max_documents) == std::vector<TokenIds>(texts.begin(), texts.end()),
               "--base {}: its tokenizer makes other ids of {} than that of --model", flags.base, flags.data);
}

void run_eval(const EvalFlags& flags) {
  const OpContext ctx = flags.run.context();
  const ModelFolder folder = open_model_folder(flags.model, "vllm");
  std::optional<ModelFolder> base_folder;
  if (!flags.base.empty()) {
    LADDER_CHECK(std::filesystem::is_directory(flags.base), "--base {}: there is no such folder", flags.base);
    base_folder = open_model_folder(flags.base, "vllm");
  }
  const std::vector<TokenIds> texts = read_texts(flags.data, folder.tokenizer.get(), folder.spec.vocab_size,
                                                 flags.joined, flags.max_documents);
  int64_t positions = folder.spec.max_position_embeddings;
  if (base_folder) {
    expect_same_tokens(folder, *base_folder, flags, texts);
    positions = std::min(positions, base_folder->spec.max_position_embeddings);
  }
  const int64_t window = flags.window > 0 ? flags.window : std::min(kDefaultWindow, positions);
  LADDER_CHECK(window <= positions, "--window {}: the model has {} positions", window, positions);
  const std::vector<TextWindow> windows = cut_windows(texts, window);
  LADDER_CHECK(!windows.empty(), "{}: no text of two tokens or more, so there is nothing to predict",
               flags.data);

  const std::unique_ptr<Model> model = flags.run.load(
      ctx, flags.model, folder.spec, parse_kv_cache_dtype(flags.kv_cache_dtype, "--kv-cache-dtype"));
  std::unique_ptr<Model> base;
  if (base_folder) base = flags.run.load(ctx, flags.base, base_folder->spec);
  std::vector<ClusterSums> clusters;
  {
    ProgressBar bar("evaluating", std::ssize(windows), "windows");
    clusters = evaluate(ctx, *model, base.get(), windows, [&bar](int64_t done, int64_t) { bar.set(done); });
  }
  const bool with_base = base != nullptr;
  const std::vector<Measure> measures = measures_of(clusters, with_base);
  int64_t tokens = 0;
  for (const ClusterSums& sums : clusters) tokens += sums.tokens;
  if (flags.format == "table") {
    write_out(summary_table(clusters, tokens, window, measures));
    return;
  }
  for (const ClusterSums& sums : clusters) write_out(cluster_line(sums, with_base));
  write_out(summary_line(flags, model->dtype(), window, clusters, tokens, measures));
}

}  // namespace

RunCommand add_eval_command(CLI::App& app) {
  auto flags = std::make_shared<EvalFlags>();
  app.add_option("--model", flags->model, "folder with config.json, safetensors and tokenizer.json")
      ->required()
      ->type_name("DIR");
  app.add_option("--data", flags->data,
                 "a text; or .jsonl, one document per line: {\"text\": TEXT}, {\"prompt\": TEXT} or "
                 "{\"prompt_token_ids\": [...]}")
      ->required()
      ->type_name("FILE");
  app.add_option("--base", flags->base,
                 "also how far --model is from this one: KL divergence over the whole vocabulary, how often "
                 "the likeliest token is the same, and the paired difference of the NLL")
      ->type_name("DIR");
  app.add_option("--kv-cache-dtype", flags->kv_cache_dtype,
                 "what --model, and not --base, keeps keys and values in: auto, fp8, int8 or int4")
      ->check(CLI::IsMember({"auto", "fp8", "int8", "int4"}))
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_flag("--joined", flags->joined, "the documents as one text, with an empty line between them");
  app.add_option("--window", flags->window,
                 "tokens of a window, which is the stride too: nothing of the one before is known [2048, or "
                 "the model's positions]")
      ->check(whole_in_range(2, kMaxModelLenRange.max))
      ->type_name("N");
  app.add_option("--max-documents", flags->max_documents, "the first N documents [all]")
      ->check(whole_in_range(1, int64_t{1} << 40))
      ->type_name("N");
  app.add_option("--format", flags->format,
                 "table, or jsonl: the sums of each cluster (a document, or where there is one alone a "
                 "window), then a summary")
      ->check(CLI::IsMember({"table", "jsonl"}))
      ->type_name("FORMAT")
      ->capture_default_str();
  flags->run.add(app);
  return [flags] { run_eval(*flags); };
}

}  // namespace ladder
