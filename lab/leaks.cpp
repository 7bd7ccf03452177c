#include "lab/leaks.h"

#include <algorithm>
#include <bitset>
#include <nlohmann/json.hpp>

namespace lab {
namespace {

constexpr size_t kShortest = 20, kStart = 12, kRun = 6;

// Without indentation; blank ones are left out.
std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
    if (!line.empty()) lines.emplace_back(line);
    at = end + 1;
  }
  return lines;
}

std::string run_of(const std::string* lines) {
  std::string run;
  for (size_t i = 0; i < kRun; ++i) run += lines[i] + "\n";
  return run;
}

size_t two_bytes(std::string_view text) {
  return static_cast<unsigned char>(text[0]) << 8 | static_cast<unsigned char>(text[1]);
}

}  // namespace

void RemovedLines::add(std::string_view text, std::string_view stub) {
  const std::vector<std::string> kept = lines_of(stub), all = lines_of(text);
  const std::set<std::string> left(kept.begin(), kept.end());
  for (const std::string& line : all) {
    if (line.size() < kShortest || left.contains(line)) continue;
    const std::string in_json = nlohmann::json(line).dump();  // in quotes
    by_start_[line.substr(0, kStart)].insert(line);
    by_start_[in_json.substr(1, kStart)].insert(in_json.substr(1, in_json.size() - 2));
  }
  for (size_t i = 0; i + kRun <= all.size(); ++i) {
    const auto is_left = [&](const std::string& line) { return left.contains(line); };
    const std::string run = run_of(&all[i]);
    if (run.size() >= 2 * kShortest && !std::all_of(&all[i], &all[i] + kRun, is_left)) runs_.insert(run);
  }
}

std::string RemovedLines::give(std::string_view code) {
  const std::vector<std::string> lines = lines_of(code);
  for (size_t i = 0; i + kRun <= lines.size(); ++i)
    if (runs_.contains(run_of(&lines[i]))) return lines[i];
  for (const std::string& line : all_in(code, false)) by_start_[line.substr(0, kStart)].erase(line);
  return "";
}

std::string RemovedLines::find_in(std::string_view text) const {
  const std::vector<std::string> found = all_in(text, true);
  return found.empty() ? "" : found[0];
}

std::vector<std::string> RemovedLines::all_in(std::string_view text, bool only_first) const {
  std::bitset<65536> begins;  // most places are passed over by their first two bytes
  for (const auto& [start, lines] : by_start_) begins.set(two_bytes(start));
  std::vector<std::string> found;
  for (size_t at = 0; at + kShortest <= text.size(); ++at) {
    if (!begins[two_bytes(text.substr(at, 2))]) continue;
    const auto lines = by_start_.find(std::string(text.substr(at, kStart)));
    if (lines == by_start_.end()) continue;
    for (const std::string& line : lines->second)
      if (text.substr(at, line.size()) == line) {
        found.push_back(line);
        if (only_first) return found;
      }
  }
  return found;
}

}  // namespace lab
