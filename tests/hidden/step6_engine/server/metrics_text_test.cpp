// Task 6.5: what Prometheus reads from random families is what was written.
#include "step6_engine/server/metrics/metrics_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::Random;

struct Sample {
  std::string name;
  std::vector<std::pair<std::string, std::string>> labels;
  std::string value;
};

// One line of samples, as the format's page has it; failure: it is none.
Sample parse_sample(const std::string& line) {
  Sample sample;
  size_t at = line.find_first_of("{ ");
  if (at == line.npos) {
    ADD_FAILURE() << "no sample: " << line;
    return sample;
  }
  sample.name = line.substr(0, at);
  if (line[at] == '{') {
    EXPECT_NE(line[at + 1], '}') << "empty braces: " << line;
    while (at < line.size() && line[at] != '}') {
      const size_t equals = line.find("=\"", ++at);
      if (equals == line.npos) break;
      auto& [name, value] = sample.labels.emplace_back(line.substr(at, equals - at), "");
      for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
        const bool escaped = line[at] == '\\' && at + 1 < line.size();
        at += escaped;
        value += escaped && line[at] == 'n' ? '\n' : line[at];
      }
      ++at;
      EXPECT_TRUE(at < line.size() && (line[at] == ',' || line[at] == '}')) << line;
    }
    ++at;
  }
  EXPECT_TRUE(at < line.size() && line[at] == ' ') << line;
  sample.value = at < line.size() ? line.substr(at + 1) : "";
  return sample;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    EXPECT_NE(end, std::string::npos) << "a line without its end";
    if (end == std::string::npos) break;
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string random_text(Random& random, int64_t max_size) {
  static const std::vector<std::string> parts = {"\\", "\"", "\n", "\\n", "a", " ",
                                                 "{",  "}",  ",",  "=",   "ä", "#"};
  std::string text;
  for (int64_t i = random.integer(0, max_size); i > 0; --i) text += random.one_of(parts);
  return text;
}

TEST(Hidden6_5_Numbers, AreTheShortestThatGiveThemselvesBack) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 5000; ++round) {
    double value = std::bit_cast<double>(random.engine()());
    if (round % 3 == 0) value = random.uniform(-1000, 1000);
    if (round % 3 == 1) value = static_cast<double>(random.integer(-1'000'000'000'000, 1'000'000'000'000));
    if (!std::isfinite(value)) continue;
    const std::string text = metric_number(value);
    EXPECT_EQ(std::strtod(text.c_str(), nullptr), value) << text;
    EXPECT_NE(text.find_first_of(".e"), text.npos) << text << " looks like an integer";
    EXPECT_LE(text.size(), 25u) << text;
    const bool whole = text.ends_with(".0");
    char shortest[40];
    for (int digits = 1; digits <= 17; ++digits) {
      std::snprintf(shortest, sizeof shortest, "%.*e", digits - 1, value);
      if (std::strtod(shortest, nullptr) == value) break;
    }
    const auto num_digits = [](std::string number) {
      number = number.substr(0, number.find('e'));
      std::erase_if(number, [](char c) { return c < '0' || c > '9'; });
      number.erase(0, number.find_first_not_of('0'));
      while (!number.empty() && number.back() == '0') number.pop_back();
      return number.size();
    };
    EXPECT_EQ(num_digits(whole ? text.substr(0, text.size() - 2) : text), num_digits(shortest)) << text;
  }
}

TEST(Hidden6_5_Labels, AnyValueComesBackAndEveryNameHasItsPrefix) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 300; ++round) {
    const std::string prefix = random.one_of<std::string>({"", "p:", "vllm:"});
    const std::array<std::string, 4> values = {random_text(random, 6), random_text(random, 6),
                                               random_text(random, 6), random_text(random, 6)};
    const bool common = random.integer(0, 1) == 0;
    MetricsText text = common ? MetricsText(prefix, {{"model_name", values[0]}, {"engine", values[1]}})
                              : MetricsText(prefix, {});
    const double number = random.uniform(-5, 5);
    const std::string help = random_text(random, 9);
    text.family("a_total", "counter", help);
    text.sample(number, {{"x", values[2]}, {"y", values[3]}}, "_more");
    text.sample(number);
    text.gauge("b", "B", 1);
    const std::vector<std::string> lines = lines_of(text.take());
    ASSERT_EQ(lines.size(), 7u) << "a text went over its line";
    std::string escaped;
    for (const char c : help) escaped += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
    EXPECT_EQ(lines[0], "# HELP " + prefix + "a_total " + escaped);
    EXPECT_EQ(lines[1], "# TYPE " + prefix + "a_total counter");
    EXPECT_EQ(lines[5], "# TYPE " + prefix + "b gauge");
    std::vector<std::pair<std::string, std::string>> expected;
    if (common) expected = {{"model_name", values[0]}, {"engine", values[1]}};
    EXPECT_EQ(parse_sample(lines[3]).labels, expected);
    EXPECT_EQ(parse_sample(lines[3]).name, prefix + "a_total");
    EXPECT_EQ(parse_sample(lines[6]).labels, expected);
    EXPECT_EQ(parse_sample(lines[6]).name, prefix + "b");
    expected.insert(expected.end(), {{"x", values[2]}, {"y", values[3]}});
    const Sample more = parse_sample(lines[2]);
    EXPECT_EQ(more.labels, expected) << lines[2];
    EXPECT_EQ(more.name, prefix + "a_total_more");
    EXPECT_EQ(std::strtod(more.value.c_str(), nullptr), number);
  }
}

