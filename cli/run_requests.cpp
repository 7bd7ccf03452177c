#include "cli/run_requests.h"

#include <map>

#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step3_sequence/sequence.h"

namespace ladder {

namespace {

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

void check_requests(std::span<const RequestLine> lines, const ModelFolder& folder) {
  for (const RequestLine& line : lines)
    named(line, [&] {
      const Request& request = line.request;
      validate_sampling_params(request.sampling, folder.spec.vocab_size);
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

void run_requests(Engine& engine, std::span<const RequestLine> lines, const RunCallbacks& callbacks) {
  for (size_t i = 0; i < lines.size(); ++i) {
    Request request = lines[i].request;
    request.request_id = std::to_string(i);
    named(lines[i], [&] { return engine.add_request(request); });
  }
  const auto total = static_cast<int64_t>(lines.size());
  std::map<int64_t, RequestOutput> early;  // by index: done before one that was given earlier
  ProgressBar bar(callbacks.progress_label, total, "requests");
  int64_t num_done = 0, num_tokens = 0;
  for (int64_t next = 0; next < total;) {
    StepResult result = engine.step();
    if (callbacks.on_step) callbacks.on_step(result);
    num_tokens += result.metrics.num_tokens;
    num_done += static_cast<int64_t>(result.finished.size());
    if (!callbacks.progress_label.empty()) bar.set(num_done, fmt::format("{} tokens computed", num_tokens));
    if (!result.finished.empty()) bar.clear();
    for (RequestOutput& output : result.finished) {
      const int64_t index = std::stoll(output.request_id);
      early.emplace(index, std::move(output));
    }
    for (auto first = early.begin(); first != early.end() && first->first == next;
         first = early.erase(first), ++next)
      if (callbacks.on_output) callbacks.on_output(next, first->second);
  }
}

}  // namespace ladder
