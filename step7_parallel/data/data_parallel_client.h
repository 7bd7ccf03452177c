#pragma once
// Task 7.7: several engines of the same model behind the functions of one: data parallelism.
//
//   submit(): text to tokens, every check, Balancer::choose() --> replica 1: EngineClient   scheduler, KV cache, weights
//                                                                 replica 0: EngineClient   its own of each
//   RequestStream <--- door: each update as it comes ------------ ...
//
// Replicas know nothing of each other. One that dies takes its own requests with it: those of which the reader has got
// nothing are sent to another replica, once (a request that kills engines shall not kill them all), the others end with
// FinishReason::error and what they have. It is started again meanwhile (replica.h).
//
// The client is dead when it is stopped, never by the death of replicas: while none lives submit() says so, and stats()
// tells how many do. vLLM: vllm/v1/engine/core_client.py (DPLBAsyncMPClient), vllm/v1/engine/coordinator.py.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "step2_model/tokenizer/tokenizer.h"
#include "step6_engine/engine_client.h"
#include "step7_parallel/data/balancer.h"
#include "step7_parallel/data/replica.h"

namespace ladder {

struct DataParallelOptions {
  int num_replicas = 1;
  int first_replica = 0;  // its number among all replicas there are; the others follow
  // Makes the engine of a replica, by its number; several at the same time, each on a thread of its own.
  std::function<StartedEngine(int number)> start;
  std::function<void()> on_stop;  // whatever waits in `start` gives up, now and later
  std::string balancer = "queue_length";
  std::shared_ptr<const Tokenizer> tokenizer;  // null: the model has none
  // As in EngineClientOptions, of all replicas together.
  int64_t max_num_queued_reqs = 0;
  int64_t max_num_queued_tokens = 0;
  // As in ReplicaOptions.
  std::chrono::milliseconds first_pause = ReplicaOptions{}.first_pause;
  std::chrono::milliseconds max_pause = ReplicaOptions{}.max_pause;
  std::chrono::milliseconds stuck_after = ReplicaOptions{}.stuck_after;
  std::function<void(const std::string& line)> log;
};

class DataParallelClient final : public EngineClient {
 public:
  // Returns when all replicas serve. Throws what prevents the first of them that cannot.
  explicit DataParallelClient(DataParallelOptions options);
  ~DataParallelClient() override;  // stop()

  // on_ready is called on a thread of a replica. Error, also: EngineUnavailable while no replica lives.
  RequestStream submit(const Request& request, std::function<void()> on_ready = {}) override;
  void abort(const RequestId& id) override;
  // Sums over the replicas; `paused` and `stopped` are the door's.
  EngineStats stats() const override;
  std::vector<EngineStats> replica_stats() override;
  // These wait for the replicas, so on_ready must not call them. Error: it does.
  void pause() override;
  void resume() override;
  // Of all replicas; none is changed while one of them has a request.
  bool reset_prefix_cache() override;
  // Of the first replica that lives: one engine's steps, not the steps of several in one picture.
  TraceSlice trace_since(int64_t position, int64_t max_records) override;
  void stop(std::chrono::milliseconds drain = std::chrono::milliseconds(0)) override;

  // Of the replica with the smallest cache.
  const SchedulerConfig& config() const { return limits_->config(); }

 private:
  struct Route;
  struct State;

  // Gives the route to a replica. False: none takes requests now.
  bool send(const std::shared_ptr<Route>& route);
  // What the replica has brought for it, on to its reader.
  void pump(const std::shared_ptr<Route>& route);
  // The replica's last word on it: the end, or another try.
  void finish(const std::shared_ptr<Route>& route, RequestOutput output);
  void end(const std::shared_ptr<Route>& route, RequestOutput output);
  void retry();
  std::vector<ReplicaLoad> loads() const;
  std::vector<EngineStats> stats_of_replicas() const;

  const DataParallelOptions options_;
  const std::shared_ptr<State> state_;  // streams may outlive the client
  std::unique_ptr<Scheduler> limits_;   // that checks requests, and never runs one
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::mutex join_mutex_;  // of retries_
  std::thread retries_;
};

}  // namespace ladder
