#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "step8_advanced/quantization/quantizer/sweep.h"

namespace ladder {
namespace {

constexpr double kWidth = 760, kHeight = 460, kLeft = 74, kRight = 730, kTop = 56, kBottom = 404;
constexpr std::array kColours = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17a2b8"};
constexpr double kLowest = 1e-9;  // a divergence of 0 has no place on a logarithm's axis

std::string text_at(double x, double y, const char* anchor, const char* colour, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", x, y,
                     anchor, colour, words);
}

std::string line_from(double x1, double y1, double x2, double y2, const char* colour) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1,
                     y1, x2, y2, colour);
}

double height_of(const SweepRow& row) {
  return std::log10(std::max(1000 * row.kl.mean, kLowest));
}

// Where bits and decades are on the page.
struct Axes {
  double least_bits, most_bits, least_decade, most_decade;

  explicit Axes(std::span<const SweepRow> rows) {
    const auto by_bits = [](const SweepRow& a, const SweepRow& b) {
      return a.bits_per_weight < b.bits_per_weight;
    };
    const auto by_height = [](const SweepRow& a, const SweepRow& b) { return height_of(a) < height_of(b); };
    const auto [narrow, wide] = std::minmax_element(rows.begin(), rows.end(), by_bits);
    const auto [low, high] = std::minmax_element(rows.begin(), rows.end(), by_height);
    least_bits = std::floor(narrow->bits_per_weight) - 0.5;  // room for a name
    most_bits = std::floor(wide->bits_per_weight) + 1;
    least_decade = std::floor(height_of(*low));
    most_decade = std::max(std::ceil(height_of(*high)), least_decade + 1);
  }
  double x(double bits) const {
    return kLeft + (bits - least_bits) / (most_bits - least_bits) * (kRight - kLeft);
  }
  double y(double decade) const {
    return kBottom - (decade - least_decade) / (most_decade - least_decade) * (kBottom - kTop);
  }
};

}  // namespace

std::string sweep_picture(std::span<const SweepRow> rows) {
  const Axes axes(rows);
  std::string body;
  for (double decade = axes.least_decade; decade <= axes.most_decade; ++decade) {
    body += line_from(kLeft, axes.y(decade), kRight, axes.y(decade), "#e4e4e4");
    body +=
        text_at(kLeft - 8, axes.y(decade) + 4, "end", "#777777", fmt::format("{:g}", std::pow(10, decade)));
  }
  for (double bits = std::ceil(axes.least_bits); bits <= axes.most_bits; ++bits) {
    body += line_from(axes.x(bits), kTop, axes.x(bits), kBottom, "#e4e4e4");
    body += text_at(axes.x(bits), kBottom + 18, "middle", "#777777", fmt::format("{:g}", bits));
  }
  body += text_at(kLeft, 22, "start", "#222222", "KL divergence x 1000");
  body += text_at(kRight, kBottom + 40, "end", "#222222",
                  "bits of a weight, scales included; numbers are groups, and a row has one scale");

  std::vector<std::string> methods;
  for (const SweepRow& row : rows)
    if (std::find(methods.begin(), methods.end(), row.method) == methods.end()) methods.push_back(row.method);
  for (size_t method = 0; method < methods.size(); ++method) {
    const char* colour = kColours[method % kColours.size()];
    body += text_at(kLeft + 100 * static_cast<double>(method), 42, "start", colour, methods[method]);
    std::vector<SweepRow> of_method;
    for (const SweepRow& row : rows)
      if (row.method == methods[method]) of_method.push_back(row);
    std::stable_sort(of_method.begin(), of_method.end(), [](const SweepRow& a, const SweepRow& b) {
      return std::pair(a.bits, a.bits_per_weight) < std::pair(b.bits, b.bits_per_weight);
    });
    for (size_t i = 0; i < of_method.size(); ++i) {
      const SweepRow& row = of_method[i];
      const double x = axes.x(row.bits_per_weight), y = axes.y(height_of(row));
      if (i > 0 && of_method[i - 1].bits == row.bits)
        body += line_from(axes.x(of_method[i - 1].bits_per_weight), axes.y(height_of(of_method[i - 1])), x, y,
                          colour);
      body += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", x, y, colour);
      // On either side, since a row's dot lies close to that of large groups.
      body += row.group_size > 0 ? text_at(x + 6, y - 5, "start", colour, std::to_string(row.group_size))
                                 : text_at(x - 6, y - 5, "end", colour, "row");
    }
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" "
      "fill=\"white\"/>\n{2}</svg>\n",
      kWidth, kHeight, body);
}

}  // namespace ladder
