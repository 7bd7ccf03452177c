#include "step1_layers/distributed/local_group.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"

namespace ladder {

namespace {

// What a rank brings to a collective. Its peers read it between the two barriers of the call.
struct Call {
  const char* name = "";
  Tensor input = {};
  Tensor output = {};
  std::vector<int64_t> send_counts = {};
  std::vector<int64_t> recv_counts = {};
  int root = 0;
};

int64_t row_elements(const Tensor& tensor) {
  int64_t count = 1;
  for (int i = 1; i < tensor.ndim(); ++i) count *= tensor.dim(i);
  return count;
}

char* row_address(const Tensor& tensor, int64_t row) {
  return static_cast<char*>(tensor.raw()) + row * row_elements(tensor) * dtype_size(tensor.dtype());
}

// to[i] = the sum of from[r][i] over the ranks, in float and in rank order, written to all of `to`.
template <class T>
void reduce_elements(const std::vector<const T*>& from, const std::vector<T*>& to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (const T* values : from) sum += static_cast<float>(values[i]);
    for (T* values : to) values[i] = T(sum);
  }
}

}  // namespace

struct LocalGroup::State {
  class Rank;

  explicit State(int size)
      : gone(static_cast<size_t>(size)),
        calls(static_cast<size_t>(size)),
        mailboxes(static_cast<size_t>(size * size)) {}

  int size() const { return static_cast<int>(calls.size()); }

  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0;
  uint64_t generation = 0;  // counts completed barriers
  std::string failure;      // what became of the first rank that failed
  std::vector<bool> gone;   // by rank: makes no more calls
  std::vector<Call> calls;
  std::vector<std::deque<Tensor>> mailboxes;  // [from * size + to]: sent and not yet received
  std::vector<std::unique_ptr<Rank>> ranks;

  void leave(int rank, const std::string& reason) {
    std::lock_guard lock(mutex);
    gone[static_cast<size_t>(rank)] = true;
    if (failure.empty() && !reason.empty()) failure = fmt::format("rank {} failed: {}", rank, reason);
    changed.notify_all();
  }

  // >>> task 1.4: meet the other ranks, or learn that one of them will never come
  // Why a call that needs rank `peer` (-1: all of them) cannot complete; empty if it can. Under the mutex.
  std::string obstacle(int peer) const {
    if (!failure.empty()) return failure;
    for (int r = 0; r < size(); ++r)
      if (gone[static_cast<size_t>(r)] && (peer == -1 || peer == r))
        return fmt::format("rank {} has left the group", r);
    return {};
  }

  void barrier() {
    std::unique_lock lock(mutex);
    std::string why = obstacle(-1);
    LADDER_CHECK(why.empty(), "{}", why);
    const uint64_t mine = generation;
    if (++arrived == size()) {
      arrived = 0;
      ++generation;
      changed.notify_all();
      return;
    }
    changed.wait(lock, [&] { return generation != mine || !(why = obstacle(-1)).empty(); });
    // A barrier that everybody reached counts, also if somebody left right after it.
    LADDER_CHECK(generation != mine, "{}", why);
  }
  // <<< task 1.4

  // Every rank looks at the same calls and so comes to the same answer. Empty: they fit together.
  std::string disagreement() const;
  template <class Fn>
  void collective(int rank, Call call, Fn&& work);
};

std::string LocalGroup::State::disagreement() const {
  const Call& first = calls[0];
  for (int r = 0; r < size(); ++r) {
    const Call& call = calls[static_cast<size_t>(r)];
    if (std::strcmp(call.name, first.name) != 0)
      return fmt::format("rank 0 called {} while rank {} called {}", first.name, r, call.name);
    for (const Tensor* tensor : {&call.input, &call.output})
      if (tensor->defined() && !(tensor->device().is_cpu() && tensor->is_contiguous()))
        return fmt::format("{}: rank {}'s {} is not contiguous CPU memory", call.name, r, tensor->str());
    const bool by_rows = !call.send_counts.empty();
    if (call.input.dtype() != first.input.dtype() || call.output.dtype() != first.output.dtype() ||
        (!by_rows &&
         (call.input.numel() != first.input.numel() || call.output.numel() != first.output.numel())) ||
        (by_rows && row_elements(call.input) != row_elements(first.input)) || call.root != first.root)
      return fmt::format("{}: rank 0 brought {} and rank {} brought {}", call.name, first.input.str(), r,
                         call.input.str());
  }
  return {};
}

