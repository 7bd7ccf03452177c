// Task 6.5: one family after the other, as text.
#include "step6_engine/server/metrics/metrics_text.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace ladder {
namespace {

constexpr std::array kBounds = {0.5, 1.0, 2e6};

TEST(Task6_5_MetricsText, NumbersAreShortAndExact) {
  EXPECT_EQ(metric_number(0), "0.0");
  EXPECT_EQ(metric_number(12), "12.0");
  EXPECT_EQ(metric_number(0.1), "0.1");
  EXPECT_EQ(metric_number(1.0 / 3.0), "0.3333333333333333");
  EXPECT_EQ(metric_number(9007199254740993.0), "9007199254740992.0");
  EXPECT_EQ(metric_number(1e22), "1e+22");
  EXPECT_EQ(metric_number(-2.5), "-2.5");
  EXPECT_EQ(metric_number(std::numeric_limits<double>::infinity()), "+Inf");
  EXPECT_EQ(metric_number(-std::numeric_limits<double>::infinity()), "-Inf");
  EXPECT_EQ(metric_number(std::numeric_limits<double>::quiet_NaN()), "NaN");
}

TEST(Task6_5_MetricsText, AFamilyIsSaidOnceAndItsSamplesFollow) {
  MetricsText text("p:", {{"model_name", "m"}});
  text.family("ended_total", "counter", "Ended.");
  text.sample(1, {{"reason", "stop"}});
  text.sample(2, {{"reason", "length"}});
  text.gauge("running", "Now.", 3);
  EXPECT_EQ(text.take(),
            "# HELP p:ended_total Ended.\n"
            "# TYPE p:ended_total counter\n"
            "p:ended_total{model_name=\"m\",reason=\"stop\"} 1.0\n"
            "p:ended_total{model_name=\"m\",reason=\"length\"} 2.0\n"
            "# HELP p:running Now.\n"
            "# TYPE p:running gauge\n"
            "p:running{model_name=\"m\"} 3.0\n");
}

TEST(Task6_5_MetricsText, WithoutLabelsThereAreNoBraces) {
  MetricsText text("", {});
  text.counter("a_total", "A.", 0.25);
  EXPECT_EQ(text.take(), "# HELP a_total A.\n# TYPE a_total counter\na_total 0.25\n");
  MetricsText other("", {});
  other.family("a", "gauge", "A.");
  other.sample(1, {{"b", "c"}, {"d", ""}});
  EXPECT_EQ(other.take(), "# HELP a A.\n# TYPE a gauge\na{b=\"c\",d=\"\"} 1.0\n");
}

TEST(Task6_5_MetricsText, NoValueOfALabelEndsItsLineOrItsQuotes) {
  MetricsText text("", {{"model_name", "C:\\a \"b\"\nc"}});
  text.gauge("a", "back\\slash \"quote\"\nline", 1);
  EXPECT_EQ(text.take(),
            "# HELP a back\\\\slash \"quote\"\\nline\n"
            "# TYPE a gauge\n"
            "a{model_name=\"C:\\\\a \\\"b\\\"\\nc\"} 1.0\n");
}

TEST(Task6_5_MetricsText, BucketsOfAHistogramAddUp) {
  Histogram<kBounds> histogram;
  for (const double value : {0.5, 0.25, 0.75, 3.0, 3e6}) histogram.observe(value);
  MetricsText text("", {{"engine", "0"}});
  text.histogram("h", "H.", histogram);
  EXPECT_EQ(text.take(),
            "# HELP h H.\n"
            "# TYPE h histogram\n"
            "h_bucket{engine=\"0\",le=\"0.5\"} 2.0\n"
            "h_bucket{engine=\"0\",le=\"1.0\"} 3.0\n"
            "h_bucket{engine=\"0\",le=\"2e+06\"} 4.0\n"
            "h_bucket{engine=\"0\",le=\"+Inf\"} 5.0\n"
            "h_sum{engine=\"0\"} 3000004.5\n"
            "h_count{engine=\"0\"} 5.0\n");
}

TEST(Task6_5_MetricsText, WhatLiesAboveTheLastBoundShownIsCountedUnderInf) {
  Histogram<kBounds> histogram;
  for (const double value : {0.25, 3.0, 3e6}) histogram.observe(value);
  MetricsText text("", {});
  text.histogram("h", "H.", histogram, 1.0);
  EXPECT_EQ(text.take(),
            "# HELP h H.\n"
            "# TYPE h histogram\n"
            "h_bucket{le=\"0.5\"} 1.0\n"
            "h_bucket{le=\"1.0\"} 1.0\n"
            "h_bucket{le=\"+Inf\"} 3.0\n"
            "h_sum 3000003.25\n"
            "h_count 3.0\n");
}

}  // namespace
}  // namespace ladder
