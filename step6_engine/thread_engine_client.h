#pragma once
// Task 6.4: an engine with a thread of its own, in this process.
//
// The thread alone touches the engine. What others want of it (add, abort, pause, ...) goes into an inbox,
// which the loop empties before each step: the inbox's lock is held for a few instructions and never during
// a step. An idle or paused loop sleeps. There is no other such loop: servers and replicas use this one.
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "step6_engine/engine.h"
#include "step6_engine/engine_client.h"
#include "step6_engine/trace/trace_ring.h"

namespace ladder {

struct EngineClientOptions {
  // Requests may be submitted while fewer than that many sequences wait for their first step, else submit()
  // throws QueueFull. 0: no limit. (vLLM: --max-num-queued-reqs.)
  int64_t max_num_queued_reqs = 0;
  // The same for the tokens of these sequences (Scheduler::num_waiting_tokens()): a bound on how long the last one
  // waits, whatever the prompts' lengths. 0: no limit.
  int64_t max_num_queued_tokens = 0;
  // For a SocketEngineClient. Others submit to the same engine, so the other side keeps these bounds too, and submit()
  // waits for its word.
  bool queue_is_shared = false;
  // Called at the end of each turn of the loop, on its thread, when all streams have what the turn brought; as
  // on_ready it must neither block nor throw. Also once before the first turn.
  std::function<void()> on_turn = {};
};

class ThreadEngineClient final : public EngineClient {
 public:
  explicit ThreadEngineClient(std::unique_ptr<Engine> engine, EngineClientOptions options = {});
  ~ThreadEngineClient() override;  // stop()

  RequestStream submit(const Request& request, std::function<void()> on_ready = {}) override;
  void abort(const RequestId& id) override;
  EngineStats stats() const override;
  // These wait for the loop, so on_ready must not call them. Error: it does; EngineUnavailable (stopped).
  void pause() override;
  void resume() override;
  bool reset_prefix_cache() override;
  TraceSlice trace_since(int64_t position, int64_t max_records) override;
  void stop(std::chrono::milliseconds drain = std::chrono::milliseconds(0)) override;

  // From now on the statistics count queued tokens, as they do where there is a bound on them: for a bound that is kept
  // elsewhere (remote/serve_engine.h).
  void count_queued_tokens() { counts_tokens_ = true; }

 private:
  struct Inbox;
  using Task = std::function<void()>;

  bool on_loop(std::function<bool()> task);
  // The rest is the loop's.
  // Until it is stopped: sleeps while the inbox is empty and there is nothing to compute (or all waits for another engine's
  // keys, whose coming is a task), does the inbox's
  // tasks in order, hands out what needs no step, then runs one step, its own or along with others (is_awaited()), and
  // publishes the stats. Stopped, it goes
  // on while it can step and inbox_->drain_until has not come; when it ends the inbox is closed, with no task in
  // it, and what is left is aborted and handed out.
  void run();
  void look_after_idle_engine();
  bool can_step() const { return !paused_ && !engine_->dead() && engine_->has_unfinished(); }
  // Paused too: the others are not.
  bool is_awaited() const { return !engine_->dead() && engine_->executor().is_awaited(); }
  // A request of the inbox. If the engine does not take it any more its stream ends with an output of n
  // completions with FinishReason::error and the engine's message.
  void add(PreparedRequest request, std::shared_ptr<StreamBuffer> buffer);
  // Delivers what a step of the engine brings. Where it dies of it: the stats tell first, then come the outputs
  // that it died with.
  template <class Work>
  void step_with(Work work);
  // Updates and outputs to their streams; an update whose stream has ended is dropped.
  void deliver(StepResult result);
  // Forgets the stream, frees the id of the request (inbox_->living), and only then ends the buffer.
  void end_stream(RequestOutput output);
  void publish_stats();

  const std::unique_ptr<Engine> engine_;
  const EngineClientOptions options_;
  const std::shared_ptr<Inbox> inbox_;  // streams may outlive the client
  std::atomic<bool> counts_tokens_;
  const std::shared_ptr<TraceRing> trace_;
  // The loop's:
  std::unordered_map<RequestId, std::shared_ptr<StreamBuffer>> streams_;
  QueuedWork taken_;  // out of the inbox, and not in its stats yet
  bool paused_ = false;

  std::mutex join_mutex_;  // of thread_
  std::thread thread_;
  std::thread::id loop_id_;
};

}  // namespace ladder