// Runs work() between two barriers: after the first every rank's call is known, and no rank returns (and
// reuses its tensors) before the second.
template <class Fn>
void LocalGroup::State::collective(int rank, Call call, Fn&& work) {
  calls[static_cast<size_t>(rank)] = std::move(call);
  barrier();
  std::string problem = disagreement();
  if (problem.empty()) {
    try {
      problem = work();
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  barrier();
  LADDER_CHECK(problem.empty(), "{}", problem);
}

class LocalGroup::State::Rank final : public Communicator {
 public:
  Rank(State& state, int rank) : state_(state), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return state_.size(); }

  // >>> task 1.4: the collectives of ranks that are threads
  void all_reduce(const OpContext&, const Tensor& tensor) override {
    state_.collective(rank_, {.name = "all_reduce", .input = tensor}, [&]() -> std::string {
      // Every rank sums one slice for all of them: each element is read and written by one thread only.
      const int64_t begin = tensor.numel() * rank_ / size(), end = tensor.numel() * (rank_ + 1) / size();
      with_float_type(tensor.dtype(), "all_reduce", [&](auto tag) {
        using T = decltype(tag);
        std::vector<const T*> from;
        std::vector<T*> to;
        for (const Call& call : state_.calls) {
          from.push_back(call.input.data<T>() + begin);
          to.push_back(call.input.data<T>() + begin);
        }
        reduce_elements(from, to, end - begin);
      });
      return {};
    });
  }

  void all_gather(const OpContext&, const Tensor& input, const Tensor& output) override {
    state_.collective(rank_, {.name = "all_gather", .input = input, .output = output}, [&]() -> std::string {
      if (output.dtype() != input.dtype() || output.numel() != size() * input.numel())
        return fmt::format("all_gather: {} cannot take {} of {} ranks", output.str(), input.str(), size());
      for (int r = 0; r < size(); ++r)
        std::memcpy(static_cast<char*>(output.raw()) + r * input.nbytes(), state_.calls[at(r)].input.raw(),
                    static_cast<size_t>(input.nbytes()));
      return {};
    });
  }

  void reduce_scatter(const OpContext&, const Tensor& input, const Tensor& output) override {
    state_.collective(rank_, {.name = "reduce_scatter", .input = input, .output = output},
                      [&]() -> std::string {
                        if (output.dtype() != input.dtype() || input.numel() != size() * output.numel())
                          return fmt::format("reduce_scatter: {} does not hold {} parts of {}", input.str(),
                                             size(), output.str());
                        with_float_type(input.dtype(), "reduce_scatter", [&](auto tag) {
                          using T = decltype(tag);
                          std::vector<const T*> from;
                          for (const Call& call : state_.calls)
                            from.push_back(call.input.data<T>() + rank_ * output.numel());
                          reduce_elements(from, {output.data<T>()}, output.numel());
                        });
                        return {};
                      });
  }

  void all_to_all(const OpContext&, const Tensor& input, std::span<const int64_t> send_counts,
                  const Tensor& output, std::span<const int64_t> recv_counts) override {
    Call call{.name = "all_to_all",
              .input = input,
              .output = output,
              .send_counts = {send_counts.begin(), send_counts.end()},
              .recv_counts = {recv_counts.begin(), recv_counts.end()}};
    state_.collective(rank_, std::move(call), [&]() -> std::string {
      if (std::string problem = counts_problem(); !problem.empty()) return problem;
      int64_t row = 0;
      for (int r = 0; r < size(); ++r) {
        const Call& from = state_.calls[at(r)];
        const int64_t first =
            std::accumulate(from.send_counts.begin(), from.send_counts.begin() + rank_, int64_t{0});
        const int64_t count = from.send_counts[at(rank_)];
        std::memcpy(row_address(output, row), row_address(from.input, first),
                    static_cast<size_t>(count * row_elements(input) * dtype_size(input.dtype())));
        row += count;
      }
      return {};
    });
  }

  // Sending copies, so two ranks may send to each other before either receives.
  void send(const OpContext&, const Tensor& tensor, int to) override {
    check_peer("send", to);
    LADDER_CHECK(tensor.device().is_cpu(), "send: {} is not on the CPU", tensor.str());
    Tensor copy = tensor.clone();
    std::lock_guard lock(state_.mutex);
    const std::string why = state_.obstacle(to);
    LADDER_CHECK(why.empty(), "{}", why);
    state_.mailboxes[at(rank_ * size() + to)].push_back(std::move(copy));
    state_.changed.notify_all();
  }

  void recv(const OpContext&, const Tensor& tensor, int from) override {
    check_peer("recv", from);
    auto& mailbox = state_.mailboxes[at(from * size() + rank_)];
    Tensor sent;
    {
      std::unique_lock lock(state_.mutex);
      std::string why;
      state_.changed.wait(lock, [&] { return !mailbox.empty() || !(why = state_.obstacle(from)).empty(); });
      LADDER_CHECK(!mailbox.empty(), "{}", why);
      sent = std::move(mailbox.front());
      mailbox.pop_front();
    }
    if (sent.shape() != tensor.shape() || sent.dtype() != tensor.dtype()) {
      const std::string problem =
          fmt::format("recv of {} from rank {}, which sent {}", tensor.str(), from, sent.str());
      state_.leave(rank_, problem);  // the sender went on long ago: it learns at its next call
      fail("{}", problem);
    }
    tensor.copy_from(sent);
  }

  void broadcast(const OpContext&, const Tensor& tensor, int root) override {
    state_.collective(rank_, {.name = "broadcast", .input = tensor, .root = root}, [&]() -> std::string {
      if (root < 0 || root >= size()) return fmt::format("broadcast: there is no rank {}", root);
      if (rank_ != root)
        std::memcpy(tensor.raw(), state_.calls[at(root)].input.raw(), static_cast<size_t>(tensor.nbytes()));
      return {};
    });
  }

  void barrier(const OpContext&) override {
    state_.collective(rank_, {.name = "barrier"}, []() -> std::string { return {}; });
  }
  // <<< task 1.4

 private:
  static size_t at(int index) { return static_cast<size_t>(index); }

  void check_peer(const char* name, int peer) const {
    LADDER_CHECK(peer >= 0 && peer < size() && peer != rank_, "{}: rank {} has no peer {}", name, rank_,
                 peer);
  }

  // The first pair of ranks whose counts do not fit, the same on every rank.
  std::string counts_problem() const {
    for (int r = 0; r < size(); ++r) {
      const Call& call = state_.calls[at(r)];
      const auto sum = [](const std::vector<int64_t>& counts) {
        return std::accumulate(counts.begin(), counts.end(), int64_t{0});
      };
      const auto valid = [&](const std::vector<int64_t>& counts) {
        return counts.size() == at(size()) &&
               std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count >= 0; });
      };
      if (!valid(call.send_counts) || !valid(call.recv_counts) || call.input.ndim() < 1 ||
          call.output.ndim() < 1 || sum(call.send_counts) != call.input.dim(0) ||
          sum(call.recv_counts) != call.output.dim(0) || call.output.dtype() != call.input.dtype() ||
          row_elements(call.output) != row_elements(call.input))
        return fmt::format("all_to_all: rank {}'s counts do not fit {} and {}", r, call.input.str(),
                           call.output.str());
    }
    for (int from = 0; from < size(); ++from)
      for (int to = 0; to < size(); ++to) {
        const int64_t sent = state_.calls[at(from)].send_counts[at(to)];
        const int64_t expected = state_.calls[at(to)].recv_counts[at(from)];
        if (sent != expected)
          return fmt::format("all_to_all: rank {} sends {} rows to rank {}, which expects {}", from, sent, to,
                             expected);
      }
    return {};
  }

  State& state_;
  int rank_;
};

