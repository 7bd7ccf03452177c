#pragma once
// Task 6.4: the engine as all code but its own loop uses it: from any thread.
//
//   submit() --checked--> inbox --> [ the loop:  inbox, then one step of the engine, and again ]
//                                       |
//   RequestStream.next() <-- buffer <---+  updates, in the end the output
//
// What can be wrong with a request is said by submit(), on the caller's thread. From then on all news comes
// by the stream, which always ends with an output: finished, aborted, or FinishReason::error with the reason. A
// slow reader does not hold up the loop: what it has not read is merged, so a buffer never holds more than the
// request's own tokens.
//
// The first implementation is thread_engine_client.h; an engine in another process (remote/), or several of them with
// a balancer (step 7), fit behind the same functions. vLLM: vllm/engine/protocol.py, vllm/v1/engine/async_llm.py.
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "step1_layers/core/error.h"
#include "step5_scheduler/scheduler.h"
#include "step6_engine/metrics/metrics.h"
#include "step6_engine/queued_work.h"
#include "step6_engine/request.h"
#include "step6_engine/request_stream.h"

namespace ladder {

// As many requests wait as may wait; later there may be room again.
class QueueFull : public Error {
 public:
  using Error::Error;
};

// The engine is dead (the message is what it died of) or was stopped: no request will be served any more.
class EngineUnavailable : public Error {
 public:
  using Error::Error;
};

// As of the end of the loop's last turn.
struct EngineStats {
  SchedulerStats scheduler;
  EngineMetrics metrics;     // metrics.num_steps is a heartbeat: it grows while requests are served
  QueuedWork queued;         // what is on its way to the scheduler included
  int64_t num_requests = 0;  // submitted, and not ended
  bool paused = false;
  bool stopped = false;    // no requests are taken
  std::string queue_full;  // what a QueueFull would say now; empty: there is room
  std::string error;       // what the engine died of; empty while it lives
  // Of several engines behind one client, which ends no request of the others where one dies: see replica_stats().
  int64_t num_replicas = 1;
  int64_t num_live_replicas = 1;
  std::exception_ptr exception;  // the same, as it was thrown; null where the engine is in another process
};

// What a viewer has not seen yet: lines of the trace's format (step6_engine/trace/trace_json.h), complete, without
// line ends.
struct TraceSlice {
  std::vector<std::string> lines;
  int64_t next = 0;  // the position to ask with for what follows
  // `lines` begins with the header, and its first record is a restart: what the viewer knew counts no more.
  bool restarted = false;
};

class EngineClient {
 public:
  virtual ~EngineClient() = default;

  // Queues a request. `on_ready`, if given, is called whenever the stream has something after it had nothing,
  // on the engine's thread: it wakes an event loop, and must neither block nor throw. It may be called once
  // more shortly after the stream was dropped. Error, and nothing is queued: as Engine::add_request();
  // QueueFull; EngineUnavailable.
  virtual RequestStream submit(const Request& request, std::function<void()> on_ready = {}) = 0;

  // Ends a request; its stream gets an output with FinishReason::abort and what was generated so far. Ids
  // that are unknown or have ended are ignored, so two aborts are as good as one.
  virtual void abort(const RequestId& id) = 0;

  virtual EngineStats stats() const = 0;
  // Of each engine behind this client, by their numbers; `error` says what one has died of that is not back yet, and what is
  // counted since the start goes on where one was started again. May wait for another process: for those who read it every
  // few seconds. Error: EngineUnavailable (lost).
  virtual std::vector<EngineStats> replica_stats() { return {stats()}; }

  // Returns when no step is being computed; none begins before resume(). Requests are still taken and
  // aborted. A pause within a pause is one pause.
  virtual void pause() = 0;
  virtual void resume() = 0;

  // Forgets all cached prefixes. False, and nothing happens, while a request holds KV blocks.
  virtual bool reset_prefix_cache() = 0;

  // What the engine did since `position` (0: from the beginning of what is there), at most so many records, and fewer
  // where they are large (TraceRingLimits): the next call goes on. Each call
  // has the engine record its steps for some seconds more; otherwise it records none. Who asks too seldom for the
  // size of the buffer gets a restart. An engine that cannot be watched has no lines. Error: EngineUnavailable (lost).
  virtual TraceSlice trace_since(int64_t position, int64_t /*max_records*/) { return {{}, position, false}; }

  // Takes no more requests, goes on for at most `drain` with those that it has, then ends the rest with
  // FinishReason::abort. A second call may shorten the first one's time. An engine that is paused does not
  // drain. The destructor stops without draining.
  virtual void stop(std::chrono::milliseconds drain = std::chrono::milliseconds(0)) = 0;
};

}  // namespace ladder
