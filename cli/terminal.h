#pragma once
// Standard output, the progress bar, and how numbers are shown to a person.
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "step1_layers/core/cpu_features.h"

namespace ladder {

// Whoever read our output has gone away (`ladder ... | head`): the work ends quietly.
class OutputClosed : public std::runtime_error {
 public:
  OutputClosed() : std::runtime_error("standard output was closed") {}
};

// Writes to standard output and flushes. OutputClosed: the reader has gone. Error: any other failure (disk
// full).
void write_out(std::string_view text);
// Text that a model wrote, as it is into a file or a pipe; on a terminal without what a terminal obeys (harmless()).
void write_text(std::string_view text);
// Control characters but line breaks and tabs, of either range (C0 and DEL, and C1, which some terminals obey too),
// become U+FFFD, and a return before a line break goes. UTF-8 in, UTF-8 out.
std::string harmless(std::string_view text);
bool stdout_is_terminal();
bool stdin_is_terminal();

// A bar on standard error when that is a terminal, nothing otherwise. Redrawn at most ten times a second, and
// wiped when it goes out of scope.
class ProgressBar {
 public:
  ProgressBar(std::string label, int64_t total, std::string unit);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void set(int64_t done, std::string_view note = {});
  void set_total(int64_t total) { total_ = total; }
  void clear();  // before something else is printed; the next set() draws it again

 private:
  std::string label_, unit_;
  int64_t total_;
  bool enabled_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_{};
};

std::string format_bytes(int64_t bytes);     // "1.50 GiB"
std::string format_count(int64_t count);     // "1,234,567"
std::string format_seconds(double seconds);  // "1.25 s", "12.3 ms", "45.6 us"

std::string_view isa_name(CpuIsa isa);  // "avx512"

// Columns as wide as their widest cell; the first column is left-aligned, the others right-aligned.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

// Names and what belongs to them, both left-aligned.
std::string format_pairs(const std::vector<std::pair<std::string, std::string>>& pairs);

// Whether the bytes are UTF-8 (no overlong forms, no surrogates).
bool is_utf8(std::string_view text);

}  // namespace ladder
