#include "step8_advanced/disaggregation/connector/consumer.h"

#include <algorithm>
#include <utility>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/connector/messages.h"

namespace ladder {

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kLastWords{2};  // to a producer, of something that can also end by itself

// Whose engine is known by its id, or has computed the prompt, was there to say so.
KvListening listening_of(const KvTransferParams& from) {
  return from.remote_num_tokens > 0 || !from.remote_engine_id.empty() ? KvListening::has_begun
                                                                      : KvListening::may_begin;
}

}  // namespace

KvConsumer::KvConsumer(const KvTransferConfig& config, KvHandshake mine, const KvRanks& ranks)
    : config_(config),
      ranks_(ranks),
      connections_(std::move(mine)),
      heartbeats_(connections_),
      loaders_(config.num_loaders) {}

KvConsumer::~KvConsumer() {
  abandon();
}

void KvConsumer::want(const KvTransferParams& from) {
  heartbeats_.add(from.remote_address, from.remote_request_id);
}

void KvConsumer::give_up(const KvTransferParams& from) {
  heartbeats_.remove(from.remote_address, from.remote_request_id);
  loaders_.add([this, from](int) { say_done(from); });
}

void KvConsumer::start_load(KvLoad load, std::shared_ptr<const std::vector<int32_t>> prompt) {
  const auto started = std::make_shared<Load>();
  const SequenceId id = load.id;
  want(*load.from);
  started->load = std::move(load);
  started->prompt = std::move(prompt);
  {
    const std::lock_guard lock(mutex_);
    loads_[id] = started;
  }
  loaders_.add([this, started](int) { run(*started); });
}

void KvConsumer::cancel_load(SequenceId id) {
  std::unique_lock lock(mutex_);
  const auto found = loads_.find(id);
  if (found == loads_.end()) return;
  const std::shared_ptr<Load> load = found->second;
  if (load->cancelled.exchange(true)) return;
  if (load->channel != nullptr) load->channel->close();
  if (!load->started) {  // its job will see it, too
    finished_.add({id, 0, "it was cancelled"}, load->load.num_tokens, true, steady_clock::now());
    forget(id, lock);
  }
  if (lock.owns_lock()) lock.unlock();
  give_up(*load->load.from);
}

void KvConsumer::abandon() {
  heartbeats_.clear();
  loaders_.drop();
  std::unique_lock lock(mutex_);
  std::erase_if(loads_, [](auto& entry) {
    Load& load = *entry.second;
    load.cancelled = true;
    if (load.channel != nullptr) load.channel->close();
    return !load.started;
  });
  changed_.wait(lock, [this] { return loads_.empty(); });
  finished_.take();
}

void KvConsumer::on_failed_load(std::function<void(const std::string&)> say) {
  const std::lock_guard lock(mutex_);
  say_ = std::move(say);
}

