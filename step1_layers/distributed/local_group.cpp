// What LocalGroup is made of beside its collectives (local_group_collectives.cpp, local_group_exchange.cpp).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
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

std::vector<CallForm> LocalGroup::State::forms() const {
  std::vector<CallForm> forms;
  for (const GroupCall& call : calls)
    forms.push_back(call_form(call.name, call.input, call.output, call.root, !call.send_counts.empty()));
  return forms;
}

void LocalGroup::State::Rank::check_peer(const char* name, int peer) const {
  LADDER_CHECK(peer >= 0 && peer < size() && peer != rank_, "{}: rank {} has no peer {}", name, rank_, peer);
}

std::string LocalGroup::State::Rank::counts_problem() const {
  CallCounts counts;
  for (const GroupCall& call : state_.calls) {
    counts.send.push_back(call.send_counts);
    counts.recv.push_back(call.recv_counts);
  }
  return ladder::counts_problem(state_.forms(), counts);
}

LocalGroup::LocalGroup(int size) {
  LADDER_CHECK(size >= 1, "a group has at least one rank, not {}", size);
  state_ = std::make_unique<State>(size);
  for (int r = 0; r < size; ++r) {
    state_->ranks.push_back(std::make_unique<State::Rank>(*state_, r));
    state_->traced_ranks.push_back(
        std::make_unique<TracedCommunicator>(*state_->ranks.back(), state_->trace));
  }
}

LocalGroup::~LocalGroup() = default;

int LocalGroup::size() const {
  return state_->size();
}

Communicator& LocalGroup::rank(int rank) {
  LADDER_CHECK(rank >= 0 && rank < size(), "a group of {} has no rank {}", size(), rank);
  return *state_->traced_ranks[static_cast<size_t>(rank)];
}

void LocalGroup::leave(int rank) {
  state_->leave(rank, "");
}

void LocalGroup::fail_rank(int rank, const std::string& reason) {
  state_->leave(rank, reason.empty() ? "for no stated reason" : reason);
}

std::string LocalGroup::where() const {
  return state_->trace.str();
}

void run_ranks(int size, const std::function<void(int rank, const ParallelContext& parallel)>& fn,
               std::chrono::milliseconds deadline) {
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
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::async(std::launch::async, run, rank));
  const auto until = std::chrono::steady_clock::now() + deadline;
  for (int rank = 0; rank < size; ++rank) {
    const std::future<void>& mine = ranks[static_cast<size_t>(rank)];
    if (mine.wait_until(until) == std::future_status::ready) continue;
    const std::string where = fmt::format("not done within {} ms:\n{}", deadline.count(), group.where());
    group.fail_rank(rank, where);
    if (mine.wait_for(std::chrono::seconds(10)) == std::future_status::ready) continue;
    std::fprintf(stderr, "rank %d is %s", rank, where.c_str());
    std::abort();
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace ladder
