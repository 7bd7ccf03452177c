#pragma once
// The fake device of the tests (step1_layers/core/fake_device.h): a stream that remembers what the host did with it.
//
//   RecordingStream stream;
//   OpContext ctx = stream.context();    launches and copies of this context go to the stream
//   ...
//   stream.counts().waits                how often the host had to wait
//
// Its pace is the worst one for whoever does not wait where it is needed: nothing is done until somebody waits, and
// then no more than is waited for. A GPU may be faster: at_once does everything when it is launched, random some of
// it. Right code gives the same at every pace.
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "step1_layers/core/fake_device.h"

namespace ladder::testing {

class RecordingStream final : public FakeStream {
 public:
  enum class Pace { late, at_once, random };
  explicit RecordingStream(Pace pace = Pace::late, uint64_t seed = 1) : pace_(pace), random_(seed) {}

  OpContext context();  // of the fake device; without an arena

  // What the host did since the last clear(). What a replay launches counts as one call.
  struct Counts {
    int64_t launches = 0;  // kernels
    int64_t copies_from_host = 0, bytes_from_host = 0;
    int64_t copies_to_host = 0, bytes_to_host = 0;
    int64_t replays = 0;
    int64_t waits = 0;  // for an event that was not past, or for all there was
  };
  Counts counts() const;
  std::vector<std::string> log() const;  // each call by name: an operator's, "record", "wait", "replay", ...
  void clear();                          // forgets both
  int64_t num_pending() const;           // launched and not done

  // One kernel of a captured graph, with the numbers it was launched with, where the launch said them.
  struct Frozen {
    std::string name;
    std::vector<int64_t> arguments;
  };
  std::vector<std::vector<Frozen>> graphs() const;  // in the order of capture
  // A launch that says its arguments.
  void launch(Launch launch, std::vector<int64_t> arguments);

  void launch(Launch launch) override { this->launch(std::move(launch), {}); }
  int64_t record() override;
  void wait(int64_t event) override;
  void synchronize() override;
  std::vector<Launch> capture(const std::function<void()>& work) override;
  void replay(const std::vector<Launch>& graph) override;

 private:
  void count(const Launch& launch);
  void push(Launch launch);
  void run_until(int64_t event);

  mutable std::mutex mutex_;
  const Pace pace_;
  std::mt19937_64 random_;
  std::deque<Launch> pending_;
  int64_t num_launched_ = 0, num_done_ = 0;
  bool capturing_ = false;
  std::vector<Launch> captured_;
  std::vector<std::vector<Frozen>> graphs_;
  std::exception_ptr error_;  // of a kernel: nothing is done any more, and who waits hears of it
  Counts counts_;
  std::vector<std::string> log_;
};

}  // namespace ladder::testing
