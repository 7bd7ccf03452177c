#include "step8_advanced/disaggregation/router/load_report.h"

#include <algorithm>
#include <charconv>

namespace ladder {

namespace {

// Of a sample "PREFIX:NAME{LABELS} VALUE": what stands between the prefix and the labels.
std::string_view metric_name(std::string_view line) {
  std::string_view name = line.substr(0, line.find_first_of("{ "));
  name.remove_prefix(std::min(name.find(':') + 1, name.size()));
  return name;
}

double metric_value(std::string_view line) {
  const std::string_view text = line.substr(line.rfind(' ') + 1);
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && value >= 0 && value < 1e15 ? value : 0;
}

}  // namespace

LoadReport read_load_report(std::string_view metrics) {
  LoadReport report;
  while (!metrics.empty()) {
    const size_t end = std::min(metrics.find('\n'), metrics.size());
    const std::string_view line = metrics.substr(0, end);
    metrics.remove_prefix(std::min(end + 1, metrics.size()));
    if (line.starts_with('#') || line.find(' ') == line.npos) continue;
    const std::string_view name = metric_name(line);
    if (name == "num_requests_running") {
      ++report.num_engines;
      report.num_running += static_cast<int64_t>(metric_value(line));
    }
    if (name == "num_requests_waiting") report.num_waiting += static_cast<int64_t>(metric_value(line));
    if (name == "kv_cache_usage_perc") report.kv_usage = std::max(report.kv_usage, metric_value(line));
  }
  return report;
}

}  // namespace ladder
