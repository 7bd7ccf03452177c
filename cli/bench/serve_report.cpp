#include "cli/bench/serve_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cli/bench/report.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step6_engine/metrics/metrics.h"

namespace ladder {

namespace {

// The most requests that were under way at one time.
int64_t peak_of(const std::vector<ServeRecord>& records) {
  std::vector<std::pair<double, int>> changes;  // at equal times, those that end first
  for (const ServeRecord& record : records) {
    changes.push_back({record.sent, 1});
    changes.push_back({record.end, -1});
  }
  std::sort(changes.begin(), changes.end());
  int64_t now = 0, peak = 0;
  for (const auto& [time, change] : changes) peak = std::max(peak, now += change);
  return peak;
}

bool within(const std::optional<double>& bound_ms, double seconds) {
  return !bound_ms || 1e3 * seconds <= *bound_ms;
}

Json spread_json(const Spread& spread) {
  return {{"mean", spread.mean}, {"median", spread.median}, {"p99", spread.p99}, {"max", spread.max}};
}

}  // namespace

Spread spread_of(const std::vector<double>& values) {
  return {mean(values), percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)};
}

ServeObjective parse_goodput(const std::vector<std::string>& bounds) {
  ServeObjective objective;
  for (const std::string& bound : bounds) {
    const size_t colon = std::min(bound.find(':'), bound.size());
    const std::string name = bound.substr(0, colon);
    double milliseconds = 0.0;
    const char *begin = bound.data() + std::min(colon + 1, bound.size()), *end = bound.data() + bound.size();
    const auto [rest, error] = std::from_chars(begin, end, milliseconds);
    std::optional<double>* const field = name == "ttft"   ? &objective.ttft
                                         : name == "tpot" ? &objective.tpot
                                         : name == "e2el" ? &objective.e2el
                                                          : nullptr;
    LADDER_CHECK(field != nullptr && error == std::errc() && rest == end && milliseconds > 0.0,
                 "--goodput {}: expected ttft:MS, tpot:MS or e2el:MS", bound);
    *field = milliseconds;
  }
  return objective;
}

double time_to_first_token(const ServeRecord& record) {
  return record.first - record.sent;
}

std::optional<double> time_per_output_token(const ServeRecord& record) {
  if (record.num_output_tokens < 2) return {};
  return (record.last - record.first) / static_cast<double>(record.num_output_tokens - 1);
}

double end_to_end_latency(const ServeRecord& record) {
  return record.last - record.sent;
}

ServeSummary summarise(const LoadResult& result, const ServeObjective& objective) {
  ServeSummary summary;
  summary.seconds = result.seconds;
  summary.peak_in_flight = peak_of(result.records);
  if (objective.any()) summary.good = 0;
  std::vector<double> ttft, tpot, itl, e2el, late;
  for (const ServeRecord& record : result.records) {
    late.push_back(record.late());
    if (!record.error.empty()) {
      ++summary.failed;
      ++summary.errors[record.error];
      continue;
    }
    ++summary.completed;
    summary.num_prompt_tokens += record.num_prompt_tokens;
    summary.num_output_tokens += record.num_output_tokens;
    summary.num_cached_tokens += std::max<int64_t>(record.num_cached_tokens, 0);
    if (record.first == 0.0) continue;  // it generated nothing
    summary.num_chunks += static_cast<int64_t>(record.gaps.size()) + 1;
    ttft.push_back(time_to_first_token(record));
    e2el.push_back(end_to_end_latency(record));
    const std::optional<double> each = time_per_output_token(record);
    if (each) tpot.push_back(*each);
    itl.insert(itl.end(), record.gaps.begin(), record.gaps.end());
    if (summary.good && within(objective.ttft, ttft.back()) && within(objective.tpot, each.value_or(0.0)) &&
        within(objective.e2el, e2el.back()))
      ++*summary.good;
  }
  summary.ttft = spread_of(ttft);
  summary.tpot = spread_of(tpot);
  summary.itl = spread_of(itl);
  summary.e2el = spread_of(e2el);
  summary.late = spread_of(late);
  for (const double seconds : result.cpu_seconds) {
    summary.cpu_seconds += seconds;
    if (result.seconds > 0.0)
      summary.busiest_thread = std::max(summary.busiest_thread, seconds / result.seconds);
  }
  return summary;
}

