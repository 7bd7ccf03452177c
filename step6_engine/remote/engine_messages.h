#pragma once
// What an engine's process and the process that uses it say to each other (serve_engine.h, socket_engine_client.h).
//
//   user                                   engine
//     |  hello                        hello  |     MessageSocket::exchange_hello
//     |            progress, progress, ...   |     while weights are read
//     |            ready (or failed)         |     what a user must know to check requests
//     |  count_queued_tokens                 |     first, if the user bounds them; it has no bytes
//     |  serving (or failed)                 |     from an API server: it takes connections; no bytes
//     |  submit, abort, call                 |     at any time
//     |                          turn        |     everything that happened since the last one, in one message
//
// A request has a number on the wire, of which the user takes one after the other: its id may come again as soon as it
// has ended, while news of the first one is still on the way. Its prompt is not sent back.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "step6_engine/engine_client.h"

namespace ladder {

enum class EngineMessage : uint32_t {
  progress = 1,
  ready,
  failed,
  turn,
  submit = 16,
  abort,
  call,
  count_queued_tokens,
  serving
};

// From the engine: it could not be made. From an API server: it cannot serve.
struct FailedMessage {
  bool users_mistake = false;  // Error, and not a defect of ours
  std::string text;
};
[[noreturn]] inline void throw_failure(const FailedMessage& failed) {
  if (failed.users_mistake) throw Error(failed.text);
  throw std::runtime_error(failed.text);
}

// --- from the engine ---------------------------------------------------------------------------------------

struct ProgressMessage {
  int64_t done = 0, total = 0;  // bytes of weights
};

// Updates and outputs are without their request's id, outputs without the prompt.
struct UpdateMessage {
  uint64_t number = 0;
  CompletionUpdate update;
};
struct OutputMessage {
  uint64_t number = 0;
  RequestOutput output;
};
// The answer to a call, or to a submission that wants one.
struct ReplyMessage {
  uint64_t number = 0;
  bool value = false;
  bool unavailable = false;  // EngineUnavailable, saying `error`
  bool queue_full = false;   // QueueFull, saying `error`
  std::string error;
  TraceSlice trace;
  std::vector<EngineStats> replicas;
};
// To be read in this order: the statistics are at least as new as what follows.
struct TurnMessage {
  EngineStats stats;
  QueuedWork taken;  // of all submitted so far, what `stats` knows of
  std::vector<UpdateMessage> updates;
  std::vector<OutputMessage> outputs;
  std::vector<ReplyMessage> replies;
};

// --- to the engine -----------------------------------------------------------------------------------------

// Prepared: token ids, and bad words as such.
struct SubmitMessage {
  uint64_t number = 0;
  Request request;
  // A reply says whether the request was taken, and one that was not has no output. Else only what ends it is told.
  bool wants_reply = false;
};
struct AbortMessage {
  uint64_t number = 0;
};
enum class EngineCall : uint8_t { pause, resume, reset_prefix_cache, trace_since, replica_stats, stop };
struct CallMessage {
  uint64_t number = 0;
  EngineCall call = EngineCall::pause;
  int64_t drain_milliseconds = 0;               // of stop
  int64_t trace_position = 0, max_records = 0;  // of trace_since
};

// `ready` is a SchedulerConfig.

}  // namespace ladder
