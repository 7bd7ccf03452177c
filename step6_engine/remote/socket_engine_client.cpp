#include "step6_engine/remote/socket_engine_client.h"

#include <algorithm>
#include <future>
#include <unordered_map>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step6_engine/prepare_request.h"
#include "step6_engine/remote/engine_wire_forms.h"

namespace ladder {

// A request that has not ended.
struct SocketEngineClient::InFlight {
  RequestId id;
  std::shared_ptr<StreamBuffer> buffer;
  RequestOutput so_far;  // the reader's: what its stream is given if the engine is lost
};

// Shared by the callers' threads, the reader and the streams.
struct SocketEngineClient::Link {
  explicit Link(std::unique_ptr<MessageSocket> socket) : socket(std::move(socket)) {}

  const std::unique_ptr<MessageSocket> socket;
  // Held from a message's decision to its end, so that messages leave in the order of the decisions; taken before
  // `mutex`, which is never held while a message leaves.
  std::mutex send_mutex;

  std::mutex mutex;
  std::unordered_map<uint64_t, std::shared_ptr<InFlight>> requests;  // by their numbers on the wire
  std::unordered_map<RequestId, uint64_t> numbers;
  std::unordered_map<uint64_t, std::promise<ReplyMessage>> calls;
  uint64_t next_number = 0;
  int64_t next_id = 0;
  QueuedWork sent, taken;  // by the engine
  bool stopping = false;   // no more requests
  bool closed = false;     // the connection is not needed any more
  std::string lost;        // why there is none; empty while there is
  EngineStats stats;

  // Under the lock. Those on their way to the engine and those that wait there, none of them twice.
  QueuedWork queued() const {
    QueuedWork sum = stats.queued;
    sum += sent;
    return sum -= taken;
  }