std::string format_summary(const ServeSummary& s) {
  std::vector<std::pair<std::string, std::string>> lines = {
      {"successful requests", format_count(s.completed)},
      {"failed requests", format_count(s.failed)},
  };
  for (const auto& [kind, count] : s.errors) lines.push_back({"  " + kind, format_count(count)});
  const std::vector<std::pair<std::string, std::string>> rest = {
      {"duration", format_seconds(s.seconds)},
      {"prompt tokens",
       fmt::format("{} ({} cached)", format_count(s.num_prompt_tokens), format_count(s.num_cached_tokens))},
      {"output tokens",
       fmt::format("{} in {} chunks", format_count(s.num_output_tokens), format_count(s.num_chunks))},
      {"request throughput", fmt::format("{:.2f} requests/s", s.per_second(s.completed))},
      {"output token throughput", fmt::format("{:.1f} tokens/s", s.per_second(s.num_output_tokens))},
      {"total token throughput",
       fmt::format("{:.1f} tokens/s", s.per_second(s.num_prompt_tokens + s.num_output_tokens))},
      {"most requests at a time", format_count(s.peak_in_flight)},
  };
  lines.insert(lines.end(), rest.begin(), rest.end());
  if (s.good)
    lines.push_back({"goodput", fmt::format("{:.2f} requests/s ({} of {})", s.per_second(*s.good),
                                            format_count(*s.good), format_count(s.completed + s.failed))});
  std::vector<std::vector<std::string>> table{{"", "mean", "median", "99 %", "max"}};
  const auto row = [&](const char* name, const Spread& spread) {
    table.push_back({name, format_seconds(spread.mean), format_seconds(spread.median),
                     format_seconds(spread.p99), format_seconds(spread.max)});
  };
  row("time to first token (TTFT)", s.ttft);
  row("time per output token (TPOT)", s.tpot);
  row("inter-token latency (ITL)", s.itl);
  row("end-to-end latency (E2E)", s.e2el);
  row("the client sent late by", s.late);
  return format_pairs(lines) + "\n" + format_table(table) +
         fmt::format("\nThe client's busiest thread computed {:.1f} % of the time.\n",
                     100.0 * s.busiest_thread);
}

Json summary_json(const ServeSummary& s) {
  return {{"seconds", s.seconds},
          {"completed", s.completed},
          {"failed", s.failed},
          {"errors", s.errors},
          {"prompt_tokens", s.num_prompt_tokens},
          {"cached_tokens", s.num_cached_tokens},
          {"output_tokens", s.num_output_tokens},
          {"chunks", s.num_chunks},
          {"peak_in_flight", s.peak_in_flight},
          {"requests_per_second", s.per_second(s.completed)},
          {"output_tokens_per_second", s.per_second(s.num_output_tokens)},
          {"total_tokens_per_second", s.per_second(s.num_prompt_tokens + s.num_output_tokens)},
          {"good_requests_per_second", s.good ? Json(s.per_second(*s.good)) : Json()},
          {"ttft", spread_json(s.ttft)},
          {"tpot", spread_json(s.tpot)},
          {"itl", spread_json(s.itl)},
          {"e2el", spread_json(s.e2el)},
          {"client",
           {{"late", spread_json(s.late)},
            {"busiest_thread", s.busiest_thread},
            {"cpu_seconds", s.cpu_seconds}}}};
}

Json requests_json(const LoadResult& result, bool gaps) {
  Json list = Json::array();
  for (const ServeRecord& record : result.records) {
    Json one = {{"scheduled", record.scheduled},
                {"sent", record.sent},
                {"late", record.late()},
                {"end", record.end},
                {"status", record.status},
                {"prompt_tokens", record.num_prompt_tokens},
                {"output_tokens", record.num_output_tokens},
                {"cached_tokens", record.num_cached_tokens},
                {"finish_reason", record.finish_reason}};
    if (!record.error.empty()) {
      one["error"] = record.error;
      one["detail"] = record.detail;
    }
    if (record.first > 0.0) {
      one["ttft"] = time_to_first_token(record);
      one["e2el"] = end_to_end_latency(record);
      if (const auto each = time_per_output_token(record)) one["tpot"] = *each;
    }
    if (gaps) one["itl"] = record.gaps;
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace ladder
