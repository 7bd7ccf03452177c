#pragma once
// Task 7.9.wave: the waves of several replicas, without any threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "step7_parallel/data/wave.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

// Replicas that get requests, vote, and hear of votes and starts at their own pace; nothing is delivered in order.
class WaveFleet {
 public:
  WaveFleet(int size, Random& random) : random_(random), replicas_(static_cast<size_t>(size)) {}

  // So many requests, at moments that are drawn; then all must be asleep.
  void serve(int64_t requests) {
    int64_t more = requests;
    for (int64_t turn = 0; turn < 100'000; ++turn) {
      const bool idle = !advance();
      if (more > 0 && (idle || random_.integer(0, 9) == 0)) {
        request();
        --more;
      } else if (idle) {
        break;
      }
    }
    expect_asleep(requests);
  }

 private:
  // One thing that can happen happens. False: there is none.
  bool advance() {
    std::vector<std::function<void()>> possible;
    for (size_t i = 0; i < messages_.size(); ++i) possible.emplace_back([this, i] { deliver(i); });
    for (Replica& replica : replicas_) {
      if (!replica.votes.empty()) possible.emplace_back([this, &replica] { hear(replica); });
      const bool must_step = replica.work > 0 || replica.wave.running();
      if (!replica.has_voted && must_step) possible.emplace_back([this, &replica] { vote(replica); });
    }
    if (possible.empty()) return false;
    possible[static_cast<size_t>(random_.integer(0, std::ssize(possible) - 1))]();
    return true;
  }
  void request() {
    replicas_[static_cast<size_t>(random_.integer(0, std::ssize(replicas_) - 1))].work +=
        random_.integer(1, 5);
  }
  void expect_asleep(int64_t requested) const {
    for (const Replica& replica : replicas_) {
      EXPECT_FALSE(replica.wave.running());
      EXPECT_FALSE(replica.has_voted) << "it waits for the others for ever";
      EXPECT_EQ(replica.work, 0);
      EXPECT_EQ(replica.num_steps, replicas_[0].num_steps) << "a step was not run by all";
      EXPECT_EQ(replica.wave.number(), replicas_[0].wave.number());
    }
    EXPECT_EQ(num_wasted_, 0) << "steps of which nobody had anything";
    EXPECT_GE(replicas_[0].num_steps, requested > 0 ? 1 : 0);
  }

  struct Replica {
    Wave wave;
    int64_t work = 0, num_steps = 0;
    bool has_voted = false, vote = false;
    std::vector<int32_t> votes;  // of all, which it has not read
  };
  struct Start {
    Replica* to;
    int64_t number;
  };

  void deliver(size_t i) {
    messages_[i].to->wave.on_start(messages_[i].number);
    messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void vote(Replica& replica) {
    if (replica.work > 0 && replica.wave.begin())
      for (Replica& other : replicas_)
        if (&other != &replica) messages_.push_back({&other, replica.wave.number()});
    replica.has_voted = true;
    replica.vote = replica.work > 0;
    // Who has not heard of the votes before has not voted again.
    if (!std::ranges::all_of(replicas_,
                             [](const Replica& one) { return one.has_voted && one.votes.empty(); }))
      return;
    std::vector<int32_t> votes;
    for (const Replica& one : replicas_) votes.push_back(one.vote ? 1 : 0);
    for (Replica& one : replicas_) one.votes = votes;
  }
  void hear(Replica& replica) {
    const std::vector<int32_t> votes = std::exchange(replica.votes, {});
    const bool goes_on = replica.wave.on_votes(votes);
    replica.has_voted = false;
    if (!goes_on) return;
    ++replica.num_steps;
    if (replica.vote) --replica.work;
    if (std::ranges::count(votes, 0) == std::ssize(votes)) ++num_wasted_;
  }

  Random& random_;
  std::vector<Replica> replicas_;
  std::vector<Start> messages_;
  int64_t num_wasted_ = 0;
};

}  // namespace ladder::testing
