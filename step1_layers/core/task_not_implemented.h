#pragma once
// The course's tasks that are not written. A function of such a task throws TaskNotImplemented; a rung of such
// a task says so beside its functions:
//
//   LADDER_UNWRITTEN("rms_norm", "avx2")
//
// and choose_variant (variants.h) takes it no more by itself. So the engine runs on the rung below; a test that
// forces the rung gets the exception.
//
// Made of declarations only, so that a file that is compiled once per instruction set can use all of it.
#include <stdexcept>
#include <string_view>

namespace ladder {

// No Error: a test that expects one must not be content with this.
class TaskNotImplemented : public std::logic_error {
 public:
  // "task 5.2 is not implemented (admission.cpp:40)"
  explicit TaskNotImplemented(const char* task, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE());
  ~TaskNotImplemented() override;  // out of line, and with it all that an exception type needs
};

// A rung that is not written, in a list of all of them: an object with static storage.
class UnwrittenRung {
 public:
  UnwrittenRung(const char* op, const char* rung);

 private:
  friend bool is_unwritten(std::string_view op, std::string_view rung);
  static const UnwrittenRung* first_;
  const char* op_;
  const char* rung_;
  const UnwrittenRung* next_;
};

inline bool is_unwritten(std::string_view op, std::string_view rung) {
  for (const UnwrittenRung* at = UnwrittenRung::first_; at != nullptr; at = at->next_)
    if (op == at->op_ && rung == at->rung_) return true;
  return false;
}

#define LADDER_UNWRITTEN_NAME_2(number) ladder_unwritten_##number
#define LADDER_UNWRITTEN_NAME(number) LADDER_UNWRITTEN_NAME_2(number)
#define LADDER_UNWRITTEN(op, rung) \
  [[maybe_unused]] static const ::ladder::UnwrittenRung LADDER_UNWRITTEN_NAME(__COUNTER__)(op, rung);

}  // namespace ladder
