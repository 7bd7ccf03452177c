#include "cli/run_requests.h"

#include <chrono>
#include <exception>
#include <optional>
#include <vector>

#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step3_sequence/sequence.h"

namespace ladder {

namespace {

constexpr std::chrono::milliseconds kRefresh(33);  // of what is shown while nothing comes

// Runs fn; what it throws begins with the line.
template <class Fn>
auto named(const RequestLine& line, Fn&& fn) {
  try {
    return fn();
  } catch (const Error& error) {
    throw Error(line.where + ": " + error.what());
  }
}

}  // namespace

std::unique_ptr<Engine> load_engine_with_progress(EngineOptions options, const ModelFolder& folder) {
  ProgressBar bar("loading", 0, "bytes");
  options.progress = [&bar](int64_t done, int64_t total) {
    bar.set_total(total);
    bar.set(done);
  };
  return load_engine(options, folder);
}

void check_requests(std::span<const RequestLine> lines, const ModelFolder& folder,
                    const EngineOptions& options) {
  for (const RequestLine& line : lines)
    named(line, [&] {
      const Request& request = line.request;
      validate_sampling_params(request.sampling, folder.spec.vocab_size);
      check_max_logprobs(request.sampling, folder.spec.vocab_size, options.max_logprobs);
      if (request.prompt) {
        LADDER_CHECK(folder.tokenizer != nullptr,
                     "a text prompt needs a tokenizer, and the model's folder has no tokenizer.json: "
                     "expected token ids");
      } else {
        validate_prompt(request.prompt_token_ids, folder.spec.vocab_size);
      }
      LADDER_CHECK(
          (request.sampling.stop.empty() && request.sampling.bad_words.empty()) ||
              folder.tokenizer != nullptr,
          "stop strings and bad words need a tokenizer, and the model's folder has no tokenizer.json");
    });
}

void run_requests(EngineClient& client, std::span<const RequestLine> lines, const RunCallbacks& callbacks) {
  std::vector<RequestStream> streams;
  client.pause();  // so that the first step sees all of them, and none runs if one is wrong
  for (const RequestLine& line : lines) {
    Request request = line.request;
    request.request_id.clear();  // the client numbers them: several lines may have the same
    request.output_only = !callbacks.on_update;
    streams.push_back(named(line, [&] { return client.submit(request); }));
  }
  client.resume();

  std::vector<std::optional<RequestOutput>> outputs(lines.size());
  const auto read = [&](size_t i, std::chrono::milliseconds timeout) {
    std::optional<StreamUpdate> update = streams[i].next(timeout);
    if (!update) return;
    if (callbacks.on_update) callbacks.on_update(static_cast<int64_t>(i), *update);
    if (update->output) outputs[i] = std::move(update->output);
  };
  ProgressBar bar(callbacks.progress_label, std::ssize(lines), "requests");
  for (size_t next = 0; next < lines.size(); ++next) {
    while (!outputs[next]) {
      read(next, kRefresh);
      if (callbacks.on_update)  // else what the others have waits for their turn
        for (size_t i = next + 1; i < lines.size(); ++i) read(i, std::chrono::milliseconds(0));
      if (callbacks.progress_label.empty()) continue;
      const EngineMetrics metrics = client.stats().metrics;
      bar.set(metrics.num_requests_finished, fmt::format("{} tokens computed", metrics.num_tokens));
    }
    bar.clear();
    check_engine_lives(client, *outputs[next]);
    if (callbacks.on_output) callbacks.on_output(static_cast<int64_t>(next), *outputs[next]);
    outputs[next].reset();
  }
}

void check_engine_lives(const EngineClient& client, const RequestOutput& output) {
  const EngineStats stats = client.stats();
  if (stats.error.empty()) return;
  for (const CompletionOutput& completion : output.completions)
    if (completion.finish_reason == FinishReason::error && completion.error == stats.error) {
      if (stats.exception) std::rethrow_exception(stats.exception);
      throw EngineUnavailable(stats.error);
    }
}

}  // namespace ladder
