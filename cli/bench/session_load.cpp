#include "cli/bench/session_load.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <random>
#include <utility>

#include "cli/bench/workload.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

// Sessions whose streams have something. Pushed by engines' threads, one of which may be late: so it lives as long as they.
class ReadySessions {
 public:
  void push(size_t session) {
    {
      const std::lock_guard lock(mutex_);
      sessions_.push_back(session);
    }
    ready_.notify_one();
  }

  // Waits for one; none: there was none until then.
  std::optional<size_t> pop(std::optional<Clock::time_point> deadline) {
    std::unique_lock lock(mutex_);
    const auto is_there = [&] { return !sessions_.empty(); };
    if (!deadline)
      ready_.wait(lock, is_there);
    else if (!ready_.wait_until(lock, *deadline, is_there))
      return {};
    const size_t session = sessions_.front();
    sessions_.pop_front();
    return session;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<size_t> sessions_;
};

class SessionRun {
 public:
  SessionRun(EngineClient& client, const SessionLoad& load,
             const std::function<void(const RequestOutput&)>& on_output)
      : client_(client), load_(load), on_output_(on_output), states_(load.sessions.size()) {}

  void run() {
    const size_t limit =
        load_.max_concurrency > 0 ? static_cast<size_t>(load_.max_concurrency) : states_.size();
    while (num_begun_ < std::min(limit, states_.size())) begin_next();
    while (num_ended_ < states_.size()) {
      while (!thinking_.empty() && thinking_.top().first <= Clock::now()) {
        const size_t session = thinking_.top().second;
        thinking_.pop();
        send(session);
      }
      const auto next_thought = thinking_.empty() ? std::nullopt : std::optional(thinking_.top().first);
      if (const std::optional<size_t> session = ready_->pop(next_thought)) read(*session);
    }
  }

 private:
  struct State {
    std::mt19937_64 random;
    std::vector<int32_t> tokens;  // all that was said
    size_t turn = 0;
    std::optional<RequestStream> stream;  // none: nothing is under way
  };

  void begin_next() {
    const size_t session = num_begun_++;
    std::seed_seq words{load_.seed, load_.seed >> 32, static_cast<uint64_t>(session)};
    states_[session].random.seed(words);
    send(session);
  }

  void send(size_t session) {
    State& state = states_[session];
    const PlannedTurn& turn = load_.sessions[session][state.turn];
    std::ranges::copy(random_ids(state.random, turn.num_new_tokens, load_.vocab_size),
                      std::back_inserter(state.tokens));
    Request request;
    request.prompt_token_ids = state.tokens;
    request.sampling.max_tokens = turn.num_output;
    request.sampling.temperature = load_.temperature;
    request.sampling.ignore_eos = true;
    request.sampling.seed = state.random();
    state.stream = client_.submit(request, [ready = ready_, session] { ready->push(session); });
  }

  void read(size_t session) {
    State& state = states_[session];
    if (!state.stream) return;  // said once more of a turn that has ended
    const std::optional<StreamUpdate> update = state.stream->next(std::chrono::nanoseconds(0));
    if (!update || !update->output) return;
    state.stream.reset();
    on_output_(*update->output);
    std::ranges::copy(update->output->completions.at(0).token_ids, std::back_inserter(state.tokens));
    const PlannedSession& plan = load_.sessions[session];
    if (++state.turn == plan.size()) {
      state = {};
      ++num_ended_;
      if (num_begun_ < states_.size()) begin_next();
    } else if (const double think = plan[state.turn].think_seconds; think > 0) {
      thinking_.emplace(
          Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(think)),
          session);
    } else {
      send(session);
    }
  }

  EngineClient& client_;
  const SessionLoad& load_;
  const std::function<void(const RequestOutput&)>& on_output_;
  const std::shared_ptr<ReadySessions> ready_ = std::make_shared<ReadySessions>();
  std::vector<State> states_;
  size_t num_begun_ = 0, num_ended_ = 0;
  using Thought = std::pair<Clock::time_point, size_t>;  // when it ends, and whose it is
  std::priority_queue<Thought, std::vector<Thought>, std::greater<>> thinking_;
};

}  // namespace

int64_t longest_session(const std::vector<PlannedSession>& sessions) {
  int64_t longest = 0;
  for (const PlannedSession& session : sessions) {
    int64_t length = 0;
    for (const PlannedTurn& turn : session) length += turn.num_new_tokens + turn.num_output;
    longest = std::max(longest, length);
  }
  return longest;
}

void run_sessions(EngineClient& client, const SessionLoad& load,
                  const std::function<void(const RequestOutput&)>& on_output) {
  SessionRun(client, load, on_output).run();
}

}  // namespace ladder
