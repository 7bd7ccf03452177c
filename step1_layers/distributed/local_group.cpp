// What LocalGroup is made of beside its collectives (local_group_collectives.cpp, local_group_exchange.cpp).
#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include "step1_layers/core/parallel.h"
#include "step1_layers/distributed/local_group_state.h"

namespace ladder {

void LocalGroup::State::leave(int rank, const std::string& reason) {
  std::lock_guard lock(mutex);
  gone[static_cast<size_t>(rank)] = true;
  if (failure.empty() && !reason.empty()) failure = fmt::format("rank {} failed: {}", rank, reason);
  changed.notify_all();
}

std::string LocalGroup::State::disagreement() const {
  const GroupCall& first = calls[0];
  for (int r = 0; r < size(); ++r) {
    const GroupCall& call = calls[static_cast<size_t>(r)];
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

void LocalGroup::State::Rank::check_peer(const char* name, int peer) const {
  LADDER_CHECK(peer >= 0 && peer < size() && peer != rank_, "{}: rank {} has no peer {}", name, rank_, peer);
}

std::string LocalGroup::State::Rank::counts_problem() const {
  for (int r = 0; r < size(); ++r) {
    const GroupCall& call = state_.calls[at(r)];
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
