#include "cli/live_view.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "cli/terminal.h"

namespace ladder {

namespace {

bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
}

size_t terminal_columns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return 80;
  return size.ws_col;
}

}  // namespace

std::string on_one_line(std::string_view text) {
  std::string line;
  for (char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    if (c != ' ' || (!line.empty() && line.back() != ' ')) line += c;
  }
  return harmless(line);
}

std::string keep_end(std::string_view text, size_t width) {
  const auto characters = static_cast<size_t>(std::count_if(text.begin(), text.end(), begins_character));
  if (characters <= width) return std::string(text);
  size_t skip = characters - width + std::min<size_t>(3, width), at = 0;
  while (at < text.size() && (skip > 0 || !begins_character(text[at])))
    skip -= begins_character(text[at++]) ? 1 : 0;
  return std::string(std::min<size_t>(3, width), '.') + std::string(text.substr(at));
}

std::string keep_begin(std::string_view text, size_t width) {
  const auto characters = static_cast<size_t>(std::count_if(text.begin(), text.end(), begins_character));
  if (characters <= width) return std::string(text);
  size_t keep = width - std::min<size_t>(3, width), at = 0;
  while (at < text.size() && (keep > 0 || !begins_character(text[at]))) {
    if (begins_character(text[at])) --keep;
    ++at;
  }
  return std::string(text.substr(0, at)) + std::string(std::min<size_t>(3, width), '.');
}

LiveView::LiveView(std::vector<std::string> prompts)
    : prompts_(std::move(prompts)), answers_(prompts_.size()), done_(prompts_.size(), false) {
  for (std::string& prompt : prompts_) prompt = on_one_line(prompt);
}

LiveView::~LiveView() {
  if (!drawn_) return;
  fmt::print("\x1b[{}A\x1b[J", prompts_.size());
  std::fflush(stdout);
}

void LiveView::draw(bool now) {
  const double time =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (!now && drawn_ && time - last_ < 1.0 / 30.0) return;
  last_ = time;
  const size_t columns = terminal_columns() - 1;
  const size_t prompt_columns = columns / 3;
  std::string frame = drawn_ ? fmt::format("\x1b[{}A", prompts_.size()) : "";
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const std::string prompt = keep_end(prompts_[i], prompt_columns);
    const size_t left = columns - 6 - prompt_columns;
    frame += fmt::format("\x1b[2K{} {} \x1b[2m{}\x1b[0m {}\n", i + 1, done_[i] ? '*' : ' ', prompt,
                         keep_end(on_one_line(answers_[i]), left));
  }
  drawn_ = true;
  write_out(frame);
}

}  // namespace ladder
