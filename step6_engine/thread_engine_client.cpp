// The loop:
//
//   until stopped:
//     sleep until the inbox has tasks or the engine can step
//     for each task of the inbox: task()            add a request, abort one, pause, ...
//     for each update of engine.step(): streams[update.request].push(update)
//     for each output: streams[output.request].end(output), and forget the stream
//
// What the rest buys: whatever happens to the loop, every stream gets its end.
#include "step6_engine/thread_engine_client.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <unordered_set>
#include <utility>

namespace ladder {

namespace {

constexpr std::chrono::seconds kIdleLook{1};

}  // namespace

// Shared by the callers' threads, the loop and the streams.
struct ThreadEngineClient::Inbox {
  std::mutex mutex;
  std::condition_variable wake;  // the loop
  std::deque<Task> tasks;
  std::unordered_set<RequestId> leaving;  // whose abort is among the tasks
  QueuedWork added;                       // submitted, and not in `stats` yet
  // Requests that have not ended. A task for one of them finds it in the engine or finds it ended, never
  // another one of the same id, since tasks are done in order.
  std::unordered_map<RequestId, std::shared_ptr<StreamBuffer>> living;
  int64_t next_id = 0;
  bool stopping = false;  // no more requests
  bool closed = false;    // no more tasks: the loop has ended
  StreamBuffer::Clock::time_point drain_until{};
  EngineStats stats;

