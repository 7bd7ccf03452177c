#pragma once
// The published tables of performance points (lab/README.md, "Performance points"): what share of the full points a
// measurement brings.
#include <cstdint>
#include <string>
#include <vector>

namespace lab {

// What is counted in a problem and brings points. Full points within `within` times the reference's count and `slack`
// more; beyond that in proportion.
struct Counted {
  std::string problem, count;
  bool more_is_better = false;
  double within = 1.05;
  int64_t slack = 2;
};

const std::vector<Counted>& counted();
std::vector<Counted> counted_in(const std::string& problem);  // empty: there is no such problem

// 0 to 1.
double counted_share(const Counted& of, int64_t count, int64_t reference);

// Of a race: full points up to 1.2 times the reference's time, beyond that 1.2 / ratio; and at least 0.9, 0.7 or 0.4 from
// three quarters, half or a quarter of the roofline on, whatever the ratio. 0 to 1.
double raced_share(double ratio, double share_of_roofline);

}  // namespace lab
