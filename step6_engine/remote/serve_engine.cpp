#include "step6_engine/remote/serve_engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
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

class EngineServer {
 public:
  EngineServer(MessageSocket& socket, std::unique_ptr<Engine> engine) : socket_(socket) {
    const std::string ready = to_bytes(engine->scheduler().config());
    EngineClientOptions options;  // no limit to the queue: the user knows it, and refuses before it sends
    options.on_turn = [this] { end_turn(); };
    client_ = std::make_unique<ThreadEngineClient>(std::move(engine), std::move(options));
    socket_.write(static_cast<uint32_t>(EngineMessage::ready), ready);
    output_ = std::thread([this] { run_output(); });
  }

  ~EngineServer() {
    socket_.shut_down();
    client_->stop();
    calls_.clear();  // waits for them: the engine's loop has ended, so none of them lasts
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    turn_ended_.notify_one();
    output_.join();
  }

  void run_input();

 private:
  // Input:
  void submit(SubmitMessage message);
  void call(CallMessage message);
  // Engine's thread:
  void on_ready(uint64_t number);
  void end_turn();
  // Output:
  void run_output();
  void add_news(uint64_t number, TurnMessage& turn, size_t& num_bytes);

  MessageSocket& socket_;
  std::unique_ptr<ThreadEngineClient> client_;
  std::vector<std::future<void>> calls_;  // each waits on a thread of its own: aborts must get past them
  std::thread output_;

  std::mutex streams_mutex_;
  std::unordered_map<uint64_t, RequestStream> streams_;  // of the output thread, once they are in it
  QueuedWork taken_;  // what the client's statistics know of, neither more nor less

  std::mutex mutex_;
  std::condition_variable turn_ended_;
  std::vector<uint64_t> ready_;  // streams that have something
  std::vector<OutputMessage> refused_;
  std::vector<ReplyMessage> replies_;
  bool turn_over_ = false;
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
          client_->abort(found->second.request_id());
        break;
      }
      case EngineMessage::call:
        call(from_bytes<CallMessage>(message->bytes));
        break;
      case EngineMessage::count_queued_tokens:
        client_->count_queued_tokens();
        break;
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
  std::optional<OutputMessage> refused;
  {
    std::lock_guard lock(streams_mutex_);
    try {
      streams_.emplace(number, client_->submit(message.request, [this, number] { on_ready(number); }));
    } catch (const Error& error) {  // the user has checked the request: the engine has died since
      refused = OutputMessage{number, failed_output(n, error.what())};
    }
    taken_ += work;
  }
  if (!refused) return;
  {
    std::lock_guard lock(mutex_);
    refused_.push_back(std::move(*refused));
  }
  end_turn();
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
          client_->pause();
          break;
        case EngineCall::resume:
          client_->resume();
          break;
        case EngineCall::reset_prefix_cache:
          reply.value = client_->reset_prefix_cache();
          break;
        case EngineCall::trace_since:
          reply.trace = client_->trace_since(message.trace_position, message.max_records);
          break;
        case EngineCall::stop:
          client_->stop(std::chrono::milliseconds(message.drain_milliseconds));
          break;
      }
    } catch (const std::exception& error) {
      reply.unavailable = dynamic_cast<const EngineUnavailable*>(&error) != nullptr;
      reply.error = error.what();
    }
    {
      std::lock_guard lock(mutex_);
      replies_.push_back(std::move(reply));
    }
    end_turn();
  }));
}

void EngineServer::on_ready(uint64_t number) {
  std::lock_guard lock(mutex_);
  ready_.push_back(number);
}

void EngineServer::end_turn() {
  {
    std::lock_guard lock(mutex_);
    turn_over_ = true;
  }
  turn_ended_.notify_one();
}

void EngineServer::run_output() {
  std::vector<uint64_t> ready;
  std::string bytes;
  try {
    while (true) {
      TurnMessage turn;
      {
        std::unique_lock lock(mutex_);
        turn_ended_.wait(lock, [this] { return turn_over_ || closing_; });
        if (closing_) return;
        turn_over_ = false;
        // A reply comes after all that happened before the call returned, since that is in `ready_`.
        turn.replies.swap(replies_);
        turn.outputs.swap(refused_);
        ready.insert(ready.end(), ready_.begin(), ready_.end());
        ready_.clear();
      }
      do {
        size_t num_bytes = 0, num_done = 0;
        while (num_done < ready.size() && num_bytes < kTurnBytes)
          add_news(ready[num_done++], turn, num_bytes);
        ready.erase(ready.begin(), ready.begin() + static_cast<std::ptrdiff_t>(num_done));
        {  // after the news: an engine that died is known to be dead with its outputs
          std::lock_guard lock(streams_mutex_);
          turn.taken = taken_;
          turn.stats = client_->stats();
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
  }
}

}  // namespace

void serve_engine(MessageSocket& socket, std::unique_ptr<Engine> engine) {
  EngineServer(socket, std::move(engine)).run_input();
}

}  // namespace ladder
