#pragma once
// What a template may use. A template is a program that comes with a checkpoint, and its input comes from a request:
// neither may hang the server, fill its memory or overflow its stack.
//
// Steps are counted for every node that is evaluated, for every 64 bytes that are copied or compared, for every 8 bytes
// that are read character by character, and for every 32 names that are looked through. Memory is what values hold at
// the same time, those that are being made included, given back when they go.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "step1_layers/core/error.h"

namespace ladder::jinja {

// Thrown while a template is read or runs; ChatTemplate adds the file and the line and throws Error.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Refusal(fmt::format(format, std::forward<Args>(args)...));
}

struct Limits {
  int64_t steps = 20'000'000;
  int64_t memory = int64_t{256} << 20;  // bytes
  int64_t output = int64_t{64} << 20;   // bytes
  int depth = 400;                      // expressions, statements and macro calls within each other
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), steps_left_(limits.steps) {}
  Budget(const Budget&) = delete;

  const Limits& limits() const { return limits_; }

  void step(int64_t steps = 1) {
    if ((steps_left_ -= steps) < 0) refuse("more than {} steps", limits_.steps);
  }
  // A copy of, or a comparison with, this many bytes.
  void touch(size_t bytes) { step(static_cast<int64_t>(bytes / 64)); }
  // A walk over the characters of a text of this many bytes.
  void walk(size_t bytes) { step(static_cast<int64_t>(bytes / 8)); }

  // A look for one of this many names, one after the other.
  void look_up(size_t names) { step(static_cast<int64_t>(names / 32)); }

  // Refuses before anything of this size is made.
  void require(size_t bytes) const {
    if (bytes > static_cast<size_t>(limits_.memory - held_)) refuse("more than {} bytes", limits_.memory);
  }
  void require(size_t count, size_t bytes_each) const {
    size_t bytes = 0;
    require(__builtin_mul_overflow(count, bytes_each, &bytes) ? SIZE_MAX : bytes);
  }
  void hold(size_t bytes) {
    require(bytes);
    held_ += static_cast<int64_t>(bytes);
  }
  void release(size_t bytes) { held_ -= static_cast<int64_t>(bytes); }
  int64_t held() const { return held_; }

  void enter() {
    if (++depth_ > limits_.depth) {
      --depth_;
      refuse("more than {} expressions, statements and macro calls within each other", limits_.depth);
    }
  }
  void leave() { --depth_; }

 private:
  Limits limits_;
  int64_t steps_left_;
  int64_t held_ = 0;
  int depth_ = 0;
};

// One level of depth, as long as it lives.
class Level {
 public:
  explicit Level(Budget& budget) : budget_(budget) { budget.enter(); }
  ~Level() { budget_.leave(); }
  Level(const Level&) = delete;

 private:
  Budget& budget_;
};

// Bytes of a value, given back with it. Without a budget (a template's constants): nothing.
class Holding {
 public:
  Holding() = default;
  Holding(Budget* budget, size_t bytes) : budget_(budget), bytes_(bytes) {
    if (budget_ != nullptr) budget_->hold(bytes_);
  }
  ~Holding() {
    if (budget_ != nullptr) budget_->release(bytes_);
  }
  Holding(const Holding&) = delete;

 private:
  Budget* budget_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace ladder::jinja
