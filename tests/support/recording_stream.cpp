#include "tests/support/recording_stream.h"

#include <utility>

#include "step1_layers/core/error.h"

namespace ladder::testing {

OpContext RecordingStream::context() {
  OpContext ctx;
  ctx.device = {DeviceType::fake, 0};
  ctx.stream = static_cast<FakeStream*>(this);
  return ctx;
}

RecordingStream::Counts RecordingStream::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

std::vector<std::string> RecordingStream::log() const {
  std::lock_guard lock(mutex_);
  return log_;
}

void RecordingStream::clear() {
  std::lock_guard lock(mutex_);
  counts_ = {};
  log_.clear();
}

int64_t RecordingStream::num_pending() const {
  std::lock_guard lock(mutex_);
  return std::ssize(pending_);
}

std::vector<std::vector<RecordingStream::Frozen>> RecordingStream::graphs() const {
  std::lock_guard lock(mutex_);
  return graphs_;
}

void RecordingStream::count(const Launch& launch) {
  log_.push_back(launch.name);
  if (launch.name == kFromHost) {
    ++counts_.copies_from_host;
    counts_.bytes_from_host += launch.bytes;
  } else if (launch.name == kToHost) {
    ++counts_.copies_to_host;
    counts_.bytes_to_host += launch.bytes;
  } else {
    ++counts_.launches;
  }
}

void RecordingStream::push(Launch launch) {
  pending_.push_back(std::move(launch));
  ++num_launched_;
  if (pace_ == Pace::at_once) run_until(num_launched_);
  if (pace_ == Pace::random)
    run_until(num_done_ + static_cast<int64_t>(random_() % static_cast<uint64_t>(pending_.size() + 1)));
}

void RecordingStream::run_until(int64_t event) {
  for (; num_done_ < event; ++num_done_) {
    const Launch launch = std::move(pending_.front());
    pending_.pop_front();
    if (error_) continue;
    try {
      launch.work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
}

void RecordingStream::launch(Launch launch, std::vector<int64_t> arguments) {
  std::lock_guard lock(mutex_);
  if (capturing_) {
    graphs_.back().push_back({launch.name, std::move(arguments)});
    captured_.push_back(std::move(launch));
    return;
  }
  count(launch);
  push(std::move(launch));
}

int64_t RecordingStream::record() {
  std::lock_guard lock(mutex_);
  LADDER_CHECK(!capturing_, "an event is recorded in the middle of a capture");
  log_.push_back("record");
  return num_launched_;
}

void RecordingStream::wait(int64_t event) {
  std::lock_guard lock(mutex_);
  LADDER_CHECK(!capturing_, "the host waits in the middle of a capture");
  if (num_done_ < event) {
    ++counts_.waits;
    log_.push_back("wait");
    run_until(event);
  }
  if (error_) std::rethrow_exception(error_);
}

void RecordingStream::synchronize() {
  std::lock_guard lock(mutex_);
  LADDER_CHECK(!capturing_, "the host waits in the middle of a capture");
  ++counts_.waits;
  log_.push_back("synchronize");
  run_until(num_launched_);
  if (error_) std::rethrow_exception(error_);
}

std::vector<FakeStream::Launch> RecordingStream::capture(const std::function<void()>& work) {
  {
    std::lock_guard lock(mutex_);
    capturing_ = true;
    captured_.clear();
    graphs_.emplace_back();
  }
  try {
    work();
  } catch (...) {
    std::lock_guard lock(mutex_);
    capturing_ = false;
    throw;
  }
  std::lock_guard lock(mutex_);
  capturing_ = false;
  return std::exchange(captured_, {});
}

void RecordingStream::replay(const std::vector<Launch>& graph) {
  std::lock_guard lock(mutex_);
  ++counts_.replays;
  log_.push_back("replay");
  for (const Launch& launch : graph) push(launch);
}

}  // namespace ladder::testing
