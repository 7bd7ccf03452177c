// ladder chat: a conversation in the terminal.
//
// Every turn sends the whole conversation; the prefix cache makes that cheap, since it holds all but the newest
// message.
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/run_requests.h"
#include "cli/sampling_flags.h"
#include "cli/say_quantization.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step2_model/chat/chat_template.h"
#include "step6_engine/thread_engine_client.h"

namespace ladder {

namespace {

struct ChatFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string system;
  bool no_thinking = false;
};

constexpr int64_t kDefaultMaxTokens = 1024;

class Conversation {
 public:
  // Of at most `max_model_len` tokens.
  Conversation(EngineClient& client, int64_t max_model_len, const Tokenizer& tokenizer,
               const ChatTemplate& chat_template, const ChatFlags& flags, const SamplingParams& sampling)
      : client_(client),
        max_model_len_(max_model_len),
        tokenizer_(tokenizer),
        template_(chat_template),
        sampling_(sampling) {
    if (flags.no_thinking) options_.enable_thinking = false;
    for (const int32_t id : turn_end_token_ids(template_, tokenizer_)) sampling_.stop_token_ids.push_back(id);
    if (!flags.system.empty()) messages_.push_back({"system", flags.system});
    num_fixed_ = messages_.size();
  }

  // Answers the message, streaming to standard output. A message that is too long even alone is refused, and
  // the conversation stays as it is.
  void say(const std::string& text) {
    std::vector<ChatMessage> messages = messages_;
    messages.push_back({"user", text});
    std::vector<int32_t> prompt = encoded(messages);
    const int64_t limit = max_model_len_;
    int64_t dropped = 0;
    while (std::ssize(prompt) + kMinAnswer > limit && messages.size() > num_fixed_ + 1) {
      const auto oldest = messages.begin() + static_cast<std::ptrdiff_t>(num_fixed_);
      messages.erase(oldest, oldest + 2);  // a question and its answer
      dropped += 2;
      prompt = encoded(messages);
    }
    if (std::ssize(prompt) + 1 > limit) {
      write_out(
          fmt::format("[not sent: with its {} tokens it does not fit the {} tokens of a conversation]\n",
                      prompt.size(), limit));
      return;
    }
    if (dropped > 0)
      write_out(
          fmt::format("[the conversation has filled its {} tokens: the {} oldest messages were dropped]\n",
                      limit, dropped));
    messages_ = std::move(messages);
    answer(std::move(prompt));
  }

 private:
  static constexpr int64_t kMinAnswer = 32;  // tokens that an answer should have room for

  std::vector<int32_t> encoded(const std::vector<ChatMessage>& messages) const {
    return encode_chat(template_, tokenizer_, messages, options_);
  }

  void answer(std::vector<int32_t> prompt) {
    Request request;
    request.prompt_token_ids = std::move(prompt);
    request.sampling = sampling_;
    RequestStream stream = client_.submit(request);
    RequestOutput output;
    while (std::optional<StreamUpdate> update = stream.next()) {
      for (const CompletionUpdate& completion : update->updates) write_text(completion.text);
      if (update->output) output = std::move(*update->output);
    }
    check_engine_lives(client_, output);
    const CompletionOutput& completion = output.completions[0];
    if (!completion.error.empty()) write_out(fmt::format(" [error: {}]", completion.error));
    messages_.push_back({"assistant", completion.text.value_or("")});
    const RequestMetrics& metrics = output.metrics;
    write_out(fmt::format("\n[{} tokens in, {} of them cached, {} out, first after {}, then {} each]\n",
                          metrics.num_prompt_tokens, metrics.num_cached_tokens, metrics.num_output_tokens,
                          format_seconds(metrics.time_to_first_token),
                          format_seconds(metrics.inter_token_latency_mean)));
  }

  EngineClient& client_;
  int64_t max_model_len_;
  const Tokenizer& tokenizer_;
  const ChatTemplate& template_;
  SamplingParams sampling_;
  ChatOptions options_;
  std::vector<ChatMessage> messages_;
  size_t num_fixed_ = 0;  // the system message, never dropped
};

void run_chat(const ChatFlags& flags) {
  LADDER_CHECK(is_utf8(flags.system), "--system: expected text in UTF-8");
  const EngineOptions options = flags.engine.options();
  const ModelFolder folder = open_model_folder(options.model, flags.sampling.generation_config());
  say_quantization(folder.spec, options.runner.kv_cache_dtype, options.runner.device);
  SamplingParams defaults = folder.default_sampling;
  if (!defaults.max_tokens) defaults.max_tokens = kDefaultMaxTokens;
  const SamplingParams sampling = flags.sampling.params(std::move(defaults));
  LADDER_CHECK(sampling.n == 1, "--n {}: a conversation has one answer at a time", sampling.n);
  LADDER_CHECK(folder.tokenizer != nullptr, "chat: {} has no tokenizer.json", flags.engine.model);
  const ChatTemplate chat_template = load_chat_template(options.model);
  LADDER_CHECK(
      !flags.no_thinking || chat_template.has_thinking_switch(),
      "--no-thinking: the chat template of {} has no thinking to switch off (it reads no enable_thinking)",
      flags.engine.model);
  std::unique_ptr<Engine> engine = load_engine_with_progress(options, folder);
  const int64_t max_model_len = engine->scheduler().config().batch.max_model_len;
  ThreadEngineClient client(std::move(engine));

  Conversation conversation(client, max_model_len, *folder.tokenizer, chat_template, flags, sampling);
  const bool prompts = stdin_is_terminal();
  if (prompts) write_out("Type a message and press return; ctrl-D ends.\n");
  std::string line;
  while (true) {
    if (prompts) write_out("> ");
    if (!std::getline(std::cin, line)) break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (!is_utf8(line)) {
      write_out("[not sent: expected text in UTF-8]\n");
      continue;
    }
    conversation.say(line);
  }
  if (prompts) write_out("\n");
}

}  // namespace

RunCommand add_chat_command(CLI::App& app) {
  auto flags = std::make_shared<ChatFlags>();
  app.add_option("--system", flags->system, "a system message to begin with")->type_name("TEXT");
  app.add_flag("--no-thinking", flags->no_thinking, "Qwen3: answer without thinking aloud first");
  flags->engine.add(app);
  SamplingParams shown;
  shown.max_tokens = kDefaultMaxTokens;
  flags->sampling.add(app, shown);
  return [flags] { run_chat(*flags); };
}

}  // namespace ladder
