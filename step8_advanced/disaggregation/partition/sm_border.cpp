#include "step8_advanced/disaggregation/partition/sm_border.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 8.7.border: predict the two steps of a place, fit the rates, and move the border only where it pays
SmTimes predict_steps(const SmRates& rates, const StepNeeds& decode, int decode_sms, const StepNeeds& prefill,
                      int prefill_sms) {
  const auto take = [&](double decode_bytes, double prefill_bytes) {  // W_D and W_P
    SmTimes times;
    if (!decode.none())
      times.decode = std::max(decode.flops / (decode_sms * rates.sm_flops),
                              decode.bytes / std::min(decode_bytes, decode_sms * rates.sm_bytes));
    if (!prefill.none())
      times.prefill = std::max(prefill.flops / (prefill_sms * rates.sm_flops), prefill.bytes / prefill_bytes);
    return times;
  };
  const SmTimes alone = take(rates.bytes, rates.bytes);
  if (decode.none() || prefill.none()) return alone;
  const double decode_wants = decode.bytes / alone.decode, prefill_wants = prefill.bytes / alone.prefill;
  const double part = std::min(1.0, rates.bytes / (decode_wants + prefill_wants));
  return take(part * decode_wants, part * prefill_wants);
}

FittedRates fit_sm_rates(std::span<const MeasuredShare> rows) {
  constexpr size_t kRates = 3;
  // What a row shows of each rate, if that is its limit. A prefill step is not limited by what its multiprocessors read.
  const auto shown = [](const MeasuredShare& row) {
    const double sms = row.sms, seconds = row.seconds;
    return std::array<double, kRates>{row.needs.flops / (sms * seconds),
                                      row.is_prefill ? 0 : row.needs.bytes / (sms * seconds),
                                      row.needs.bytes / seconds};
  };
  std::array<double, kRates> rates{};
  for (const MeasuredShare& row : rows) {
    LADDER_CHECK(row.seconds > 0 && row.sms > 0, "a step of {} s on {} multiprocessors", row.seconds,
                 row.sms);
    for (size_t i = 0; i < kRates; ++i) rates[i] = std::max(rates[i], shown(row)[i]);
  }
  LADDER_CHECK(std::ranges::all_of(rates, [](double rate) { return rate > 0; }),
               "rates of multiprocessors: expected measured steps of both kinds");
  // What the limit makes of the row's time, over the measured one.
  const auto limit_of = [&](const MeasuredShare& row) {
    std::array<double, kRates> shares{};
    for (size_t i = 0; i < kRates; ++i) shares[i] = shown(row)[i] / rates[i];
    return std::ranges::max_element(shares) - shares.begin();
  };
  for (int round = 0; round < 20; ++round) {
    std::array<double, kRates> logs{}, counts{};
    for (const MeasuredShare& row : rows) {
      const auto limit = static_cast<size_t>(limit_of(row));
      logs[limit] += std::log(shown(row)[limit]);
      counts[limit] += 1;
    }
    const auto before = rates;
    for (size_t i = 0; i < kRates; ++i)
      if (counts[i] > 0) rates[i] = std::exp(logs[i] / counts[i]);
    if (rates == before) break;
  }
  FittedRates fitted{{rates[0], rates[1], rates[2]}};
  for (const MeasuredShare& row : rows) {
    const auto limit = static_cast<size_t>(limit_of(row));
    const double error = std::abs(shown(row)[limit] / rates[limit] - 1);
    fitted.mean_error += error / static_cast<double>(rows.size());
    fitted.worst_error = std::max(fitted.worst_error, error);
  }
  return fitted;
}

std::optional<size_t> SmBorder::place_for(const StepNeeds& decode, const StepNeeds& prefill) {
  if (decode.none() || prefill.none()) return std::nullopt;
  std::vector<SmTimes> times;
  for (size_t i = 0; i < places_.size(); ++i) times.push_back(predict(i, decode, prefill));
  const double fastest = std::ranges::min_element(times, {}, &SmTimes::decode)->decode;
  const double may_take = options_.max_itl > 0 ? options_.max_itl : (1 + options_.slack) * fastest;
  const auto in_time =
      std::ranges::find_if(times, [=](const SmTimes& each) { return each.decode <= may_take; });
  const auto best = in_time != times.end() ? in_time : std::ranges::min_element(times, {}, &SmTimes::decode);
  const auto wanted = static_cast<size_t>(best - times.begin());

  double gain = times[place_].prefill / times[wanted].prefill - 1;
  if (times[place_].decode > may_take) gain = std::max(gain, times[place_].decode / times[wanted].decode - 1);
  const int step = std::abs(places_[wanted].decode_sms - places_[place_].decode_sms);
  const bool may_move = num_moves_ == 0 || stayed_ >= options_.min_dwell;
  ++stayed_;
  if (may_move && step >= options_.min_step && gain > options_.min_gain) {
    place_ = wanted;
    stayed_ = 1;
    ++num_moves_;
  }
  return place_;
}

bool SmBorder::mixes(double waiting) {
  const double seconds =
      waiting / (places_.back().prefill_sms * rates_.sm_flops) * corrections_.back().prefill.factor;
  return mixes_ = waiting > 0 && options_.max_wait > 0 && (mixes_ || seconds > options_.max_wait);
}

void SmBorder::learn(size_t place, const StepNeeds& decode, const StepNeeds& prefill, bool is_prefill,
                     double seconds) {
  const SmTimes predicted =
      predict_steps(rates_, decode, places_[place].decode_sms, prefill, places_[place].prefill_sms);
  const double expected = is_prefill ? predicted.prefill : predicted.decode;
  if (expected <= 0 || seconds <= 0) return;
  const auto kind = is_prefill ? &Corrections::prefill : &Corrections::decode;
  Correction& own = corrections_[place].*kind;
  own.factor += (std::min(seconds / expected, 2 * own.factor) - own.factor) / 8;
  own.measured = true;
  for (Corrections& each : corrections_) {
    Correction& other = each.*kind;
    other.factor += (own.factor - other.factor) / (other.measured ? kForget : 1);
  }
}

SmTimes SmBorder::predict(size_t place, const StepNeeds& decode, const StepNeeds& prefill) const {
  SmTimes times =
      predict_steps(rates_, decode, places_[place].decode_sms, prefill, places_[place].prefill_sms);
  times.decode *= corrections_[place].decode.factor;
  times.prefill *= corrections_[place].prefill.factor;
  return times;
}
// <<< task 8.7.border

SmBorder::SmBorder(std::vector<SmPlace> places, const SmRates& rates, const SmBorderOptions& options)
    : places_(std::move(places)), rates_(rates), options_(options), corrections_(places_.size()) {
  LADDER_CHECK(!places_.empty(), "a border needs a place");
  for (size_t i = 1; i < places_.size(); ++i)
    LADDER_CHECK(places_[i - 1].decode_sms < places_[i].decode_sms,
                 "places of a border: {} multiprocessors after {}, expected more", places_[i].decode_sms,
                 places_[i - 1].decode_sms);
}

}  // namespace ladder
