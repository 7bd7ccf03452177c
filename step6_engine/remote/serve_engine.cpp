#include "step6_engine/remote/serve_engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step6_engine/remote/engine_wire_forms.h"
#include "step6_engine/thread_engine_client.h"

namespace ladder {

namespace {

// A turn's message is closed when it has grown to this, and the rest comes in the next one.
constexpr size_t kTurnBytes = 16 << 20;
// An answer larger than this, whole vocabularies of log probabilities, does not go through.
constexpr size_t kMaxAnswerBytes = MessageSocket::kMaxMessageBytes / 2;
// A message at least that often: not everything ends with a turn. Of several engines one may be lost, or back, and its
// requests ended by somebody else than an engine.
constexpr std::chrono::milliseconds kPeriod{200};

size_t bytes_of(const std::vector<PositionLogprobs>& logprobs) {
  size_t sum = 0;
  for (const PositionLogprobs& one : logprobs)
    sum += sizeof(TokenLogprob) * (2 + one.top.size() + one.selected.size());
  return sum;
}

// About that many in a message.
template <class Completion>
size_t bytes_of_completion(const Completion& completion, size_t num_text_bytes) {
  return 64 + completion.token_ids.size() * sizeof(int32_t) + num_text_bytes + bytes_of(completion.logprobs);
}
size_t bytes_of(const RequestOutput& output) {
  size_t sum = 128 + bytes_of(output.prompt_logprobs);
  for (const CompletionOutput& one : output.completions)
    sum += bytes_of_completion(one, one.text ? one.text->size() : 0);
  return sum;
}

RequestOutput failed_output(int64_t n, const std::string& error) {
  RequestOutput output;
  output.completions.resize(static_cast<size_t>(n));
  for (CompletionOutput& one : output.completions) {
    one.finish_reason = FinishReason::error;
    one.error = error;
  }
  return output;
}

void note_error(ReplyMessage& reply, const std::exception& error) {
  reply.unavailable = dynamic_cast<const EngineUnavailable*>(&error) != nullptr;
  reply.queue_full = dynamic_cast<const QueueFull*>(&error) != nullptr;
  reply.error = error.what();
}

// What the engine's thread has to tell the output. A stream may call once more after it was dropped, so it is shared.
struct News {
  std::mutex mutex;
  std::condition_variable come;
  std::vector<uint64_t> ready;  // streams that have something
  std::vector<OutputMessage> refused;
  std::vector<ReplyMessage> replies;
  bool turn_over = true;  // the first message says how things are
  bool closing = false;

  // Wakes the output.
  void end_turn() {
    {
      std::lock_guard lock(mutex);
      turn_over = true;
    }
    come.notify_one();
  }
};

class EngineServer {
 public:
  EngineServer(MessageSocket& socket, EngineClient& client, ServeEngineOptions options)
      : socket_(socket), client_(client), options_(std::move(options)) {
    socket_.write(static_cast<uint32_t>(EngineMessage::ready), to_bytes(options_.config));
    if (options_.turns != nullptr) listener_ = options_.turns->add([news = news_] { news->end_turn(); });
    output_ = std::thread([this] { run_output(); });
  }

  ~EngineServer() {
    socket_.shut_down();
    {
      std::lock_guard lock(streams_mutex_);
      closing_ = true;
      streams_.clear();  // aborts them
    }
    streams_changed_.notify_all();
    calls_.clear();  // waits for them: each lasts no longer than the engine's step
    if (options_.turns != nullptr) options_.turns->remove(listener_);
    {
      std::lock_guard lock(news_->mutex);
      news_->closing = true;
    }
    news_->come.notify_one();
    output_.join();
  }

  void run_input();

 private:
  using Clock = std::chrono::steady_clock;

  // Input:
  void submit(SubmitMessage message);
  void call(CallMessage message);
  // A call's thread:
  void stop(std::chrono::milliseconds drain);
  // Output:
  void run_output();
  void add_news(uint64_t number, TurnMessage& turn, size_t& num_bytes);

  MessageSocket& socket_;
  EngineClient& client_;
  const ServeEngineOptions options_;
  const std::shared_ptr<News> news_ = std::make_shared<News>();
  TurnListeners::Listener listener_;
  std::vector<std::future<void>> calls_;  // each waits on a thread of its own: aborts must get past them
  std::thread output_;