  // Whoever cannot be sent a message is lost, as the reader will find and tell.
  template <class T>
  void send(EngineMessage type, const T& message) {
    send_bytes(type, to_bytes(message));
  }
  void send_bytes(EngineMessage type, std::string_view bytes) {
    try {
      socket->write(static_cast<uint32_t>(type), bytes, kPatience);
    } catch (const Error&) {
      socket->shut_down();
    }
  }
  // A request that was not taken.
  void forget(uint64_t number) {
    std::lock_guard lock(mutex);
    const auto found = requests.find(number);
    if (found == requests.end()) return;
    numbers.erase(found->second->id);
    requests.erase(found);
  }
  void abort(uint64_t number) {
    std::lock_guard send_lock(send_mutex);
    {
      std::lock_guard lock(mutex);
      if (!requests.contains(number)) return;
    }
    send(EngineMessage::abort, AbortMessage{number});
  }
};

namespace {

// As StreamBuffer merges what was not read.
void append(CompletionOutput& output, const CompletionUpdate& update) {
  output.token_ids.insert(output.token_ids.end(), update.token_ids.begin(), update.token_ids.end());
  output.logprobs.insert(output.logprobs.end(), update.logprobs.begin(), update.logprobs.end());
  if (output.text) *output.text += update.text;
  if (update.finish_reason == FinishReason::none) return;
  output.finish_reason = update.finish_reason;
  output.stop_reason = update.stop_reason;
}

}  // namespace

SocketEngineClient::SocketEngineClient(std::unique_ptr<MessageSocket> socket, SchedulerConfig config,
                                       std::shared_ptr<const Tokenizer> tokenizer,
                                       EngineClientOptions options, std::unique_ptr<ChildProcess> child)
    : limits_(std::move(config)),
      tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      child_(std::move(child)),
      link_(std::make_shared<Link>(std::move(socket))) {
  link_->stats.scheduler = limits_.stats();  // until the first turn
  if (options_.max_num_queued_tokens > 0 && !options_.queue_is_shared)
    link_->send_bytes(EngineMessage::count_queued_tokens, {});
  reader_ = std::thread([this] { run(); });
  reader_id_ = reader_.get_id();
}

SocketEngineClient::~SocketEngineClient() {
  stop();
}

void SocketEngineClient::check_thread() const {
  LADDER_CHECK(std::this_thread::get_id() != reader_id_,
               "the engine's own thread cannot wait for the engine");
}

RequestStream SocketEngineClient::submit(const Request& request, std::function<void()> on_ready) {
  PreparedRequest prepared = prepare_request(request, tokenizer_.get(), limits_);
  prepared.sampling.bad_words.clear();  // they are ids now, and would become ids once more
  auto in_flight = std::make_shared<InFlight>();
  in_flight->buffer = std::make_shared<StreamBuffer>(std::move(on_ready));
  in_flight->so_far.prompt_token_ids = prepared.prompt_token_ids;
  in_flight->so_far.completions.resize(static_cast<size_t>(prepared.sampling.n));
  if (tokenizer_ != nullptr)
    for (CompletionOutput& completion : in_flight->so_far.completions) completion.text.emplace();
  SubmitMessage message;
  message.request.prompt_token_ids = std::move(prepared.prompt_token_ids);
  message.request.sampling = std::move(prepared.sampling);
  message.request.kv_transfer = request.kv_transfer;
  message.request.output_only = request.output_only;
  // Only the engine's side knows what the others have submitted since the last turn, and what has failed.
  message.wants_reply = options_.queue_is_shared;
  if (message.wants_reply) check_thread();

  RequestId id = prepared.request_id;
  std::future<ReplyMessage> reply;
  {
    std::lock_guard send_lock(link_->send_mutex);
    {
      std::lock_guard lock(link_->mutex);
      if (!link_->lost.empty()) throw EngineUnavailable(link_->lost);
      if (!link_->stats.error.empty()) throw EngineUnavailable(link_->stats.error);
      if (link_->stopping) throw EngineUnavailable("the engine is stopping and takes no more requests");
      const std::string full =
          queue_full(link_->queued(), options_.max_num_queued_reqs, options_.max_num_queued_tokens);
      if (!full.empty()) throw QueueFull(full);
      if (id.empty()) {
        do id = std::to_string(link_->next_id++);
        while (link_->numbers.contains(id));
      }
      LADDER_CHECK(!link_->numbers.contains(id),
                   "request_id {}: another request of this id has not ended yet", id);

      message.number = link_->next_number++;
      message.request.request_id = id;
      in_flight->id = id;
      in_flight->so_far.request_id = id;
      link_->numbers.emplace(id, message.number);
      link_->requests.emplace(message.number, in_flight);
      link_->sent += work_of(message.request.sampling.n, message.request.prompt_token_ids);
      if (message.wants_reply) reply = link_->calls[message.number].get_future();
    }
    link_->send(EngineMessage::submit, message);
  }
  if (message.wants_reply) {
    const ReplyMessage answer = reply.get();
    if (!answer.error.empty()) {
      link_->forget(message.number);
      checked(answer);
    }
  }
  return RequestStream(id, in_flight->buffer,
                       [link = link_, number = message.number] { link->abort(number); });
}

void SocketEngineClient::abort(const RequestId& id) {
  uint64_t number = 0;
  {
    std::lock_guard lock(link_->mutex);
    const auto found = link_->numbers.find(id);
    if (found == link_->numbers.end()) return;
    number = found->second;
  }
  link_->abort(number);
}

EngineStats SocketEngineClient::stats() const {
  std::lock_guard lock(link_->mutex);
  EngineStats stats = link_->stats;
  stats.queued = link_->queued();
  stats.queue_full = queue_full(stats.queued, options_.max_num_queued_reqs, options_.max_num_queued_tokens);
  stats.num_requests = std::ssize(link_->requests);
  stats.stopped = stats.stopped || link_->stopping;
  if (!link_->lost.empty()) stats.error = link_->lost;
  return stats;
}

std::future<ReplyMessage> SocketEngineClient::send_call(CallMessage message) {
  check_thread();
  std::lock_guard send_lock(link_->send_mutex);
  std::future<ReplyMessage> reply;
  {
    std::lock_guard lock(link_->mutex);
    if (!link_->lost.empty()) throw EngineUnavailable(link_->lost);
    if (link_->closed) throw EngineUnavailable("the engine was stopped");
    message.number = link_->next_number++;
    reply = link_->calls[message.number].get_future();
  }
  link_->send(EngineMessage::call, message);
  return reply;
}

ReplyMessage SocketEngineClient::checked(ReplyMessage reply) {
  if (reply.unavailable) throw EngineUnavailable(reply.error);
  if (reply.queue_full) throw QueueFull(reply.error);
  LADDER_CHECK(reply.error.empty(), "{}", reply.error);
  return reply;
}

bool SocketEngineClient::call(EngineCall call) {
  return checked(send_call({.call = call}).get()).value;
}

void SocketEngineClient::pause() {
  call(EngineCall::pause);
}
void SocketEngineClient::resume() {
  call(EngineCall::resume);
}
bool SocketEngineClient::reset_prefix_cache() {
  return call(EngineCall::reset_prefix_cache);
}

std::vector<EngineStats> SocketEngineClient::replica_stats() {
  EngineStats sum = stats();
  if (sum.num_replicas > 1) {
    std::future<ReplyMessage> reply = send_call({.call = EngineCall::replica_stats});
    if (reply.wait_for(kPatience) == std::future_status::ready) return checked(reply.get()).replicas;
  }
  return {std::move(sum)};
}

TraceSlice SocketEngineClient::trace_since(int64_t position, int64_t max_records) {
  std::future<ReplyMessage> reply =
      send_call({.call = EngineCall::trace_since, .trace_position = position, .max_records = max_records});
  if (reply.wait_for(kPatience) != std::future_status::ready) return {{}, position, false};
  return checked(reply.get()).trace;
}

void SocketEngineClient::stop(std::chrono::milliseconds drain) {
  check_thread();
  {
    std::lock_guard lock(link_->mutex);
    link_->stopping = true;
  }
  try {
    send_call({.call = EngineCall::stop, .drain_milliseconds = drain.count()}).wait_for(drain + kPatience);
  } catch (const EngineUnavailable&) {  // lost, or another stop() was faster
  }
  {
    std::lock_guard lock(link_->mutex);
    link_->closed = true;
  }
  link_->socket->shut_down();
  std::lock_guard lock(join_mutex_);
  if (reader_.joinable()) reader_.join();
  if (child_ != nullptr) child_->end(std::chrono::seconds(1));
}

void SocketEngineClient::run() {
  std::string why = "the engine has closed the connection";
  try {
    while (const std::optional<Message> message = link_->socket->read()) {
      LADDER_CHECK(message->type == static_cast<uint32_t>(EngineMessage::turn),
                   "message: type {} is not one that an engine sends", message->type);
      take_turn(from_bytes<TurnMessage>(message->bytes));
    }
  } catch (const std::exception& error) {
    why = error.what();
    link_->socket->shut_down();
  }
  lose(why);
}

// >>> task 6.9: a turn's news to those who wait for it
void SocketEngineClient::take_turn(TurnMessage turn) {
  std::vector<std::shared_ptr<InFlight>> receivers;  // of the updates; null: it has ended
  {
    std::lock_guard lock(link_->mutex);
    link_->stats = std::move(turn.stats);
    link_->taken = turn.taken;
    for (const UpdateMessage& one : turn.updates) {
      const auto found = link_->requests.find(one.number);
      receivers.push_back(found == link_->requests.end() ? nullptr : found->second);
    }
  }
  for (size_t i = 0; i < receivers.size(); ++i) {
    if (receivers[i] == nullptr) continue;
    CompletionUpdate& update = turn.updates[i].update;
    RequestOutput& so_far = receivers[i]->so_far;
    LADDER_CHECK(update.completion >= 0 && update.completion < std::ssize(so_far.completions),
                 "message: completion {} of {}", update.completion, so_far.completions.size());
    append(so_far.completions[static_cast<size_t>(update.completion)], update);
    update.request_id = receivers[i]->id;
    receivers[i]->buffer->push(std::move(update));
  }
  for (OutputMessage& one : turn.outputs) {
    std::shared_ptr<InFlight> ended;
    {
      std::lock_guard lock(link_->mutex);
      const auto found = link_->requests.find(one.number);
      if (found == link_->requests.end()) continue;
      ended = found->second;
      link_->requests.erase(found);
      link_->numbers.erase(ended->id);  // before its reader may submit another one of this id
    }
    one.output.request_id = ended->id;
    one.output.prompt_token_ids = std::move(ended->so_far.prompt_token_ids);
    ended->buffer->end(std::move(one.output));
  }
  for (ReplyMessage& reply : turn.replies) {
    std::lock_guard lock(link_->mutex);
    if (auto call = link_->calls.extract(reply.number)) call.mapped().set_value(std::move(reply));
  }
  if (options_.on_turn) options_.on_turn();
}
// <<< task 6.9

void SocketEngineClient::lose(const std::string& why) {
  std::string cause = why;
  std::unordered_map<uint64_t, std::shared_ptr<InFlight>> requests;
  std::unordered_map<uint64_t, std::promise<ReplyMessage>> calls;
  bool asked_for = false;
  {
    std::lock_guard lock(link_->mutex);
    asked_for = link_->closed;
  }
  if (!asked_for && child_ != nullptr) cause = fmt::format("{}: {}", child_->what_happened(), why);
  {
    std::lock_guard lock(link_->mutex);
    if (!asked_for) link_->lost = cause;
    link_->closed = true;
    requests.swap(link_->requests);
    link_->numbers.clear();
    calls.swap(link_->calls);
  }
  for (auto& [number, request] : requests) {
    for (size_t i = 0; i < request->so_far.completions.size(); ++i) {
      CompletionOutput& completion = request->so_far.completions[i];
      if (completion.finish_reason != FinishReason::none) continue;
      completion.finish_reason = FinishReason::error;
      completion.error = cause;
      CompletionUpdate update;
      update.request_id = request->id;
      update.completion = static_cast<int64_t>(i);
      update.finish_reason = FinishReason::error;
      request->buffer->push(std::move(update));
    }
    request->buffer->end(std::move(request->so_far));
  }
  for (auto& [number, call] : calls) call.set_exception(std::make_exception_ptr(EngineUnavailable(cause)));
  if (options_.on_turn) options_.on_turn();
}

}  // namespace ladder
