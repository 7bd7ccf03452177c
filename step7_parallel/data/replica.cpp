#include "step7_parallel/data/replica.h"

#include <algorithm>
#include <utility>

#include "step1_layers/core/error.h"
#include "step6_engine/metrics/sum_fields.h"

namespace ladder {

namespace {

// How often a living engine is looked at, where nobody says that it is dead.
constexpr std::chrono::milliseconds kLook{200};

auto fields_of(auto& stats) {
  auto& [num_waiting, num_running, num_blocks, num_used, num_cached, num_live_tokens, num_preemptions,
         num_queried, num_hit, num_external, num_waiting_for_kv, num_held, transfer] = stats;
  auto& [num_loads, num_failed, num_loaded_tokens, num_missed, num_loaded_bytes, load_seconds, num_sent_bytes,
         num_lapsed, num_uncompressed, num_compressed, compress_seconds, num_stored, num_stored_bytes,
         num_unstored, num_store_bytes] = transfer;
  return std::tie(num_waiting, num_running, num_blocks, num_used, num_cached, num_live_tokens,
                  num_preemptions, num_queried, num_hit, num_external, num_waiting_for_kv, num_held,
                  num_loads, num_failed, num_loaded_tokens, num_missed, num_loaded_bytes, load_seconds,
                  num_sent_bytes, num_lapsed, num_uncompressed, num_compressed, compress_seconds, num_stored,
                  num_stored_bytes, num_unstored);
}

// What stays of an engine's numbers when it is gone.
EngineStats counted_by(const EngineStats& stats) {
  EngineStats counted;
  counted.scheduler.num_preemptions = stats.scheduler.num_preemptions;
  counted.scheduler.num_prefix_queried_tokens = stats.scheduler.num_prefix_queried_tokens;
  counted.scheduler.num_prefix_hit_tokens = stats.scheduler.num_prefix_hit_tokens;
  counted.scheduler.num_external_tokens = stats.scheduler.num_external_tokens;
  counted.scheduler.kv_transfer = stats.scheduler.kv_transfer;
  counted.metrics = stats.metrics;
  return counted;
}

}  // namespace

void add_stats(EngineStats& sum, const EngineStats& more) {
  add_fields(fields_of(sum.scheduler), fields_of(more.scheduler));
  int64_t& store_bytes = sum.scheduler.kv_transfer.num_store_bytes;  // of the one folder of all of them
  store_bytes = std::max(store_bytes, more.scheduler.kv_transfer.num_store_bytes);
  sum.metrics += more.metrics;
  sum.queued += more.queued;
  sum.num_requests += more.num_requests;
}

Replica::Replica(ReplicaOptions options) : options_(std::move(options)) {
  thread_ = std::thread([this] { run(); });
}

Replica::~Replica() {
  stop(std::chrono::milliseconds(0));
  thread_.join();
}

const SchedulerConfig& Replica::wait_until_started() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return started_ || failed_; });
  if (failed_) std::rethrow_exception(failed_);
  return config_;
}

std::shared_ptr<EngineClient> Replica::client() const {
  std::lock_guard lock(mutex_);
  return client_;
}

// Under the lock the client stays, and no copy is made whose end could be the client's.
bool Replica::has_living(const EngineClient* client) const {
  std::lock_guard lock(mutex_);
  if (client_ == nullptr || client_.get() != client) return false;
  const EngineStats stats = client->stats();
  return stats.error.empty() && !stats.stopped;
}

EngineStats Replica::stats() const {
  EngineStats stats;
  std::shared_ptr<EngineClient> client;
  {
    std::lock_guard lock(mutex_);
    stats = past_;
    add_stats(stats, last_);
    stats.error = why_;
    client = client_;
  }
  if (client == nullptr) {
    stats.num_live_replicas = 0;
    return stats;
  }
  EngineStats now = client->stats();
  add_stats(now, stats);
  return now;
}

void Replica::look_soon() {
  std::lock_guard lock(mutex_);
  look_ = true;
  changed_.notify_all();
}

