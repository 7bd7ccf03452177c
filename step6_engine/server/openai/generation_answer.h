#pragma once
// Task 6.7: the answer to a body while the engine works at it: one RequestStream for each of its prompts, whose updates
// become chunks, or whose outputs become one JSON body.
//
// Nothing is sent before the engine has brought something, so that a request which fails at once still gets its status.
// Dropping the answer drops its streams, and that aborts what still runs.
#include <optional>
#include <string>
#include <vector>

#include "step6_engine/engine_client.h"
#include "step6_engine/server/http/exchange.h"
#include "step6_engine/server/openai/answer_plan.h"
#include "step6_engine/server/openai/chunk_writer.h"

namespace ladder {

class GenerationAnswer final : public HttpAnswer {
 public:
  // `streams[i]` is that of plan.prompts[i]. `client` outlives it.
  GenerationAnswer(EngineClient& client, AnswerPlan plan, std::vector<RequestStream> streams);

  // Takes what the streams have. Streaming: writes it as one piece, and at the end finishes. Else it responds when all
  // outputs are there. A completion that ends with FinishReason::error ends the whole answer with that error: status
  // 500 if nothing was sent before, else as an event, followed by [DONE].
  void advance(HttpExchange& exchange) override;

 private:
  // Takes what stream `prompt` has; its updates become chunks in buffer_. A failure is kept in error_.
  void take(size_t prompt);
  // What a client is told of a request that failed: the engine's own words are for the server's log where they are about
  // the engine.
  std::string message_of(const CompletionOutput& failed) const;
  void end_with_error(HttpExchange& exchange);

  EngineClient& client_;
  const AnswerPlan plan_;
  std::vector<RequestStream> streams_;
  ChunkWriter writer_;                  // of a stream
  std::vector<RequestOutput> outputs_;  // that have come, by prompt
  size_t num_unfinished_;
  std::string buffer_;  // reused
  bool begun_ = false;
  std::optional<std::string> error_;
};

}  // namespace ladder