std::string KvConsumer::note_of(const Load& load, const FinishedKvLoad& result) {
  const auto now = steady_clock::now();
  if (now < next_note_) {
    ++num_unsaid_;
    return {};
  }
  next_note_ = now + kBetweenNotes;
  const int64_t num_others = std::exchange(num_unsaid_, 0);
  std::string note = fmt::format(
      "of a prompt {} of {} tokens did not come from {}: {}{}", load.load.num_tokens - result.num_tokens,
      load.load.num_tokens, load.load.from->remote_address, result.error,
      num_others == 0 ? "" : fmt::format(" (and so it was with {} prompts before)", num_others));
  // A line, whatever the other end has said.
  std::ranges::replace_if(
      note, [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return note;
}

void KvConsumer::run(Load& load) {
  {
    const std::lock_guard lock(mutex_);
    if (load.cancelled) return;  // and it was said to be finished
    load.started = true;
  }
  const auto begin = steady_clock::now();
  ReceivedKv received;
  FinishedKvLoad result = outcome(load, received);
  heartbeats_.remove(load.load.from->remote_address, load.load.from->remote_request_id);
  finished_.count_bytes(received.num_bytes);
  std::string note;
  std::unique_lock lock(mutex_);
  const bool cancelled = load.cancelled;
  if (!cancelled && result.num_tokens < load.load.num_tokens) {
    result.ends_sequence = config_.load_failure_policy == KvLoadFailurePolicy::fail;
    if (say_) note = note_of(load, result);
  }
  if (!note.empty()) {
    const auto say = say_;
    lock.unlock();
    say(note);
    lock.lock();
  }
  finished_.add(std::move(result), load.load.num_tokens, cancelled, begin);
  forget(load.load.id, lock);
}

FinishedKvLoad KvConsumer::outcome(Load& load, ReceivedKv& received) {
  const KvDeadline deadline = steady_clock::now() + config_.load_timeout;
  const auto connect = [&] {
    return connection_to(*load.load.from, std::min(deadline, steady_clock::now() + config_.connect_timeout));
  };
  FinishedKvLoad result{load.load.id, 0, {}};
  try {
    KvConnection connection = connect();
    KvReadEnd end;
    try {
      end = read(load, connection, deadline, received);
    } catch (const KvChannelError&) {
      if (!connection.was_used || load.cancelled || received.num_bytes > 0) throw;
      // It died while nobody used it: the engine behind it may be as well as ever.
      connections_.forget(connection.address);
      received = {};
      connection = connect();
      end = read(load, connection, deadline, received);
    }
    result.error = end.error;
    send_kv_message(*connection.channel, KvDone{load.load.from->remote_request_id, received.lease}, deadline);
    const bool valid = receive_kv_message_of<KvConfirmed>(*connection.channel, deadline).valid;
    if (received.num_tokens > 0 && !valid) {
      received.num_tokens = 0;
      result.error = "the blocks that were read had been given back before the end";
    }
    watch(load, nullptr);
    connections_.give_back(std::move(connection));
  } catch (const std::exception& error) {  // no memory, too
    // What came before is whole all the same: it was copied while the producer kept the blocks, and checked.
    result.error = error.what();
    connections_.forget(load.load.from->remote_address);
  }
  result.num_tokens = received.num_tokens;
  return result;
}

KvConnection KvConsumer::connection_to(const KvTransferParams& from, KvDeadline patience) {
  KvConnection connection = connections_.take(from.remote_address, patience, listening_of(from));
  const auto fits = [&] {
    return from.remote_engine_id.empty() || connection.peer.engine_id == from.remote_engine_id;
  };
  if (!fits() && connection.was_used) {
    connections_.forget(from.remote_address);
    connection = connections_.connect(from.remote_address, patience, listening_of(from));
  }
  LADDER_CHECK(fits(), "the engine at {} is {} now, expected {}: it was started again", from.remote_address,
               connection.peer.engine_id, from.remote_engine_id);
  return connection;
}

KvReadEnd KvConsumer::read(Load& load, KvConnection& connection, KvDeadline deadline, ReceivedKv& received) {
  watch(load, connection.channel);
  const int64_t end = load.load.first_token + load.load.num_tokens;
  // Where the producer has said that the tokens are there, they are there or will never be.
  const auto patience = load.load.from->remote_num_tokens >= end
                            ? std::chrono::milliseconds(0)
                            : std::chrono::floor<std::chrono::milliseconds>(deadline - steady_clock::now());
  send_kv_message(*connection.channel,
                  KvReadRequest{load.load.from->remote_request_id, prompt_checksum(*load.prompt, end),
                                load.load.first_token, load.load.num_tokens, patience.count()},
                  deadline);
  return receive_parts(ranks_, connection.peer.layout, connection.reads, load.load, load.cancelled,
                       *connection.copier, *connection.channel, deadline, received);
}

void KvConsumer::watch(Load& load, std::shared_ptr<KvChannel> channel) {
  const std::lock_guard lock(mutex_);
  if (load.cancelled) throw KvChannelError("it was cancelled");
  load.channel = std::move(channel);
}

void KvConsumer::say_done(const KvTransferParams& from) {
  const KvDeadline deadline = steady_clock::now() + kLastWords;
  try {
    // Not to one that was started again: what it has under this id, it has for somebody else.
    KvConnection connection = connection_to(from, deadline);
    send_kv_message(*connection.channel, KvDone{from.remote_request_id}, deadline);
    receive_kv_message_of<KvConfirmed>(*connection.channel, deadline);
    connections_.give_back(std::move(connection));
  } catch (const std::exception&) {  // the lease ends
    connections_.forget(from.remote_address);
  }
}

void KvConsumer::forget(SequenceId id, std::unique_lock<std::mutex>& lock) {
  loads_.erase(id);
  changed_.notify_all();
  lock.unlock();  // who is woken may want a lock that is held while this object is called
  finished_.wake();
}

}  // namespace ladder
