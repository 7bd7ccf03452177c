#include "step6_engine/server/metrics/metrics_text.h"

#include <fmt/format.h>

#include <cmath>

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 6.5: families, samples and histograms as Prometheus reads them
std::string metric_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

static std::string bound_text(double bound) {
  return bound >= 1e6 && std::isfinite(bound) ? fmt::format("{:g}", bound) : metric_number(bound);
}

static void append_escaped(std::string& out, std::string_view text, bool quoted) {
  for (const char c : text) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\\' || (quoted && c == '"'))
      (out += '\\') += c;
    else
      out += c;
  }
}

void MetricsText::append_label_list(std::string& out, std::initializer_list<MetricLabel> labels) {
  for (const MetricLabel& label : labels) {
    if (!out.empty() && out.back() != '{') out += ',';
    out += label.name;
    out += "=\"";
    append_escaped(out, label.value, true);
    out += '"';
  }
}

MetricsText::MetricsText(std::string_view prefix, std::initializer_list<MetricLabel> common)
    : prefix_(prefix) {
  append_label_list(common_, common);
}

void MetricsText::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = prefix_;
  name_ += name;
  text_ += "# HELP " + name_ + " ";
  append_escaped(text_, help, false);
  fmt::format_to(std::back_inserter(text_), "\n# TYPE {} {}\n", name_, type);
}

void MetricsText::sample(double value, std::initializer_list<MetricLabel> labels, std::string_view suffix) {
  text_ += name_;
  text_ += suffix;
  if (!common_.empty() || labels.size() > 0) append_labels(labels);
  text_ += ' ';
  text_ += metric_number(value);
  text_ += '\n';
}

void MetricsText::append_labels(std::initializer_list<MetricLabel> labels) {
  text_ += '{';
  text_ += common_;
  append_label_list(text_, labels);
  text_ += '}';
}

void MetricsText::histogram_samples(const HistogramView& histogram, double max_bound) {
  int64_t up_to = 0;
  for (size_t i = 0; i < histogram.bounds.size(); ++i) {
    up_to += histogram.counts[i];
    if (histogram.bounds[i] <= max_bound)
      sample(static_cast<double>(up_to), {{"le", bound_text(histogram.bounds[i])}}, "_bucket");
  }
  up_to += histogram.counts.back();
  sample(static_cast<double>(up_to), {{"le", "+Inf"}}, "_bucket");
  sample(histogram.sum, {}, "_sum");
  sample(static_cast<double>(up_to), {}, "_count");
}
// <<< task 6.5

}  // namespace ladder
