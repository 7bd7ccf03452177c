#pragma once
// How often the student's code asked for memory: every malloc, and so every operator new, of the worker is counted while
// a Counting lives.
#include <cstdint>

namespace ladder::course {

class Counting {
 public:
  explicit Counting(int64_t& to);  // adds to it at the end
  ~Counting();
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

 private:
  int64_t& to_;
};

}  // namespace ladder::course
