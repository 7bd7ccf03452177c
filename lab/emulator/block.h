#pragma once
// A block's threads as fibers: one runs until it waits for others or ends, then the next.
#include <boost/context/fiber.hpp>
#include <exception>
#include <string>
#include <vector>

#include "lab/emulator/kernel.h"

namespace ladder_emulator {

enum class State { ready, at_barrier, meeting, ended };

struct Thread {
  boost::context::fiber fiber;
  State state = State::ended;
  int index = 0;  // in the block
  uint3 place{};
  uintptr_t stack = 0;             // its lowest address
  const void* waits_at = nullptr;  // the call
  int barrier_value = 0;
  struct {  // what it brought to a meeting of its warp, and what it got
    Exchange what;
    unsigned mask;
    uint64_t value;
    int source;
  } brought{};
  uint64_t result = 0;

  int lane() const { return index % 32; }
  int warp() const { return index / 32; }
};

class Block {
 public:
  static constexpr size_t kStackBytes = 128 << 10;
  static constexpr int kMaxThreads = 1024;

  Block();
  // Runs all threads of a block to their end. What was wrong is reported (report.h); a fatal report leaves the
  // threads where they are. An exception of a thread is thrown on.
  void run(uint3 block, dim3 size, dim3 grid, void (*thread)(const void*), const void* call);

  Thread* current() { return current_; }
  // For the thread that runs.
  void wait_for_barrier(const void* at, int value);
  uint64_t meet(Exchange what, unsigned mask, uint64_t value, int source, const void* at);
  int barrier_count() const { return barrier_count_; }
  unsigned lanes_not_ended(int warp) const;
  [[noreturn]] void abandon();  // leaves the block, for good

 private:
  void leave();
  void resume(Thread& thread);
  void run_warp(int warp);
  bool pass_barrier();
  void complete_meetings(int warp);
  bool complete(int warp, unsigned mask, Exchange what);
  void report_stuck() const;

  char* stacks_;
  std::vector<Thread> threads_;
  unsigned arrived_[kMaxThreads / 32] = {};  // lanes of each warp that wait in a meeting
  int num_threads_ = 0, barrier_count_ = 0;
  bool abandoned_ = false;
  Thread* current_ = nullptr;
  boost::context::fiber scheduler_;
  std::exception_ptr error_;
};

}  // namespace ladder_emulator
