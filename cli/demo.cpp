// ladder demo: the tiny model answers eight prompts together.
#include <cmath>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/live_view.h"
#include "cli/run_requests.h"
#include "cli/terminal.h"
#include "cli/tiny_model.h"
#include "step1_layers/core/error.h"
#include "step6_engine/thread_engine_client.h"

namespace ladder {

namespace {

std::string prompt_of(const RequestLine& line) {
  return line.request.prompt.value_or(fmt::format("{} token ids", line.request.prompt_token_ids.size()));
}

std::string indented(const std::string& text) {
  std::string result;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    result += "    " + text.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return result;
}

std::string answer_block(int64_t index, const RequestLine& line, const RequestOutput& output) {
  const CompletionOutput& completion = output.completions[0];
  std::string answer = completion.text.value_or("");
  answer.erase(0, answer.find_first_not_of(" \n"));
  while (!answer.empty() && (answer.back() == ' ' || answer.back() == '\n')) answer.pop_back();
  return fmt::format("[{}] {}\n", index + 1, keep_end(on_one_line(prompt_of(line)), 100)) + indented(answer);
}

void run_demo(const EngineFlags& flags, const std::string& prompts) {
  EngineOptions options = flags.options();
  const ModelFolder folder = open_model_folder(options.model);
  SamplingParams defaults;
  defaults.temperature = 0.0;
  defaults.max_tokens = 64;
  const std::vector<RequestLine> lines = read_request_lines(
      prompts.empty() ? (options.model / "demo_prompts.jsonl").string() : prompts, defaults);
  check_requests(lines, folder, options);
  LADDER_CHECK(folder.tokenizer != nullptr, "demo: {} has no tokenizer.json to write answers with",
               options.model.string());
  std::unique_ptr<Engine> engine = load_engine_with_progress(options, folder);
  const BatchConfig batch = engine->scheduler().config().batch;
  ThreadEngineClient client(std::move(engine));

  const bool live = stdout_is_terminal();
  std::optional<LiveView> view;
  if (live) {
    std::vector<std::string> rows;
    for (const RequestLine& line : lines) rows.push_back(prompt_of(line));
    view.emplace(std::move(rows));
  }
  // A terminal shows the answers as they grow, and in full at the end; a pipe gets each as soon as those
  // before it are there.
  std::string answers;
  std::vector<double> first_token, gaps;
  double longest_gap = 0.0;
  RunCallbacks callbacks;
  if (live)
    callbacks.on_update = [&view](int64_t index, const StreamUpdate& update) {
      for (const CompletionUpdate& completion : update.updates) {
        view->append(static_cast<size_t>(index), completion.text);
        if (completion.finish_reason != FinishReason::none) view->finish(static_cast<size_t>(index));
      }
      view->draw();
    };
  callbacks.on_output = [&](int64_t index, RequestOutput& output) {
    const std::string block = answer_block(index, lines[static_cast<size_t>(index)], output);
    if (live) {
      answers += block;
    } else {
      write_text(block);
    }
    first_token.push_back(output.metrics.time_to_first_token);
    if (output.metrics.num_output_tokens > 1) gaps.push_back(output.metrics.inter_token_latency_mean);
    longest_gap = std::max(longest_gap, output.metrics.inter_token_latency_max);
  };
  run_requests(client, lines, callbacks);
  view.reset();

  client.stop();  // its figures are complete then
  const EngineMetrics metrics = client.stats().metrics;
  write_text(answers + "\n" +
             format_pairs({
                 {"prompts answered together", format_count(metrics.peak_running)},
                 {"tokens in", format_count(metrics.num_prompt_tokens)},
                 {"tokens out", format_count(metrics.num_output_tokens)},
                 {"time to first token, median", format_seconds(percentile(first_token, 0.5))},
                 {"inter-token latency, median", format_seconds(percentile(gaps, 0.5))},
                 {"inter-token latency, longest", format_seconds(longest_gap)},
                 {"tokens/s out", fmt::format("{:.0f}", static_cast<double>(metrics.num_output_tokens) /
                                                            metrics.step_seconds)},
                 {"KV blocks used at the peak",
                  fmt::format("{} of {} (of {} tokens)", format_count(metrics.peak_kv_blocks),
                              format_count(batch.num_kv_blocks), batch.block_size)},
                 {"prefix-cache hit rate",
                  fmt::format("{:.1f} % of the tokens in", 100.0 * metrics.prefix_hit_rate())},
             }));
}

}  // namespace

RunCommand add_demo_command(CLI::App& app) {
  auto flags = std::make_shared<EngineFlags>();
  auto prompts = std::make_shared<std::string>();
  app.add_option("--prompts", *prompts, "other prompts than the model folder's demo_prompts.jsonl")
      ->type_name("FILE.jsonl");
  flags->add(app, RunnerConfig{}, tiny_model_folder());
  return [flags, prompts] { run_demo(*flags, *prompts); };
}

}  // namespace ladder
