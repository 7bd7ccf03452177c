#include "step7_parallel/data/data_parallel_client.h"

#include <algorithm>
#include <utility>

#include "step1_layers/core/error.h"
#include "step6_engine/prepare_request.h"

namespace ladder {

namespace {

constexpr int kMaxAttempts = 2;
// A position in the trace of the engine that is watched as the n-th is n times this, and the one that the engine knows.
constexpr int64_t kTracePositions = int64_t{1} << 40;

// A thread that tells a reader its news, mostly a replica's: who waits for the replicas in there waits for ever.
class TellsNews {
 public:
  TellsNews() { ++depth_; }
  ~TellsNews() { --depth_; }
  static void expect_none() {
    LADDER_CHECK(depth_ == 0, "a replica's own thread cannot wait for the replicas");
  }

 private:
  static thread_local int depth_;
};
thread_local int TellsNews::depth_ = 0;

RequestOutput ended_output(const Request& request, FinishReason reason, const std::string& error) {
  RequestOutput output;
  output.request_id = request.request_id;
  output.prompt_token_ids = request.prompt_token_ids;
  output.completions.resize(static_cast<size_t>(request.sampling.n));
  for (CompletionOutput& one : output.completions) {
    one.finish_reason = reason;
    one.error = error;
  }
  return output;
}

bool has_failed(const RequestOutput& output) {
  return std::ranges::any_of(output.completions, [](const CompletionOutput& one) {
    return one.finish_reason == FinishReason::error;
  });
}

}  // namespace

// A request's way through the door.
struct DataParallelClient::Route {
  Request request;  // prepared: token ids
  std::shared_ptr<StreamBuffer> buffer;

  // What the replica sends; by whoever pumps.
  std::mutex mutex;
  std::optional<RequestStream> stream;  // none before it was sent, and after its end
  std::vector<CompletionUpdate>
      last_words;  // that a completion has failed: not told before it is known whether it is tried again
  bool streamed = false;  // the reader may have got something

  // Under State::mutex:
  std::weak_ptr<EngineClient> client;  // that has it
  // The same, for the client's own threads, which must not keep it from its end and see it live.
  const EngineClient* engine = nullptr;
  int replica = 0;
  int num_attempts = 0;  // replicas that have taken it
  bool aborted = false;
};

struct DataParallelClient::State {
  // Held from a decision until the chosen replica counts the request, so that the next decision sees it.
  std::mutex decision_mutex;
  std::unique_ptr<Balancer> balancer;

  std::mutex mutex;  // never held while a client or a buffer is called
  std::condition_variable wake;
  std::unordered_map<RequestId, std::shared_ptr<Route>> routes;  // of requests that have not ended
  std::deque<std::shared_ptr<Route>> retries;
  int64_t next_id = 0;
  bool paused = false;
  bool stopping = false;
  // Of each replica: completions by how they ended here, since an engine that dies does not count its last ones, and counts
  // those that are tried again.
  std::vector<decltype(ServingMetrics::num_completions_ended)> num_ended;
  const EngineClient* watched = nullptr;  // whose trace was read last
  int64_t num_watched = 0;