LocalGroup::LocalGroup(int size) {
  LADDER_CHECK(size >= 1, "a group has at least one rank, not {}", size);
  state_ = std::make_unique<State>(size);
  for (int r = 0; r < size; ++r) state_->ranks.push_back(std::make_unique<State::Rank>(*state_, r));
}

LocalGroup::~LocalGroup() = default;

int LocalGroup::size() const {
  return state_->size();
}

Communicator& LocalGroup::rank(int rank) {
  LADDER_CHECK(rank >= 0 && rank < size(), "a group of {} has no rank {}", size(), rank);
  return *state_->ranks[static_cast<size_t>(rank)];
}

void LocalGroup::leave(int rank) {
  state_->leave(rank, "");
}

void LocalGroup::fail_rank(int rank, const std::string& reason) {
  state_->leave(rank, reason.empty() ? "for no stated reason" : reason);
}

void run_ranks(int size, const std::function<void(int rank, const ParallelContext& parallel)>& fn) {
  LocalGroup group(size);
  std::mutex mutex;
  std::exception_ptr first;
  const int threads_each = std::max(num_threads() / size, 1);

  const auto run = [&](int rank) {
    set_num_threads(threads_each);
    ParallelContext parallel;
    parallel.tp = &group.rank(rank);
    try {
      fn(rank, parallel);
      group.leave(rank);
    } catch (...) {
      {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      std::string reason = "an exception";
      try {
        throw;
      } catch (const std::exception& error) {
        reason = error.what();
      } catch (...) {
      }
      group.fail_rank(rank, reason);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace ladder
