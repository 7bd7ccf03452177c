#pragma once
// Task 7.9.wave: when replicas that share out a layer's experts have to step, and when they may sleep.
//
// A token's experts are on all replicas, so none can run a step alone: all run one at the same time, or none does. A wave is
// the time from the first request anywhere until nobody has one:
//
//                wave 4                                      asleep         wave 5
//   replica 0    start! | step  | step  | step  | nothing |            heard 5 | along | ...
//   replica 1    heard 4| along | step  | step  | nothing |    request: start! | step  | ...
//   replica 2    heard 4| along | along | along | nothing |            heard 5 | along | ...
//                                                   ^ all have said so at the same step: the wave has ended everywhere
//
// A replica without a request runs along: a step without rows, whose experts serve the others' tokens. At each step everybody
// says whether it has work. When nobody has, the wave ends; its number goes up, and all sleep until a request comes
// somewhere, whose replica tells the others to start. Those messages travel by themselves, and may be late: one for a wave
// that has ended means nothing any more, and one for the next wave may come before the end of this one is known.
//
// (vLLM: vllm/v1/engine/core.py, DPEngineCoreProc; it counts votes every 32nd step, and idle engines run along until then.)
#include <cstdint>
#include <span>

namespace ladder {

// What one replica knows. Numbers are the same on all of them once they know the same.
class Wave {
 public:
  int64_t number() const { return number_; }
  // All step together now; a replica without work too. A wave does from when this replica or a message has started it until
  // its votes have ended it.
  bool running() const;

  // This replica has work. True: the others sleep, so each is to be sent a start message with number(); they need not
  // answer.
  bool begin();
  // A start message has come.
  void on_start(int64_t number);
  // What every replica has said at this step: whether it has work (0: no). True: the step is run. False: there is none, and the
  // wave is over: the number goes up by one. Error: no wave is running.
  bool on_votes(std::span<const int32_t> has_work);

 private:
  int64_t number_ = 0;
  int64_t started_ = -1;  // the highest wave that somebody has started
};

}  // namespace ladder
