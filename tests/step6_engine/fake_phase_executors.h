#pragma once
// Two executors whose steps are done in an order that the test says: no threads, no clocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "step4_runner/phase_executors.h"

namespace ladder::testing {

class FakePhaseExecutors final : public PhaseExecutors {
 public:
  // Of two lanes that both have a step in flight, the one that is done first.
  using Choose = std::function<StepPhase()>;

  FakePhaseExecutors(std::unique_ptr<Executor> prefill, std::unique_ptr<Executor> decode, Choose choose)
      : prefill_(*this, std::move(prefill)), decode_(*this, std::move(decode)), choose_(std::move(choose)) {}

  Executor& of(StepPhase phase) override { return lane(phase); }

  StepPhase wait() override {
    EXPECT_GT(prefill_.num_in_flight + decode_.num_in_flight, 0) << "waited for nothing";
    if (prefill_.num_in_flight == 0 || decode_.num_in_flight == 0)
      return decode_.num_in_flight > 0 ? StepPhase::decode : StepPhase::prefill;
    return choose_();
  }

  bool on_waiting(int64_t num_tokens) override {
    waiting.push_back(num_tokens);
    return mixes && mixes(num_tokens);
  }
  std::vector<int64_t> waiting;        // what was said
  std::function<bool(int64_t)> mixes;  // the answer; empty: never

  // Decode steps that were collected while a prefill step was in flight; the most for one.
  int64_t most_decodes_beside_a_prefill() const { return most_beside_; }

 private:
  class Lane final : public Executor {
   public:
    Lane(FakePhaseExecutors& both, std::unique_ptr<Executor> inner) : both_(both), inner_(std::move(inner)) {}
    Ticket submit(const SchedulerOutput& step) override {
      const Ticket ticket = inner_->submit(step);
      ++num_in_flight;
      return ticket;
    }
    StepOutput collect(Ticket ticket) override {
      --num_in_flight;
      both_.count_collected(*this);
      return inner_->collect(ticket);
    }
    int max_in_flight() const override { return inner_->max_in_flight(); }
    void check() override { inner_->check(); }

    int num_in_flight = 0;

   private:
    FakePhaseExecutors& both_;
    const std::unique_ptr<Executor> inner_;
  };

  Lane& lane(StepPhase phase) {
    EXPECT_NE(phase, StepPhase::any);
    return phase == StepPhase::decode ? decode_ : prefill_;
  }
  void count_collected(const Lane& lane) {
    if (&lane == &prefill_)
      beside_ = 0;
    else if (prefill_.num_in_flight > 0)
      most_beside_ = std::max(most_beside_, ++beside_);
  }

  Lane prefill_, decode_;
  Choose choose_;
  int64_t beside_ = 0, most_beside_ = 0;
};

}  // namespace ladder::testing
