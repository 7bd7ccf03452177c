#pragma once
// Task 6.5: metrics as Prometheus reads them, its text format 0.0.4:
//
//   # HELP ladder:time_to_first_token_seconds Time to first token in seconds.
//   # TYPE ladder:time_to_first_token_seconds histogram
//   ladder:time_to_first_token_seconds_bucket{model_name="tiny",engine="0",le="0.001"} 0
//   ladder:time_to_first_token_seconds_bucket{model_name="tiny",engine="0",le="0.005"} 3
//   ...
//   ladder:time_to_first_token_seconds_bucket{model_name="tiny",engine="0",le="+Inf"} 4
//   ladder:time_to_first_token_seconds_sum{model_name="tiny",engine="0"} 0.5
//   ladder:time_to_first_token_seconds_count{model_name="tiny",engine="0"} 4
//
// https://prometheus.io/docs/instrumenting/exposition_formats/
#include <initializer_list>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "step6_engine/metrics/histogram.h"

namespace ladder {

struct MetricLabel {
  std::string_view name, value;
};

// A number of the format. As Python's client, which vLLM uses, writes it: the shortest text that gives it back, with
// ".0" where nothing else tells that it is a float; "NaN", "+Inf", "-Inf".
std::string metric_number(double value);

// The text of a list of families, one after the other.
class MetricsText {
 public:
  // Every name gets `prefix` before it, every sample the labels `common`.
  MetricsText(std::string_view prefix, std::initializer_list<MetricLabel> common);
  // Those of the samples that follow: one family may have samples of several engines.
  void set_common(std::initializer_list<MetricLabel> common) {
    common_.clear();
    append_label_list(common_, common);
  }

  // The lines HELP and TYPE of a family; its samples follow. `type`: counter, gauge, histogram. `name` is without the
  // prefix. In `help` backslashes and ends of lines are escaped.
  void family(std::string_view name, std::string_view type, std::string_view help);
  // A sample of the last family: the name, `suffix`, the common labels and `labels` in this order, in whose values
  // backslashes, quotes and ends of lines are escaped, and the value. No braces where there is no label.
  void sample(double value, std::initializer_list<MetricLabel> labels = {}, std::string_view suffix = {});
  // The samples of a family of type histogram: for each bound up to `max_bound` the number of values that are not above
  // it, for the bound +Inf that of all (those between max_bound and the last bound too), then the sum and the number. A
  // bound of a million or more is written with an exponent, 1e+06.
  void histogram_samples(const HistogramView& histogram,
                         double max_bound = std::numeric_limits<double>::infinity());
  void histogram(std::string_view name, std::string_view help, const HistogramView& histogram,
                 double max_bound = std::numeric_limits<double>::infinity()) {
    family(name, "histogram", help);
    histogram_samples(histogram, max_bound);
  }

  void counter(std::string_view name, std::string_view help, double value) {
    family(name, "counter", help);
    sample(value);
  }
  void gauge(std::string_view name, std::string_view help, double value) {
    family(name, "gauge", help);
    sample(value);
  }

  std::string take() { return std::move(text_); }

 private:
  void append_labels(std::initializer_list<MetricLabel> labels);
  static void append_label_list(std::string& out, std::initializer_list<MetricLabel> labels);

  std::string prefix_;
  std::string common_;  // as it stands in a sample: a="b",c="d"
  std::string name_;    // of the last family, with the prefix
  std::string text_;
};

}  // namespace ladder
