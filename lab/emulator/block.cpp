#include "lab/emulator/block.h"

#include <sys/mman.h>

#include <bit>
#include <new>

#include "lab/emulator/grid.h"

namespace ladder_emulator {

Place place;

namespace {

// The stacks belong to Block and are used again for the next block's threads, also under fibers that never ended.
struct KeptStack {
  void deallocate(boost::context::stack_context&) {}
};

std::string threads_text(const std::vector<int>& threads) {
  std::string text = threads.size() == 1 ? "thread " : "threads ";
  for (size_t i = 0, shown = 0; i < threads.size(); ++shown) {
    size_t last = i;
    while (last + 1 < threads.size() && threads[last + 1] == threads[last] + 1) ++last;
    if (shown == 4) return text + ", ...";
    text += (shown > 0 ? ", " : "") + std::to_string(threads[i]);
    if (last > i) text += (last == i + 1 ? ", " : " to ") + std::to_string(threads[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

Block::Block() : threads_(kMaxThreads) {
  void* pages = ::mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  stacks_ = static_cast<char*>(pages);
  for (int i = 0; i < kMaxThreads; ++i) {
    threads_[i].index = i;
    threads_[i].stack = reinterpret_cast<uintptr_t>(stacks_ + i * kStackBytes);
  }
}

void Block::run(uint3 block, dim3 size, dim3 grid, void (*body)(const void*), const void* call) {
  using boost::context::fiber;
  num_threads_ = static_cast<int>(size.x * size.y * size.z);
  abandoned_ = false;
  error_ = nullptr;
  place = {{}, block, size, grid};
  std::fill(std::begin(arrived_), std::end(arrived_), 0u);
  for (int i = 0; i < num_threads_; ++i) {
    Thread& thread = threads_[i];
    const unsigned n = static_cast<unsigned>(i);
    thread.place = {n % size.x, n / size.x % size.y, n / (size.x * size.y)};
    thread.state = State::ready;
    char* top = stacks_ + (i + 1) * kStackBytes;
    boost::context::stack_context stack;
    stack.sp = top;
    stack.size = kStackBytes;
    thread.fiber = fiber(std::allocator_arg, boost::context::preallocated(top, kStackBytes, stack),
                         KeptStack(), [this, &thread, body, call](fiber&& scheduler) {
                           scheduler_ = std::move(scheduler);
                           try {
                             body(call);
                           } catch (const boost::context::detail::forced_unwind&) {
                             throw;
                           } catch (...) {
                             if (!error_) error_ = std::current_exception();
                           }
                           thread.state = State::ended;
                           current_ = nullptr;
                           return std::move(scheduler_);
                         });
  }
  do {
    for (int warp = 0; warp * 32 < num_threads_ && !abandoned_; ++warp) run_warp(warp);
  } while (!abandoned_ && pass_barrier());
  for (int i = 0; i < num_threads_ && !abandoned_; ++i)
    if (threads_[i].state != State::ended) {
      report_stuck();
      abandoned_ = true;
    }
  // A fiber that did not end would unwind its stack, out of the middle of an access: it is forgotten instead.
  for (int i = 0; i < num_threads_; ++i)
    if (threads_[i].fiber) new fiber(std::move(threads_[i].fiber));
  if (error_) std::rethrow_exception(error_);
}

void Block::resume(Thread& thread) {
  current_ = &thread;
  place.thread_index = thread.place;
  thread.fiber = std::move(thread.fiber).resume();
}

void Block::leave() {
  current_ = nullptr;
  scheduler_ = std::move(scheduler_).resume();
}

void Block::abandon() {
  abandoned_ = true;
  for (;;) leave();
}

// Until all its lanes have ended or wait for the block, or for lanes that will not come.
void Block::run_warp(int warp) {
  const int first = warp * 32, last = std::min(first + 32, num_threads_);
  for (bool ran = true; ran && !abandoned_;) {
    ran = false;
    for (int i = first; i < last && !abandoned_; ++i)
      if (threads_[i].state == State::ready) {
        resume(threads_[i]);
        ran = true;
      }
    complete_meetings(warp);
    for (int i = first; i < last; ++i) ran |= threads_[i].state == State::ready;
  }
  grid().warp_paused();
}

bool Block::pass_barrier() {
  int waiting = 0;
  barrier_count_ = 0;
  for (int i = 0; i < num_threads_; ++i) {
    waiting += threads_[i].state == State::at_barrier;
    barrier_count_ += threads_[i].barrier_value;
  }
  if (waiting == 0 || waiting < num_threads_) return false;
  for (int i = 1; i < num_threads_; ++i)
    if (threads_[i].waits_at != threads_[0].waits_at &&
        grid().line(threads_[i].waits_at) != grid().line(threads_[0].waits_at))
      return false;
  for (int i = 0; i < num_threads_; ++i) threads_[i].state = State::ready;
  grid().clock().barrier();
  return true;
}

void Block::wait_for_barrier(const void* at, int value) {
  current_->state = State::at_barrier;
  current_->waits_at = at;
  current_->barrier_value = value;
  leave();
}

unsigned Block::lanes_not_ended(int warp) const {
  unsigned lanes = 0;
  for (int i = warp * 32; i < std::min(warp * 32 + 32, num_threads_); ++i)
    if (threads_[i].state != State::ended) lanes |= 1u << (i % 32);
  return lanes;
}

uint64_t Block::meet(Exchange what, unsigned mask, uint64_t value, int source, const void* at) {
  Thread& me = *current_;
  if ((mask >> me.lane() & 1) == 0)
    grid().report("a mask without the lane itself", at,
                  "the mask is " + hex(mask) + ", the lane " + std::to_string(me.lane()) +
                      ": what it gets is undefined");
  me.state = State::meeting;
  me.waits_at = at;
  me.brought = {what, mask, value, source};
  // Who comes last does it for all; where some have ended, the scheduler (run_warp).
  unsigned& arrived = arrived_[me.warp()];
  arrived |= 1u << me.lane();
  if ((arrived & mask) != mask || !complete(me.warp(), mask, what)) leave();
  return me.result;
}

void Block::complete_meetings(int warp) {
  for (int i = warp * 32; i < std::min(warp * 32 + 32, num_threads_); ++i)
    if (threads_[i].state == State::meeting)
      complete(warp, threads_[i].brought.mask, threads_[i].brought.what);
}

// Where all lanes of the mask that have not ended are there: gives each its result and lets it go on.
bool Block::complete(int warp, unsigned mask, Exchange what) {
  const unsigned here = mask & lanes_not_ended(warp);
  Thread* const lanes = &threads_[warp * 32];
  uint64_t combined = what == Exchange::all || what == Exchange::bit_and ? ~uint64_t{0} : 0;
  bool first = true;
  for (unsigned left = here; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const Thread& one = lanes[lane];
    if (one.state != State::meeting || one.brought.mask != mask || one.brought.what != what) return false;
    const uint64_t value = one.brought.value;
    const auto number = static_cast<int64_t>(value), so_far = static_cast<int64_t>(combined);
    switch (what) {
      case Exchange::ballot:
        combined |= value << lane;
        break;
      case Exchange::any:
      case Exchange::bit_or:
        combined |= value;
        break;
      case Exchange::all:
      case Exchange::bit_and:
        combined &= value;
        break;
      case Exchange::bit_xor:
        combined ^= value;
        break;
      case Exchange::add:
      case Exchange::add_signed:
        combined += value;
        break;
      case Exchange::min:
        combined = first ? value : std::min(combined, value);
        break;
      case Exchange::max:
        combined = first ? value : std::max(combined, value);
        break;
      case Exchange::min_signed:
        combined = static_cast<uint64_t>(first ? number : std::min(so_far, number));
        break;
      case Exchange::max_signed:
        combined = static_cast<uint64_t>(first ? number : std::max(so_far, number));
        break;
      case Exchange::shuffle:
      case Exchange::match_any:
      case Exchange::sync:
        break;
    }
    first = false;
  }
  for (unsigned left = here; left != 0; left &= left - 1) {
    Thread& one = lanes[std::countr_zero(left)];
    one.result = combined;
    if (what == Exchange::shuffle) {
      const int from = one.brought.source;
      one.result = lanes[from].brought.value;
      if ((here >> from & 1) == 0)
        grid().report("a shuffle from a lane that is not there", one.waits_at,
                      "lane " + std::to_string(one.lane()) + " takes the value of lane " +
                          std::to_string(from) + ", which does not take part");
    }
    if (what == Exchange::match_any) {
      one.result = 0;
      for (unsigned other = here; other != 0; other &= other - 1)
        if (lanes[std::countr_zero(other)].brought.value == one.brought.value) one.result |= other & -other;
    }
  }
  for (unsigned left = here; left != 0; left &= left - 1) lanes[std::countr_zero(left)].state = State::ready;
  arrived_[warp] &= ~here;
  if (what == Exchange::sync) grid().clock().sync_lanes(warp, here);
  if (here == lanes_not_ended(warp)) grid().warp_paused();
  return true;
}

void Block::report_stuck() const {
  std::vector<int> ended;
  std::vector<std::pair<std::string, std::vector<int>>> waiting;
  const void* at = nullptr;
  bool in_warp = false;
  for (int i = 0; i < num_threads_; ++i) {
    if (threads_[i].state == State::ended) {
      ended.push_back(i);
      continue;
    }
    at = threads_[i].waits_at;
    in_warp |= threads_[i].state == State::meeting;
    const std::string line = grid().line(at);
    if (waiting.empty() || waiting.back().first != line) waiting.push_back({line, {}});
    waiting.back().second.push_back(i);
  }
  std::string text;
  for (size_t i = 0; i < waiting.size() && i < 4; ++i)
    text += (text.empty() ? "" : "; ") + threads_text(waiting[i].second) + " wait at " + waiting[i].first;
  if (!ended.empty()) text += "; " + threads_text(ended) + " ended without it";
  grid().report(
      in_warp ? "lanes of a warp that do not meet" : "a barrier that not all threads of the block reach", at,
      text, false);
}

}  // namespace ladder_emulator
