#include "step6_engine/server/openai/generation_answer.h"

#include <utility>

#include "step1_layers/core/task_not_implemented.h"
#include "step6_engine/server/http/errors.h"
#include "step6_engine/server/openai/whole_answer.h"

namespace ladder {

namespace {

constexpr std::string_view kErrorType = "InternalServerError";

}  // namespace

GenerationAnswer::GenerationAnswer(EngineClient& client, AnswerPlan plan, std::vector<RequestStream> streams)
    : client_(client),
      plan_(std::move(plan)),
      streams_(std::move(streams)),
      writer_(plan_),
      outputs_(streams_.size()),
      num_unfinished_(streams_.size()) {}

std::string GenerationAnswer::message_of(const CompletionOutput& failed) const {
  if (!client_.stats().error.empty()) return "the engine has failed, and serves no more requests";
  return failed.error;
}

void GenerationAnswer::end_with_error(HttpExchange& exchange) {
  if (!begun_) return exchange.respond(error_response(500, *error_, kErrorType));
  buffer_ += "data: " + error_body(500, *error_, kErrorType) + "\n\ndata: [DONE]\n\n";
  exchange.write(buffer_);
  exchange.finish();
}

// >>> task 6.7: from the engine's streams to one answer
void GenerationAnswer::take(size_t prompt) {
  std::optional<StreamUpdate> news = streams_[prompt].next(std::chrono::nanoseconds(0));
  if (!news) return;
  if (plan_.stream)
    for (const CompletionUpdate& update : news->updates)
      if (update.finish_reason != FinishReason::error)
        writer_.write(buffer_, static_cast<int64_t>(prompt), update);
  if (!news->output) return;
  --num_unfinished_;
  for (const CompletionOutput& completion : news->output->completions)
    if (completion.finish_reason == FinishReason::error) error_ = message_of(completion);
  writer_.count(*news->output);
  outputs_[prompt] = std::move(*news->output);
}

void GenerationAnswer::advance(HttpExchange& exchange) {
  buffer_.clear();
  for (size_t prompt = 0; prompt < streams_.size() && !error_; ++prompt) take(prompt);
  if (error_) return end_with_error(exchange);
  if (!plan_.stream) {
    if (num_unfinished_ == 0) exchange.respond({.body = whole_answer(plan_, outputs_)});
    return;
  }
  if (num_unfinished_ == 0) writer_.finish(buffer_);
  if (buffer_.empty()) return;
  if (!std::exchange(begun_, true))
    exchange.begin({.content_type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}}});
  exchange.write(buffer_);
  if (num_unfinished_ == 0) exchange.finish();
}
// <<< task 6.7

}  // namespace ladder
