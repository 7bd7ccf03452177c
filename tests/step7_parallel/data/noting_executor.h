#pragma once
// An executor that notes what it is to run, and computes nothing.
#include <vector>

#include "step4_runner/executor.h"

namespace ladder::testing {

class NotingExecutor final : public Executor {
 public:
  struct Step {
    int64_t tokens = 0, padding = 0;
    int64_t rows() const { return tokens + padding; }
    bool operator==(const Step&) const = default;
  };

  explicit NotingExecutor(std::vector<Step>& steps) : steps_(steps) {}
  Ticket submit(const SchedulerOutput& step) override {
    steps_.push_back({step.total_num_tokens, step.num_static_padding_rows});
    return {};
  }
  StepOutput collect(Ticket) override { return {}; }

 private:
  std::vector<Step>& steps_;
};

}  // namespace ladder::testing
