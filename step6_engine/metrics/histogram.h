#pragma once
// How often values fell between fixed bounds: what a monitoring system reads percentiles from.
//
//   bounds       0.01      0.025      0.05
//   counts    2   |    5     |    0    |   1          values in (lower bound, upper bound]; the last has no end
//
// Percentiles of two histograms cannot be averaged, their counts can be added: over engines, and over any span of time
// as a difference. A histogram is plain data of a fixed size, so that it may be copied and sent as it is, and
// observing allocates nothing.
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

namespace ladder {

// `kBounds`: a constant array of ascending doubles.
template <const auto& kBounds>
struct Histogram {
  std::array<int64_t, std::size(kBounds) + 1> counts{};
  double sum = 0.0;  // of all values

  // The value was seen `times` times. A NaN lies above all bounds.
  void observe(double value, int64_t times = 1) {
    // Most values are latencies near the lower end, and those of one step go the same way: faster than bisection.
    size_t at = 0;
    while (at < std::size(kBounds) && !(value <= kBounds[at])) ++at;
    counts[at] += times;
    sum += value * static_cast<double>(times);
  }
  Histogram& operator+=(const Histogram& other) {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
    sum += other.sum;
    return *this;
  }
};

template <class T>
inline constexpr bool kIsHistogram = false;
template <const auto& kBounds>
inline constexpr bool kIsHistogram<Histogram<kBounds>> = true;
template <class T>
concept IsHistogram = kIsHistogram<T>;

// Any histogram, to be read.
struct HistogramView {
  template <const auto& kBounds>
  HistogramView(const Histogram<kBounds>& histogram)  // NOLINT: meant to convert
      : bounds(kBounds), counts(histogram.counts), sum(histogram.sum) {}

  std::span<const double> bounds;
  std::span<const int64_t> counts;  // one more than bounds
  double sum = 0.0;
};

}  // namespace ladder
