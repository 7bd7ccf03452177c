#pragma once
// Task 6.9: an engine in another process, behind the same functions as one in this.
//
//   submit(): text to tokens, every check, on the caller's thread --- submit ---> serve_engine()
//   reader's thread  <--- turn: all updates of a step, outputs, statistics, replies ---
//       each update to its stream's buffer, as the engine's own thread does it elsewhere
//
// Where the connection breaks, every request that is under way ends with FinishReason::error and what it had, and
// stats().error says why. Nothing waits for a peer that does not answer, except for pause(), resume() and
// reset_prefix_cache(), which wait for the engine's loop as they do in one process.
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "step2_model/tokenizer/tokenizer.h"
#include "step5_scheduler/scheduler.h"
#include "step6_engine/engine_client.h"
#include "step6_engine/process/child_process.h"
#include "step6_engine/process/message_socket.h"
#include "step6_engine/remote/engine_messages.h"
#include "step6_engine/thread_engine_client.h"

namespace ladder {

class SocketEngineClient final : public EngineClient {
 public:
  // A peer that takes no message for that long, or is not done that long after a stop, is given up.
  static constexpr std::chrono::seconds kPatience{5};

  // `config` is what the engine said in `ready`; `tokenizer` the one of the same model, or null. `child`, if there
  // is one, is the process at the other end: it ends with the client, and says how it ended if it does before.
  SocketEngineClient(std::unique_ptr<MessageSocket> socket, SchedulerConfig config,
                     std::shared_ptr<const Tokenizer> tokenizer, EngineClientOptions options = {},
                     std::unique_ptr<ChildProcess> child = nullptr);
  ~SocketEngineClient() override;  // stop()

  // on_ready is called on the reader's thread.
  RequestStream submit(const Request& request, std::function<void()> on_ready = {}) override;
  void abort(const RequestId& id) override;
  EngineStats stats() const override;
  // These wait for the engine, so on_ready must not call them. Error: it does; EngineUnavailable (stopped, lost).
  void pause() override;
  void resume() override;
  bool reset_prefix_cache() override;
  // A peer that does not answer within kPatience has no lines.
  TraceSlice trace_since(int64_t position, int64_t max_records) override;
  // Of a peer that does not answer within kPatience: their sum.
  std::vector<EngineStats> replica_stats() override;
  void stop(std::chrono::milliseconds drain = std::chrono::milliseconds(0)) override;

  const SchedulerConfig& config() const { return limits_.config(); }

 private:
  struct InFlight;
  struct Link;

  // The reply that came. Error, EngineUnavailable, QueueFull: it says so.
  static ReplyMessage checked(ReplyMessage reply);
  bool call(EngineCall call);
  std::future<ReplyMessage> send_call(CallMessage message);
  void check_thread() const;
  // The reader's:
  // Until the connection ends: takes turns. Then lose().
  void run();
  // The statistics and what was taken (link_->stats, link_->taken) first. Each update, with its request's id, goes to
  // the request's buffer, and what it brings is also appended to what is known of the answer (so_far). An output, with
  // its request's id and prompt, ends the request, which is not under way any more, and its id free, before its buffer
  // ends. Replies last, each to the promise of its call, which is forgotten. What belongs to no request or call that is
  // under way is dropped. In the end on_turn, if there is one. link_->mutex is never held while a buffer is given
  // something, since that calls on_ready. Error: a completion that its request does not have.
  void take_turn(TurnMessage turn);
  // The connection has ended. Unless that was asked for it is the engine's death: the statistics tell, then every
  // request ends with FinishReason::error and what is known of its answer, then every call.
  void lose(const std::string& why);

  const Scheduler limits_;  // that checks requests, and never runs one
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const EngineClientOptions options_;
  const std::unique_ptr<ChildProcess> child_;
  const std::shared_ptr<Link> link_;  // streams may outlive the client

  std::mutex join_mutex_;  // of reader_
  std::thread reader_;
  std::thread::id reader_id_;
};

}  // namespace ladder
