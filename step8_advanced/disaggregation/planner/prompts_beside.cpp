#include "step8_advanced/disaggregation/planner/prompts_beside.h"

#include <algorithm>
#include <cmath>

namespace ladder {

namespace {

constexpr size_t kMostLeft = 200, kMostBeside = 2000;
constexpr double kRest = 1e-5;  // that is not told apart any more

// Shares of the departures of M/D/1 that leave 0, 1, ... behind, but for a small rest. The number left goes down by one at a
// time, and as often as it goes from n + 1 to n it passes n upwards, from i by more than n + 1 - i that came in one service.
std::vector<double> left_in_m_d_1(double utilisation) {
  std::vector<double> came = {std::exp(-utilisation)},
                      more = {1 - came[0]};  // during a service: so many; more
  std::vector<double> left = {1 - utilisation};
  for (double rest = utilisation; rest > kRest && left.size() < kMostLeft; rest -= left.back()) {
    const size_t n = left.size() - 1;
    double next = left[0] * more[n];
    for (size_t i = 1; i <= n; ++i) next += left[i] * more[n + 1 - i];
    came.push_back(came.back() * utilisation / static_cast<double>(came.size()));
    more.push_back(std::max(0.0, more.back() - came.back()));
    left.push_back(next / came[0]);
  }
  return left;
}

// As prompts_beside.h says.
std::vector<double> left_behind(const Queue& queue) {
  std::vector<double> left = left_in_m_d_1(queue.utilisation);
  double some = 0;
  for (size_t i = 1; i < left.size(); ++i) some += left[i];
  for (size_t i = 1; i < left.size(); ++i) left[i] *= queue.waits / some;
  left[0] = 1 - queue.waits;
  return left;
}

double generalized_poisson(double first, double each, double count) {
  if (first <= 0) return count == 0 ? 1 : 0;
  const double mean = first + each * count;
  return std::exp(std::log(first) + (count - 1) * std::log(mean) - mean - std::lgamma(count + 1));
}

}  // namespace

std::vector<double> prompts_beside(const AnswerAmongPrompts& among) {
  const std::vector<double> left = left_behind(among.queue);
  std::vector<double> shares;
  double rest = 1;
  while (rest > kRest && static_cast<double>(shares.size()) < among.most && shares.size() < kMostBeside) {
    const size_t count = shares.size();
    double share = 0;
    for (size_t l = 0; l <= count && l < left.size(); ++l)
      share +=
          left[l] * generalized_poisson(among.rate * (among.answer + static_cast<double>(l) * among.prompt),
                                        among.rate * among.prompt, static_cast<double>(count - l));
    share = std::min(share, rest);
    rest -= share;
    shares.push_back(share);
  }
  shares.push_back(rest);
  return shares;
}

double mean_prompts_beside(const AnswerAmongPrompts& among) {
  const double busy = among.queue.utilisation;
  const double left = busy > 0 ? among.queue.waits * (1 + busy / (2 * (1 - busy))) : 0;
  return std::min(among.most,
                  (left + among.rate * among.answer) / std::max(1e-9, 1 - among.rate * among.prompt));
}

}  // namespace ladder