  // Tells the replica that has it; a route without one is looked at by whoever sends it.
  void abort(const RequestId& id, const StreamBuffer* of) {
    std::shared_ptr<EngineClient> client;
    {
      std::lock_guard lock(mutex);
      const auto found = routes.find(id);
      if (found == routes.end() || (of != nullptr && found->second->buffer.get() != of)) return;
      found->second->aborted = true;
      client = found->second->client.lock();
    }
    if (client != nullptr) client->abort(id);
  }
};

DataParallelClient::DataParallelClient(DataParallelOptions options)
    : options_(std::move(options)), state_(std::make_shared<State>()) {
  state_->num_ended.resize(static_cast<size_t>(options_.num_replicas));
  make_balancer(options_.balancer, {});  // a wrong name is said before anything is loaded
  for (int i = 0; i < options_.num_replicas; ++i) {
    ReplicaOptions replica;
    replica.number = options_.first_replica + i;
    replica.start = [this, number = replica.number] { return options_.start(number); };
    replica.first_pause = options_.first_pause;
    replica.max_pause = options_.max_pause;
    replica.stuck_after = options_.stuck_after;
    replica.log = options_.log;
    replica.on_lost = [this, i] {
      std::lock_guard lock(state_->decision_mutex);
      if (state_->balancer != nullptr) state_->balancer->forget(i);
    };
    replicas_.push_back(std::make_unique<Replica>(std::move(replica)));
  }
  SchedulerConfig smallest;
  try {
    for (size_t i = 0; i < replicas_.size(); ++i) {
      const SchedulerConfig& config = replicas_[i]->wait_until_started();
      if (i == 0 || config.batch.num_kv_blocks < smallest.batch.num_kv_blocks) smallest = config;
    }
  } catch (...) {
    if (options_.on_stop) options_.on_stop();  // the others are waited for
    throw;
  }
  limits_ = std::make_unique<Scheduler>(smallest);
  BalancerOptions balancer;
  balancer.num_replicas = options_.num_replicas;
  balancer.cache_tokens = smallest.batch.num_kv_blocks * smallest.batch.block_size;
  {
    std::lock_guard lock(state_->decision_mutex);
    state_->balancer = make_balancer(options_.balancer, balancer);
  }
  retries_ = std::thread([this] { retry(); });
}

DataParallelClient::~DataParallelClient() {
  stop();
}

RequestStream DataParallelClient::submit(const Request& request, std::function<void()> on_ready) {
  PreparedRequest prepared = prepare_request(request, options_.tokenizer.get(), *limits_);
  prepared.sampling.bad_words.clear();  // they are ids now, and would become ids once more
  auto route = std::make_shared<Route>();
  route->request.request_id = std::move(prepared.request_id);
  route->request.prompt_token_ids = std::move(prepared.prompt_token_ids);
  route->request.sampling = std::move(prepared.sampling);
  route->request.kv_transfer = request.kv_transfer;
  route->request.output_only = request.output_only;
  route->buffer = std::make_shared<StreamBuffer>(std::move(on_ready));
  RequestId& id = route->request.request_id;
  {
    std::lock_guard decision(state_->decision_mutex);
    if (options_.max_num_queued_reqs > 0 || options_.max_num_queued_tokens > 0)
      if (const std::string full = stats().queue_full; !full.empty()) throw QueueFull(full);
    {
      std::lock_guard lock(state_->mutex);
      if (state_->stopping) throw EngineUnavailable("the engine is stopping and takes no more requests");
      if (id.empty()) {
        do id = std::to_string(state_->next_id++);
        while (state_->routes.contains(id));
      }
      LADDER_CHECK(state_->routes.emplace(id, route).second,
                   "request_id {}: another request of this id has not ended yet", id);
    }
    try {
      if (!send(route))
        throw EngineUnavailable(fmt::format("none of {} replicas is alive", options_.num_replicas));
    } catch (...) {
      std::lock_guard lock(state_->mutex);
      state_->routes.erase(id);
      throw;
    }
  }
  pump(route);
  return RequestStream(id, route->buffer,
                       [state = state_, id, buffer = route->buffer] { state->abort(id, buffer.get()); });
}

std::vector<ReplicaLoad> DataParallelClient::loads() const {
  std::vector<ReplicaLoad> loads;
  for (const auto& replica : replicas_) {
    const std::shared_ptr<EngineClient> client = replica->client();
    ReplicaLoad& load = loads.emplace_back();
    load.takes_requests = client != nullptr;
    if (client == nullptr) continue;
    const EngineStats stats = client->stats();
    const SchedulerStats& scheduler = stats.scheduler;
    load.takes_requests = stats.error.empty() && !stats.stopped;
    load.num_waiting = stats.queued.num_sequences;
    load.num_running = scheduler.num_running;
    load.num_in_flight = stats.num_requests;
    load.kv_usage = scheduler.num_blocks == 0 ? 0
                                              : static_cast<double>(scheduler.num_used_blocks) /
                                                    static_cast<double>(scheduler.num_blocks);
  }
  return loads;
}

// >>> task 7.7.door: requests to replicas, and what they bring back to the readers
bool DataParallelClient::send(const std::shared_ptr<Route>& route) {
  std::vector<ReplicaLoad> loads = this->loads();
  const Request& request = route->request;
  while (std::ranges::any_of(loads, [](const ReplicaLoad& load) { return load.takes_requests; })) {
    const auto chosen =
        static_cast<size_t>(state_->balancer->choose({request.prompt_token_ids, request.sampling.n}, loads));
    const std::shared_ptr<EngineClient> client = replicas_[chosen]->client();
    loads[chosen].takes_requests = false;  // what follows fails where it has died since
    if (client == nullptr) continue;
    {
      std::lock_guard lock(state_->mutex);
      route->client = client;
      route->engine = client.get();
      route->replica = static_cast<int>(chosen);
    }
    try {
      RequestStream stream = client->submit(request, [this, route] { pump(route); });
      {
        // One that refuses is no attempt. Nothing of it ends before the stream is there for pump().
        std::lock_guard lock(state_->mutex);
        ++route->num_attempts;
      }
      std::lock_guard lock(route->mutex);
      route->stream = std::move(stream);
    } catch (const EngineUnavailable&) {
      replicas_[chosen]->look_soon();
      continue;
    }
    std::unique_lock lock(state_->mutex);
    const bool aborted = route->aborted;  // while it was on its way
    lock.unlock();
    if (aborted) client->abort(request.request_id);
    return true;
  }
  return false;
}

void DataParallelClient::pump(const std::shared_ptr<Route>& route) {
  const TellsNews telling;
  std::unique_lock lock(route->mutex);
  if (!route->stream) return;
  std::optional<StreamUpdate> update = route->stream->next(std::chrono::nanoseconds(0));
  if (!update) return;  // another one has taken it
  for (CompletionUpdate& one : update->updates) {
    if (one.finish_reason == FinishReason::error) {
      route->last_words.push_back(std::move(one));
      continue;
    }
    if (route->request.output_only) continue;
    route->streamed = true;
    route->buffer->push(std::move(one));
  }
  if (!update->output) return;
  route->stream.reset();
  lock.unlock();
  finish(route, std::move(*update->output));
}

void DataParallelClient::finish(const std::shared_ptr<Route>& route, RequestOutput output) {
  Replica& replica = *replicas_[static_cast<size_t>(route->replica)];
  const bool lost = has_failed(output) && !replica.has_living(route->engine);
  if (lost) {
    replica.look_soon();
    std::lock_guard lock(state_->mutex);
    if (!route->streamed && !route->aborted && route->num_attempts < kMaxAttempts && !state_->stopping) {
      route->last_words.clear();
      state_->retries.push_back(route);
      state_->wake.notify_one();
      return;
    }
  }
  for (CompletionUpdate& one : route->last_words) route->buffer->push(std::move(one));
  end(route, std::move(output));
}

void DataParallelClient::retry() {
  while (true) {
    std::shared_ptr<Route> route;
    bool aborted = false;
    {
      std::unique_lock lock(state_->mutex);
      state_->wake.wait(lock, [this] { return state_->stopping || !state_->retries.empty(); });
      if (state_->retries.empty()) return;
      route = std::move(state_->retries.front());
      state_->retries.pop_front();
      aborted = route->aborted || state_->stopping;
    }
    if (aborted) {
      end(route, ended_output(route->request, FinishReason::abort, {}));
      continue;
    }
    std::string error = "its replica has died, and no other is alive";
    try {
      std::lock_guard decision(state_->decision_mutex);
      if (send(route)) error.clear();
    } catch (const std::exception& refused) {
      error = refused.what();
    }
    if (error.empty())
      pump(route);
    else
      end(route, ended_output(route->request, FinishReason::error, error));
  }
}
// <<< task 7.7.door

// Its id is free before its reader may submit another one of it.
void DataParallelClient::end(const std::shared_ptr<Route>& route, RequestOutput output) {
  {
    std::lock_guard lock(state_->mutex);
    state_->routes.erase(route->request.request_id);
    for (const CompletionOutput& one : output.completions)
      ++state_->num_ended[static_cast<size_t>(route->replica)][static_cast<size_t>(one.finish_reason)];
  }
  const TellsNews telling;
  route->buffer->end(std::move(output));
}

void DataParallelClient::abort(const RequestId& id) {
  state_->abort(id, nullptr);
}

EngineStats DataParallelClient::stats() const {
  EngineStats sum;
  sum.num_replicas = options_.num_replicas;
  sum.num_live_replicas = 0;
  for (const EngineStats& stats : stats_of_replicas()) {
    add_stats(sum, stats);
    sum.num_live_replicas += stats.error.empty() ? 1 : 0;
  }
  sum.queue_full = queue_full(sum.queued, options_.max_num_queued_reqs, options_.max_num_queued_tokens);
  std::lock_guard lock(state_->mutex);
  sum.num_requests = std::ssize(state_->routes);
  sum.paused = state_->paused;
  sum.stopped = state_->stopping;
  return sum;
}

std::vector<EngineStats> DataParallelClient::replica_stats() {
  return stats_of_replicas();
}

std::vector<EngineStats> DataParallelClient::stats_of_replicas() const {
  std::vector<EngineStats> all;
  for (const auto& replica : replicas_) all.push_back(replica->stats());
  std::lock_guard lock(state_->mutex);
  for (size_t i = 0; i < all.size(); ++i) all[i].metrics.serving.num_completions_ended = state_->num_ended[i];
  return all;
}

void DataParallelClient::pause() {
  TellsNews::expect_none();
  {
    std::lock_guard lock(state_->mutex);
    state_->paused = true;
  }
  for (const auto& replica : replicas_) replica->pause();
}

void DataParallelClient::resume() {
  TellsNews::expect_none();
  for (const auto& replica : replicas_) replica->resume();
  std::lock_guard lock(state_->mutex);
  state_->paused = false;
}

bool DataParallelClient::reset_prefix_cache() {
  TellsNews::expect_none();
  std::lock_guard decision(state_->decision_mutex);  // no request is sent meanwhile
  {
    std::lock_guard lock(state_->mutex);
    if (!state_->routes.empty()) return false;
  }
  bool all = true;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const std::shared_ptr<EngineClient> client = replicas_[i]->client();
    if (client == nullptr) continue;
    all = client->reset_prefix_cache() && all;
    state_->balancer->forget(static_cast<int>(i));
  }
  return all;
}

TraceSlice DataParallelClient::trace_since(int64_t position, int64_t max_records) {
  for (const auto& replica : replicas_) {
    const std::shared_ptr<EngineClient> client = replica->client();
    if (client == nullptr) continue;
    int64_t engine = 0;
    {
      std::lock_guard lock(state_->mutex);
      if (std::exchange(state_->watched, client.get()) != client.get()) ++state_->num_watched;
      engine = state_->num_watched;
    }
    const bool same = position / kTracePositions == engine;
    TraceSlice slice = client->trace_since(same ? position % kTracePositions : 0, max_records);
    slice.next += engine * kTracePositions;
    return slice;
  }
  return {{}, position, false};
}

void DataParallelClient::stop(std::chrono::milliseconds drain) {
  TellsNews::expect_none();
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    state_->wake.notify_all();
  }
  if (options_.on_stop) options_.on_stop();
  std::vector<std::thread> stopping;
  for (const auto& replica : replicas_) stopping.emplace_back([&replica, drain] { replica->stop(drain); });
  for (std::thread& thread : stopping) thread.join();
  std::lock_guard join(join_mutex_);
  if (retries_.joinable()) retries_.join();
}

}  // namespace ladder
