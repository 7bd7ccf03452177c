// ladder generate: continue prompts.
#include <memory>

#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/flag_values.h"
#include "cli/json_lines.h"
#include "cli/make_client.h"
#include "cli/run_requests.h"
#include "cli/sampling_flags.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"

namespace ladder {

namespace {

struct GenerateFlags {
  EngineFlags engine;
  DataParallelFlags replicas;
  SamplingFlags sampling;
  TraceFlags trace;
  std::string prompt, prompts, prompt_token_ids;
  CLI::Option* prompt_option = nullptr;
  std::string format = "text";
};

constexpr int64_t kDefaultMaxTokens = 16;

std::vector<RequestLine> requests_of(const GenerateFlags& flags, SamplingParams defaults) {
  if (!defaults.max_tokens) defaults.max_tokens = kDefaultMaxTokens;
  const SamplingParams sampling = flags.sampling.params(std::move(defaults));
  const bool has_prompt = flags.prompt_option->count() > 0;
  const int given = int{has_prompt} + int{!flags.prompts.empty()} + int{!flags.prompt_token_ids.empty()};
  LADDER_CHECK(given == 1, "generate: expected one of --prompt, --prompts and --prompt-token-ids");
  if (!flags.prompts.empty()) return read_request_lines(flags.prompts, sampling);

  RequestLine line;
  line.where = "--prompt";
  line.request.sampling = sampling;
  if (has_prompt) {
    LADDER_CHECK(!flags.prompt.empty(), "--prompt: the prompt is empty");
    LADDER_CHECK(is_utf8(flags.prompt), "--prompt: expected text in UTF-8");
    line.request.prompt = flags.prompt;
  } else {
    line.where = "--prompt-token-ids";
    line.request.prompt_token_ids = parse_token_ids(flags.prompt_token_ids, line.where);
  }
  return {std::move(line)};
}

// The completions of one request for a person; numbered where there are several.
std::string as_text(int64_t index, const RequestOutput& output, bool several_requests) {
  std::string text;
  for (size_t i = 0; i < output.completions.size(); ++i) {
    const CompletionOutput& completion = output.completions[i];
    if (several_requests && output.completions.size() > 1) {
      text += fmt::format("[{}.{}] ", index, i);
    } else if (several_requests || output.completions.size() > 1) {
      text += fmt::format("[{}] ", several_requests ? index : static_cast<int64_t>(i));
    }
    text += completion.text ? *completion.text : json_list(completion.token_ids);
    if (!completion.error.empty()) text += fmt::format(" [error: {}]", completion.error);
    text += '\n';
  }
  return text;
}

void run_generate(const GenerateFlags& flags) {
  const EngineOptions options = flags.engine.options(&flags.replicas);
  const ModelFolder folder = open_model_folder(options.model, flags.sampling.generation_config());
  const std::vector<RequestLine> lines = requests_of(flags, folder.default_sampling);
  check_requests(lines, folder, options);
  const MadeClient made = make_client(
      {.engine = flags.engine, .replicas = flags.replicas, .trace = flags.trace}, options, folder);

  const bool json = flags.format == "jsonl";
  const bool stream = !json && lines.size() == 1 && lines[0].request.sampling.n == 1 &&
                      folder.tokenizer != nullptr && stdout_is_terminal();
  RunCallbacks callbacks;
  if (stream) {
    callbacks.on_update = [](int64_t, const StreamUpdate& update) {
      for (const CompletionUpdate& completion : update.updates) write_text(completion.text);
    };
    callbacks.on_output = [](int64_t, RequestOutput&) { write_out("\n"); };
  } else {
    callbacks.progress_label = "generating";
    callbacks.on_output = [&](int64_t index, RequestOutput& output) {
      write_text(json ? generate_line(index, output,
                                      wanted_logprobs(lines[static_cast<size_t>(index)].request.sampling))
                      : as_text(index, output, lines.size() > 1));
    };
  }
  run_requests(*made.client, lines, callbacks);
}

}  // namespace

RunCommand add_generate_command(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  flags->prompt_option = app.add_option("--prompt", flags->prompt, "a text to continue")->type_name("TEXT");
  app.add_option(
         "--prompts", flags->prompts,
         "requests, one JSON object per line: {\"prompt\": TEXT} or {\"prompt_token_ids\": [...]}, with any "
         "sampling field of its own (\"max_tokens\": 20); - is standard input")
      ->type_name("FILE.jsonl");
  app.add_option("--prompt-token-ids", flags->prompt_token_ids, "token ids to continue, e.g. 1,2,3")
      ->type_name("IDS");
  app.add_option("--format", flags->format, "text, or jsonl: one JSON object per request, in input order")
      ->check(CLI::IsMember({"text", "jsonl"}))
      ->type_name("FORMAT")
      ->capture_default_str();
  flags->trace.add(app);
  flags->engine.add(app);
  flags->replicas.add(app);
  SamplingParams shown;
  shown.max_tokens = kDefaultMaxTokens;
  flags->sampling.add(app, shown);
  return [flags] { run_generate(*flags); };
}

}  // namespace ladder