  // Under the lock.
  QueuedWork queued() const {
    QueuedWork sum = stats.queued;
    return sum += added;
  }
  void post(Task task) {
    tasks.push_back(std::move(task));
    wake.notify_one();
  }
  // Of a living request.
  void post_abort(Engine& engine, const RequestId& id) {
    leaving.insert(id);
    post([this, &engine, id] {
      engine.abort(id);
      std::lock_guard lock(mutex);
      leaving.erase(id);  // the next one of this id is another request
    });
  }
  std::unordered_set<RequestId> take_leaving() {
    std::lock_guard lock(mutex);
    return std::exchange(leaving, {});
  }
};

ThreadEngineClient::ThreadEngineClient(std::unique_ptr<Engine> engine, EngineClientOptions options)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      inbox_(std::make_shared<Inbox>()),
      counts_tokens_(options_.max_num_queued_tokens > 0),
      trace_(std::make_shared<TraceRing>(trace_header(*engine_))) {
  engine_->add_observer(trace_);
  engine_->executor().on_awaited([inbox = inbox_] {
    std::lock_guard lock(inbox->mutex);
    inbox->wake.notify_one();
  });
  engine_->before_update([this] {
    for (const RequestId& id : inbox_->take_leaving()) engine_->abort(id);
  });
  engine_->on_kv_event([this, inbox = inbox_] {  // an inbox that is not closed has a client
    std::lock_guard lock(inbox->mutex);
    if (!inbox->closed) inbox->post([this] { step_with([this] { return engine_->take_kv_events(); }); });
  });
  publish_stats();
  thread_ = std::thread([this] { run(); });
  loop_id_ = thread_.get_id();
}

ThreadEngineClient::~ThreadEngineClient() {
  stop();
}

RequestStream ThreadEngineClient::submit(const Request& request, std::function<void()> on_ready) {
  auto prepared = std::make_shared<PreparedRequest>(engine_->prepare(request));
  auto buffer = std::make_shared<StreamBuffer>(std::move(on_ready));

  std::lock_guard lock(inbox_->mutex);
  if (!inbox_->stats.error.empty()) throw EngineUnavailable(inbox_->stats.error);
  if (inbox_->stopping) throw EngineUnavailable("the engine is stopping and takes no more requests");
  const std::string full =
      queue_full(inbox_->queued(), options_.max_num_queued_reqs, options_.max_num_queued_tokens);
  if (!full.empty()) throw QueueFull(full);
  RequestId id = prepared->request_id;
  if (id.empty()) {
    do id = std::to_string(inbox_->next_id++);
    while (inbox_->living.contains(id));
  }
  LADDER_CHECK(!inbox_->living.contains(id), "request_id {}: another request of this id has not ended yet",
               id);

  prepared->request_id = id;
  inbox_->living.emplace(id, buffer);
  inbox_->added += work_of(prepared->sampling.n, prepared->prompt_token_ids);
  inbox_->post([this, prepared, buffer] { add(std::move(*prepared), buffer); });

  // Holds the inbox, not the client: a stream may be dropped after the client. Once the loop has ended no
  // request is living.
  auto abandon = [this, inbox = inbox_, id, buffer] {
    std::lock_guard lock(inbox->mutex);
    const auto position = inbox->living.find(id);
    if (position != inbox->living.end() && position->second == buffer) inbox->post_abort(*engine_, id);
  };
  return RequestStream(id, buffer, std::move(abandon));
}

void ThreadEngineClient::abort(const RequestId& id) {
  std::lock_guard lock(inbox_->mutex);
  if (inbox_->living.contains(id)) inbox_->post_abort(*engine_, id);
}

EngineStats ThreadEngineClient::stats() const {
  std::lock_guard lock(inbox_->mutex);
  EngineStats stats = inbox_->stats;
  stats.queued = inbox_->queued();
  stats.num_requests = std::ssize(inbox_->living);
  stats.stopped = inbox_->stopping;
  stats.queue_full = queue_full(stats.queued, options_.max_num_queued_reqs, options_.max_num_queued_tokens);
  return stats;
}

// Runs the task between two steps and returns its answer.
bool ThreadEngineClient::on_loop(std::function<bool()> task) {
  auto answer = std::make_shared<std::promise<bool>>();
  std::future<bool> future = answer->get_future();
  {
    std::lock_guard lock(inbox_->mutex);
    LADDER_CHECK(std::this_thread::get_id() != loop_id_,
                 "the engine's own thread cannot wait for the engine");
    if (inbox_->closed) throw EngineUnavailable("the engine was stopped");
    inbox_->post([task = std::move(task), answer] {
      try {
        answer->set_value(task());
      } catch (...) {
        answer->set_exception(std::current_exception());
      }
    });
  }
  return future.get();
}

void ThreadEngineClient::pause() {
  on_loop([this] {
    paused_ = true;
    while (engine_->num_steps_in_flight() > 0) step_with([this] { return engine_->collect_step(); });
    publish_stats();
    return true;
  });
}

void ThreadEngineClient::resume() {
  on_loop([this] {
    paused_ = false;
    publish_stats();
    return true;
  });
}

bool ThreadEngineClient::reset_prefix_cache() {
  return on_loop([this] { return engine_->reset_prefix_cache(); });
}

// An engine at rest is asked for its blocks once; it answers with the next call.
TraceSlice ThreadEngineClient::trace_since(int64_t position, int64_t max_records) {
  bool was_watched = false;
  TraceSlice slice = trace_->since(position, max_records, &was_watched);
  if (was_watched) return slice;
  std::lock_guard lock(inbox_->mutex);
  if (!inbox_->closed) inbox_->post([this] { trace_->look(*engine_); });
  return slice;
}

void ThreadEngineClient::stop(std::chrono::milliseconds drain) {
  {
    std::lock_guard lock(inbox_->mutex);
    LADDER_CHECK(std::this_thread::get_id() != loop_id_,
                 "the engine's own thread cannot wait for the engine");
    const auto until = StreamBuffer::Clock::now() + drain;
    inbox_->drain_until = inbox_->stopping ? std::min(inbox_->drain_until, until) : until;
    inbox_->stopping = true;
    inbox_->wake.notify_one();
  }
  std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

// >>> task 6.4: the loop
void ThreadEngineClient::run() {
  while (true) {
    std::deque<Task> tasks;
    {
      std::unique_lock lock(inbox_->mutex);
      const auto has_work = [this] {
        return is_awaited() || !inbox_->tasks.empty() || inbox_->stopping ||
               (can_step() && !engine_->waits_for_kv());
      };
      while (!inbox_->wake.wait_for(lock, kIdleLook, has_work)) {
        lock.unlock();
        look_after_idle_engine();
        lock.lock();
      }
      if (inbox_->tasks.empty() && inbox_->stopping &&
          (!can_step() || StreamBuffer::Clock::now() >= inbox_->drain_until)) {
        inbox_->closed = true;
        break;
      }
      tasks.swap(inbox_->tasks);
      taken_ = inbox_->added;
    }
    for (const Task& task : tasks) task();
    deliver(engine_->take_results());  // aborted ones need not wait for a step
    if (can_step() || is_awaited())
      step_with([this] { return can_step() ? engine_->step() : engine_->run_along(); });
    publish_stats();
  }
  for (const auto& [id, buffer] : streams_) engine_->abort(id);
  deliver(engine_->take_results());
  publish_stats();
}

void ThreadEngineClient::add(PreparedRequest request, std::shared_ptr<StreamBuffer> buffer) {
  RequestOutput output;  // in case that it cannot be added
  output.request_id = request.request_id;
  output.prompt_token_ids = request.prompt_token_ids;
  output.completions.resize(static_cast<size_t>(request.sampling.n));
  streams_.emplace(request.request_id, std::move(buffer));
  try {
    engine_->add_request(std::move(request));
  } catch (const std::exception& error) {  // the engine has died since submit() looked
    for (CompletionOutput& completion : output.completions) {
      completion.finish_reason = FinishReason::error;
      completion.error = error.what();
    }
    end_stream(std::move(output));
  }
}

// An engine that dies of a step has ended all of its requests.
template <class Work>
void ThreadEngineClient::step_with(Work work) {
  try {
    deliver(work());
  } catch (const std::exception&) {
    publish_stats();  // first: a reader that submits again after the end gets the error
    deliver(engine_->take_results());
  }
}

void ThreadEngineClient::deliver(StepResult result) {
  for (CompletionUpdate& update : result.updates)
    if (const auto stream = streams_.find(update.request_id); stream != streams_.end())
      stream->second->push(std::move(update));
  for (RequestOutput& output : result.finished) end_stream(std::move(output));
}

void ThreadEngineClient::end_stream(RequestOutput output) {
  const auto stream = streams_.find(output.request_id);
  const std::shared_ptr<StreamBuffer> buffer = std::move(stream->second);
  streams_.erase(stream);
  {
    std::lock_guard lock(inbox_->mutex);
    inbox_->living.erase(output.request_id);  // before its reader may submit another one of this id
  }
  buffer->end(std::move(output));
}
// <<< task 6.4

// Its executor may be processes, of which one has died.
void ThreadEngineClient::look_after_idle_engine() {
  if (engine_->dead()) return;
  try {
    engine_->check();
  } catch (const std::exception&) {
    publish_stats();
  }
}

void ThreadEngineClient::publish_stats() {
  EngineStats stats;
  stats.scheduler = engine_->scheduler().stats();
  stats.metrics = engine_->metrics();
  stats.paused = paused_;
  stats.error = engine_->error();
  stats.exception = engine_->exception();
  stats.queued.num_sequences = stats.scheduler.num_waiting;
  if (counts_tokens_) stats.queued.num_tokens = engine_->scheduler().num_waiting_tokens();
  {
    std::lock_guard lock(inbox_->mutex);
    inbox_->stats = std::move(stats);
    inbox_->added -= taken_;  // the scheduler counts them now
    taken_ = {};
  }
  if (options_.on_turn) options_.on_turn();
}

}  // namespace ladder