  std::mutex streams_mutex_;
  std::condition_variable streams_changed_;              // one has ended, or closing_
  std::unordered_map<uint64_t, RequestStream> streams_;  // of the output thread, once they are in it
  QueuedWork taken_;  // what the client's statistics know of, neither more nor less
  std::optional<Clock::time_point> drain_until_;  // set: the user has stopped
  bool closing_ = false;
};

void EngineServer::run_input() {
  while (const std::optional<Message> message = socket_.read()) {
    switch (static_cast<EngineMessage>(message->type)) {
      case EngineMessage::submit:
        submit(from_bytes<SubmitMessage>(message->bytes));
        break;
      case EngineMessage::abort: {
        const auto number = from_bytes<AbortMessage>(message->bytes).number;
        std::lock_guard lock(streams_mutex_);
        if (const auto found = streams_.find(number); found != streams_.end())
          client_.abort(found->second.request_id());
        break;
      }
      case EngineMessage::call:
        call(from_bytes<CallMessage>(message->bytes));
        break;
      case EngineMessage::count_queued_tokens:
        if (options_.count_queued_tokens) options_.count_queued_tokens();
        break;
      case EngineMessage::serving:
        if (options_.on_serving) options_.on_serving();
        break;
      case EngineMessage::failed:
        if (options_.on_failed) options_.on_failed(from_bytes<FailedMessage>(message->bytes));
        return;
      default:
        fail("message: type {} is not one that an engine takes", message->type);
    }
  }
}

// The lock is held until the stream has its place, since the engine's thread may have news for it before, and until the
// request is counted.
void EngineServer::submit(SubmitMessage message) {
  const uint64_t number = message.number;
  const int64_t n = std::clamp<int64_t>(message.request.sampling.n, 1, kMaxCompletions);
  const QueuedWork work = work_of(n, message.request.prompt_token_ids);
  const bool wakes = options_.turns == nullptr;
  const auto on_ready = [news = news_, number, wakes] {
    {
      std::lock_guard lock(news->mutex);
      news->ready.push_back(number);
    }
    if (wakes) news->end_turn();
  };
  ReplyMessage reply;
  reply.number = number;
  message.request.request_id.insert(0, options_.id_prefix);
  {
    std::lock_guard lock(streams_mutex_);
    try {
      if (drain_until_) throw EngineUnavailable("the engine is stopping and takes no more requests");
      streams_.emplace(number, client_.submit(message.request, on_ready));
      reply.value = true;
    } catch (
        const Error&
            error) {  // the user has checked the request: the engine has died since, or the queue is full
      note_error(reply, error);
    }
    taken_ += work;
  }
  if (reply.value && !message.wants_reply) return;
  {
    std::lock_guard lock(news_->mutex);
    if (message.wants_reply)
      news_->replies.push_back(std::move(reply));
    else
      news_->refused.push_back({number, failed_output(n, reply.error)});
  }
  news_->end_turn();
}

void EngineServer::call(CallMessage message) {
  std::erase_if(calls_, [](const std::future<void>& call) {
    return call.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  calls_.push_back(std::async(std::launch::async, [this, message] {
    ReplyMessage reply;
    reply.number = message.number;
    try {
      switch (message.call) {
        case EngineCall::pause:
          client_.pause();
          break;
        case EngineCall::resume:
          client_.resume();
          break;
        case EngineCall::reset_prefix_cache:
          reply.value = client_.reset_prefix_cache();
          break;
        case EngineCall::trace_since:
          reply.trace = client_.trace_since(message.trace_position, message.max_records);
          break;
        case EngineCall::replica_stats:
          reply.replicas = client_.replica_stats();
          break;
        case EngineCall::stop:
          stop(std::chrono::milliseconds(message.drain_milliseconds));
          break;
      }
    } catch (const std::exception& error) {
      note_error(reply, error);
    }
    {
      std::lock_guard lock(news_->mutex);
      news_->replies.push_back(std::move(reply));
    }
    news_->end_turn();
  }));
}

// EngineClient::stop() for this user alone. Returns when the outputs of all its requests are in a message.
void EngineServer::stop(std::chrono::milliseconds drain) {
  constexpr std::chrono::milliseconds kLook{
      20};  // whether the engine was paused, or another stop() shortens the time
  std::unique_lock lock(streams_mutex_);
  const auto until = Clock::now() + drain;
  drain_until_ = std::min(drain_until_.value_or(until), until);
  while (!streams_.empty() && !closing_ && Clock::now() < *drain_until_ && !client_.stats().paused)
    streams_changed_.wait_until(lock, std::min(*drain_until_, Clock::now() + kLook));
  for (const auto& [number, stream] : streams_) client_.abort(stream.request_id());
  streams_changed_.wait(lock, [this] { return closing_ || streams_.empty(); });
}

void EngineServer::run_output() {
  std::vector<uint64_t> ready;
  std::string bytes;
  try {
    while (true) {
      TurnMessage turn;
      {
        std::unique_lock lock(news_->mutex);
        const auto come = [this] { return news_->turn_over || news_->closing; };
        news_->come.wait_for(lock, kPeriod, come);
        if (news_->closing) return;
        news_->turn_over = false;
        // A reply comes after all that happened before the call returned, since that is in `ready`.
        turn.replies.swap(news_->replies);
        turn.outputs.swap(news_->refused);
        ready.insert(ready.end(), news_->ready.begin(), news_->ready.end());
        news_->ready.clear();
      }
      do {
        size_t num_bytes = 0, num_done = 0;
        while (num_done < ready.size() && num_bytes < kTurnBytes)
          add_news(ready[num_done++], turn, num_bytes);
        ready.erase(ready.begin(), ready.begin() + static_cast<std::ptrdiff_t>(num_done));
        {  // after the news: an engine that died is known to be dead with its outputs
          std::lock_guard lock(streams_mutex_);
          turn.taken = taken_;
          turn.stats = client_.stats();
        }
        std::vector<ReplyMessage> replies;
        if (!ready.empty()) replies.swap(turn.replies);
        bytes.clear();
        WireWriter{bytes}(turn);
        socket_.write(static_cast<uint32_t>(EngineMessage::turn), bytes);
        turn.updates.clear();
        turn.outputs.clear();
        turn.replies = std::move(replies);
      } while (!ready.empty());
    }
  } catch (const std::exception&) {
    socket_.shut_down();  // the user has gone: the input thread reads the end
  }
}

// Whatever one request's stream has.
void EngineServer::add_news(uint64_t number, TurnMessage& turn, size_t& num_bytes) {
  std::lock_guard lock(streams_mutex_);
  const auto found = streams_.find(number);
  if (found == streams_.end()) return;
  std::optional<StreamUpdate> news = found->second.next(std::chrono::nanoseconds(0));
  if (!news) return;
  for (CompletionUpdate& update : news->updates) {
    num_bytes += bytes_of_completion(update, update.text.size());
    turn.updates.push_back({number, std::move(update)});
  }
  if (news->output) {
    const size_t size = bytes_of(*news->output);
    if (size > kMaxAnswerBytes)
      news->output = failed_output(
          std::ssize(news->output->completions),
          fmt::format("the answer takes {} bytes; {} go from the engine's process to the one that asked",
                      size, kMaxAnswerBytes));
    num_bytes += bytes_of(*news->output);
    turn.outputs.push_back({number, std::move(*news->output)});
    streams_.erase(found);
    streams_changed_.notify_all();
  }
}

}  // namespace

void serve_engine(MessageSocket& socket, EngineClient& client, ServeEngineOptions options) {
  EngineServer(socket, client, std::move(options)).run_input();
}

void serve_engine(MessageSocket& socket, std::unique_ptr<Engine> engine) {
  TurnListeners turns;
  ServeEngineOptions options{.config = engine->scheduler().config(), .turns = &turns};
  // No limit to the queue: the user knows it, and refuses before it sends.
  ThreadEngineClient client(std::move(engine), {.on_turn = [&turns] { turns.announce(); }});
  options.count_queued_tokens = [&client] { client.count_queued_tokens(); };
  serve_engine(socket, client, std::move(options));
}

}  // namespace ladder
