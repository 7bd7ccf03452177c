#pragma once
// Several answers growing at once, one terminal line each: the end of every prompt, and the answer so far.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// Line breaks and runs of spaces become one space: a text on one line.
std::string on_one_line(std::string_view text);

// The last `width` characters, or the first; "..." stands for what was cut. Counts code points.
std::string keep_end(std::string_view text, size_t width);
std::string keep_begin(std::string_view text, size_t width);

class LiveView {
 public:
  explicit LiveView(std::vector<std::string> prompts);
  ~LiveView();  // wipes the lines

  void append(size_t index, std::string_view text) { answers_[index] += text; }
  void finish(size_t index) { done_[index] = true; }
  void draw(bool now = false);  // at most 30 times a second, unless `now`

 private:
  std::vector<std::string> prompts_, answers_;
  std::vector<bool> done_;
  bool drawn_ = false;
  double last_ = 0.0;
};

}  // namespace ladder
