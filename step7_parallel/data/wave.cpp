#include "step7_parallel/data/wave.h"

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {

bool Wave::running() const {
  return started_ >= number_;
}

// >>> task 7.9.wave: when all replicas step, and when all sleep
bool Wave::begin() {
  if (running()) return false;
  started_ = number_;
  return true;
}

void Wave::on_start(int64_t number) {
  started_ = std::max(started_, number);
}

bool Wave::on_votes(std::span<const int32_t> has_work) {
  LADDER_CHECK(running(), "replicas vote in wave {}, which has not begun", number_);
  const bool goes_on = std::ranges::any_of(has_work, [](int32_t vote) { return vote != 0; });
  if (!goes_on) ++number_;
  return goes_on;
}
// <<< task 7.9.wave

}  // namespace ladder
