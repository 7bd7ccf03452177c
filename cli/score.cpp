// ladder score: how likely the model finds given texts.
#include <cmath>
#include <memory>

#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/flag_values.h"
#include "cli/json_lines.h"
#include "cli/run_requests.h"
#include "cli/say_quantization.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step6_engine/thread_engine_client.h"

namespace ladder {

namespace {

struct ScoreFlags {
  EngineFlags engine;
  std::string input;
  std::string format = "text";
  int64_t top = 0;
};

void run_score(const ScoreFlags& flags) {
  std::vector<RequestLine> lines = read_request_lines(flags.input, SamplingParams{});
  EngineOptions options = flags.engine.options();
  // Every position has to be computed, so there is nothing to look up; and a text may fill max_model_len, as
  // the one token that is sampled after it is dropped.
  options.enable_prefix_caching = false;
  options.full_length_prompts = true;
  const ModelFolder folder = open_model_folder(options.model);
  say_quantization(folder.spec, options.runner.kv_cache_dtype, options.runner.device);
  // With the sampling fields as the lines have them: unused here, but not unchecked.
  check_requests(lines, folder, options);
  SamplingParams scoring;
  scoring.max_tokens = 1;
  scoring.temperature = 0.0;
  scoring.prompt_logprobs = flags.top;
  try {
    check_max_logprobs(scoring, folder.spec.vocab_size, options.max_logprobs);
  } catch (const Error& error) {
    fail("--top {}: {}", flags.top, error.what());
  }
  for (RequestLine& line : lines) {
    scoring.priority = line.request.sampling.priority;
    line.request.sampling = scoring;
  }
  ThreadEngineClient client(load_engine_with_progress(options, folder));

  const bool json = flags.format == "jsonl";
  int64_t num_tokens = 0;
  double sum = 0.0;
  RunCallbacks callbacks;
  callbacks.progress_label = "scoring";
  callbacks.on_output = [&](int64_t index, RequestOutput& output) {
    double sum_of_line = 0.0;
    for (const PositionLogprobs& position : output.prompt_logprobs) sum_of_line += position.chosen.logprob;
    const auto scored = static_cast<int64_t>(output.prompt_logprobs.size());
    num_tokens += scored;
    sum += sum_of_line;
    write_out(
        json ? score_line(index, output, flags.top)
             : fmt::format("[{}] {} tokens, sum of log probabilities {:.4f}\n", index, scored, sum_of_line));
  };
  run_requests(client, lines, callbacks);
  write_out(json ? score_summary_line(num_tokens, sum)
                 : fmt::format("{} tokens, perplexity {}\n", num_tokens,
                               num_tokens > 0
                                   ? fmt::format("{:.4f}", std::exp(-sum / static_cast<double>(num_tokens)))
                                   : "none: a text of one token has nothing to predict"));
}

}  // namespace

RunCommand add_score_command(CLI::App& app) {
  auto flags = std::make_shared<ScoreFlags>();
  app.add_option("--input", flags->input,
                 "texts, one JSON object per line: {\"prompt\": TEXT} or {\"prompt_token_ids\": [...]}; - is "
                 "standard "
                 "input")
      ->required()
      ->type_name("FILE.jsonl");
  app.add_option("--top", flags->top,
                 "also the K likeliest tokens at every position; -1: the whole vocabulary")
      ->check(whole_in_range(-1, kMaxLogprobs))
      ->type_name("K");
  app.add_option(
         "--format", flags->format,
         "text, or jsonl: per text the log probability of every token given those before it, then a summary")
      ->check(CLI::IsMember({"text", "jsonl"}))
      ->type_name("FORMAT")
      ->capture_default_str();
  flags->engine.add(app);
  return [flags] { run_score(*flags); };
}

}  // namespace ladder