void Replica::stop(std::chrono::milliseconds drain) {
  std::shared_ptr<EngineClient> client;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    why_ = "it was stopped";
    client = client_;
    changed_.notify_all();
  }
  if (client != nullptr) client->stop(drain);
}

void Replica::pause() {
  set_paused(true);
}
void Replica::resume() {
  set_paused(false);
}
void Replica::set_paused(bool paused) {
  std::shared_ptr<EngineClient> client;
  {
    std::lock_guard lock(mutex_);
    paused_ = paused;
    client = client_;
  }
  if (client == nullptr) return;
  try {
    paused ? client->pause() : client->resume();
  } catch (const EngineUnavailable&) {  // has just died
  }
}

void Replica::publish(std::shared_ptr<EngineClient> client, StartedEngine engine) {
  std::unique_lock lock(mutex_);
  for (bool is_paused = false; is_paused != paused_;) {  // whoever pauses now does not find it yet
    is_paused = paused_;
    lock.unlock();
    is_paused ? client->pause() : client->resume();
    lock.lock();
  }
  if (engine.name.empty() || engine.name != name_) add_stats(past_, last_);
  last_ = {};
  name_ = std::move(engine.name);
  client_ = std::move(client);
  config_ = std::move(engine.config);
  const bool again = std::exchange(started_, true);
  changed_.notify_all();
  if (stopping_) return;
  why_.clear();
  if (again) log("serves again");
}

void Replica::withdraw(const std::shared_ptr<EngineClient>& client, const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    // At once, so that nobody counts its numbers twice or not at all.
    last_ = counted_by(client->stats());
    client_ = nullptr;
    if (!why.empty()) why_ = why;
  }
  while (client.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// >>> task 7.7.replica: the life of a replica
void Replica::run() {
  std::chrono::milliseconds pause = options_.first_pause;
  while (true) {
    std::string why;
    try {
      StartedEngine engine = options_.start();
      const auto born = Clock::now();
      std::shared_ptr<EngineClient> client = std::move(engine.client);
      publish(client, std::move(engine));
      why = watch(*client);
      withdraw(client, why);
      client.reset();
      if (Clock::now() - born >= options_.max_pause) pause = options_.first_pause;
    } catch (const std::exception& error) {
      std::lock_guard lock(mutex_);
      if (!started_) {
        failed_ = std::current_exception();
        changed_.notify_all();
        return;
      }
      why = why_ = error.what();
    }
    if (why.empty()) return;
    if (options_.on_lost) options_.on_lost();
    log(fmt::format("{}; it is started again in {:.1f} s", why,
                    std::chrono::duration<double>(pause).count()));
    if (!sleep(pause)) return;
    pause = std::min(2 * pause, options_.max_pause);
  }
}

std::string Replica::watch(EngineClient& client) {
  int64_t num_steps = -1;
  auto last_progress = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const EngineStats stats = client.stats();
    lock.lock();
    if (stopping_) break;
    if (!stats.error.empty()) return stats.error;
    if (stats.stopped && stats.num_requests == 0) return "its engine was stopped";
    if (stats.metrics.num_steps != num_steps || stats.num_requests == 0 || stats.paused)
      last_progress = Clock::now();
    num_steps = stats.metrics.num_steps;
    if (Clock::now() - last_progress > options_.stuck_after)
      return fmt::format("no step has ended for {:.1f} s",
                         std::chrono::duration<double>(options_.stuck_after).count());
    changed_.wait_for(lock, std::min(kLook, options_.stuck_after / 4), [this] { return look_ || stopping_; });
    look_ = false;
  }
  return {};
}

bool Replica::sleep(std::chrono::milliseconds pause) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, pause, [this] { return stopping_; });
}
// <<< task 7.7.replica

void Replica::log(const std::string& what) const {
  if (options_.log) options_.log(fmt::format("replica {}: {}", options_.number, what));
}

}  // namespace ladder