constexpr std::array kAnyBounds = {1.0};

TEST(Hidden6_5_Histogram, EveryBucketHoldsWhatIsNotAboveItsBound) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200; ++round) {
    std::set<double> chosen;
    while (std::ssize(chosen) < random.integer(2, 30))
      chosen.insert(random.integer(0, 3) == 0 ? static_cast<double>(random.integer(900'000, 90'000'000))
                                              : random.uniform(0.0, 100.0));
    const std::vector<double> bounds(chosen.begin(), chosen.end());
    std::vector<int64_t> counts(bounds.size() + 1, 0);
    std::vector<double> values;
    double sum = 0.0;
    for (int64_t i = random.integer(0, 200); i > 0; --i) {
      // Often exactly at a bound, and at times above all of them.
      const double value = random.integer(0, 2) == 0   ? random.one_of(bounds)
                           : random.integer(0, 3) == 0 ? bounds.back() * 2
                                                       : random.uniform(0.0, bounds.back());
      ++counts[static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())];
      values.push_back(value);
      sum += value;
    }
    HistogramView view{Histogram<kAnyBounds>()};
    view.bounds = bounds;
    view.counts = counts;
    view.sum = sum;
    const bool all = random.integer(0, 1) == 0;
    const double max_bound = random.integer(0, 1) == 0 ? random.one_of(bounds) : random.uniform(0.0, 120.0);
    const bool labels = random.integer(0, 1) == 0;
    MetricsText text = labels ? MetricsText("p:", {{"engine", "0"}}) : MetricsText("p:", {});
    if (all)
      text.histogram("h", "H.", view);
    else
      text.histogram("h", "H.", view, max_bound);
    const std::vector<std::string> lines = lines_of(text.take());
    std::vector<double> shown;
    for (const double bound : bounds)
      if (all || bound <= max_bound) shown.push_back(bound);
    shown.push_back(std::numeric_limits<double>::infinity());
    ASSERT_EQ(lines.size(), 2 + shown.size() + 2);
    EXPECT_EQ(lines[1], "# TYPE p:h histogram");
    for (size_t i = 0; i < shown.size(); ++i) {
      const Sample sample = parse_sample(lines[2 + i]);
      EXPECT_EQ(sample.name, "p:h_bucket");
      ASSERT_EQ(sample.labels.size(), labels ? 2u : 1u) << lines[2 + i];
      const auto& [name, bound] = sample.labels.back();
      EXPECT_EQ(name, "le");
      if (i + 1 == shown.size())
        EXPECT_EQ(bound, "+Inf");
      else if (shown[i] < 1e6)
        EXPECT_EQ(std::strtod(bound.c_str(), nullptr), shown[i]) << bound;
      else
        EXPECT_NE(bound.find("e+0"), bound.npos) << "a million or more: " << bound;
      const auto expected =
          std::count_if(values.begin(), values.end(), [&](double value) { return value <= shown[i]; });
      EXPECT_EQ(std::strtod(sample.value.c_str(), nullptr), static_cast<double>(expected))
          << "values not above " << bound;
    }
    const Sample total = parse_sample(lines[lines.size() - 2]), count = parse_sample(lines.back());
    EXPECT_EQ(total.name, "p:h_sum");
    EXPECT_EQ(std::strtod(total.value.c_str(), nullptr), sum);
    EXPECT_EQ(count.name, "p:h_count");
    EXPECT_EQ(std::strtod(count.value.c_str(), nullptr), static_cast<double>(values.size()));
    EXPECT_EQ(total.labels.size(), labels ? 1u : 0u);
  }
}

}  // namespace
}  // namespace ladder
