// Task 8.7.border: predictions of random steps against their limits, rates from random measurements, and borders under random loads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "step8_advanced/disaggregation/partition/sm_border.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using ladder::testing::Random;

double draw(Random& random, double low, double high) {
  return low * std::pow(high / low, random.uniform(0, 1));
}
SmRates random_rates(Random& random) {
  const double sm_bytes = draw(random, 20e9, 100e9);
  return {
      .sm_flops = draw(random, 1e12, 1e13), .sm_bytes = sm_bytes, .bytes = sm_bytes * random.uniform(50, 90)};
}
StepNeeds answers(double count) {
  return {16e9 * count, 16e9 + 1e9 * count};
}
StepNeeds prompt(double tokens) {
  return {16e9 * tokens, 16e9 + 1.3e5 * tokens};
}
std::vector<SmPlace> places() {
  std::vector<SmPlace> all;
  for (int sms = 8; sms <= 96; sms += 8) all.push_back({sms, 132 - sms});
  return all;
}

TEST(Hidden8_7_Border, AStepIsAsLongAsItsLongestLimit) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < 300; ++i) {
    const SmRates rates = random_rates(random);
    const StepNeeds step{draw(random, 1e9, 1e15), draw(random, 1e9, 1e11)};
    const int sms = static_cast<int>(random.integer(1, 132));
    const double computes = step.flops / (sms * rates.sm_flops), reads = step.bytes / rates.bytes,
                 reads_alone = step.bytes / (sms * rates.sm_bytes);
    EXPECT_NEAR(predict_steps(rates, step, sms, {}, 0).decode / std::max({computes, reads, reads_alone}), 1,
                1e-9);
    EXPECT_NEAR(predict_steps(rates, {}, 0, step, sms).prefill / std::max(computes, reads), 1, 1e-9);
  }
}

TEST(Hidden8_7_Border, BothAreSlowedInProportionWhereTheyAskForTooMuch) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < 300; ++i) {
    const SmRates rates{1, 1e3, 100};
    const StepNeeds decode{1, draw(random, 1e2, 1e4)}, prefill{1, draw(random, 1e2, 1e4)};
    const SmTimes times = predict_steps(rates, decode, 60, prefill, 60);
    EXPECT_NEAR(times.decode / (2 * decode.bytes / 100), 1, 1e-9);
    EXPECT_NEAR(times.prefill / (2 * prefill.bytes / 100), 1, 1e-9);
  }
}

TEST(Hidden8_7_Border, RatesOfAnyGpuAreFoundAgain) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < 50; ++i) {
    const SmRates rates = random_rates(random);
    std::vector<MeasuredShare> rows;
    for (const SmPlace& place : places()) {
      for (const double count : {1.0, 4.0, 16.0})
        rows.push_back({false, place.decode_sms, answers(count),
                        predict_steps(rates, answers(count), place.decode_sms, {}, 0).decode});
      rows.push_back({true, place.prefill_sms, prompt(4000),
                      predict_steps(rates, {}, 0, prompt(4000), place.prefill_sms).prefill});
    }
    const FittedRates fitted = fit_sm_rates(rows);
    EXPECT_NEAR(fitted.rates.sm_flops / rates.sm_flops, 1, 1e-9);
    EXPECT_NEAR(fitted.rates.sm_bytes / rates.sm_bytes, 1, 1e-9);
    EXPECT_NEAR(fitted.rates.bytes / rates.bytes, 1, 1e-9);
  }
}

TEST(Hidden8_7_Border, TheWantedPlaceIsTheFirstInTimeOrTheLeastLate) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < 300; ++i) {
    const SmRates rates = random_rates(random);
    const SmBorderOptions options{
        .max_itl = draw(random, 4e-3, 1e-1), .min_step = 0, .min_gain = -1, .min_dwell = 1};
    SmBorder border(places(), rates, options);
    const StepNeeds decode = answers(static_cast<double>(random.integer(1, 40))), prefill = prompt(2048);
    size_t wanted = 0;
    double least = 1e300;
    for (size_t at = 0; at < places().size() && least > options.max_itl; ++at) {
      const SmPlace place = places()[at];
      const double time = predict_steps(rates, decode, place.decode_sms, prefill, place.prefill_sms).decode;
      if (time >= least) continue;
      least = time;
      wanted = at;
    }
    EXPECT_EQ(border.place_for(decode, prefill), wanted) << least;
  }
}

TEST(Hidden8_7_Border, StepsAreMixedFromTooMuchThatWaitsToNothing) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < 50; ++i) {
    const SmRates rates = random_rates(random);
    const double max_wait = draw(random, 0.1, 10);
    SmBorder border(places(), rates, {.max_wait = max_wait});
    const double most = max_wait * places().back().prefill_sms * rates.sm_flops;
    bool mixes = false;
    for (int step = 0; step < 200; ++step) {
      const double waiting = random.integer(0, 5) > 0 ? most * draw(random, 0.01, 3) : 0;
      mixes = waiting > 0 && (mixes || waiting > most);
      ASSERT_EQ(border.mixes(waiting), mixes) << step;
    }
  }
}

TEST(Hidden8_7_Border, AnyLoadMovesItOnceInADwellAndOnlyForSomething) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < 20; ++i) {
    const SmRates rates = random_rates(random);
    const SmBorderOptions options{.max_itl = draw(random, 4e-3, 4e-2), .min_dwell = random.integer(1, 30)};
    SmBorder border(places(), rates, options);
    size_t place = border.place();
    int last_move = -1;
    for (int step = 0; step < 400; ++step) {
      const StepNeeds decode = answers(static_cast<double>(random.integer(1, 40))), prefill = prompt(2048);
      const auto now = border.place_for(decode, prefill);
      ASSERT_TRUE(now.has_value());
      if (*now == place) continue;
      if (last_move >= 0) EXPECT_GE(step - last_move, options.min_dwell);
      const auto at = [&](size_t index) {
        return predict_steps(rates, decode, places()[index].decode_sms, prefill, places()[index].prefill_sms);
      };
      const bool too_slow = at(place).decode > options.max_itl;
      EXPECT_GT(too_slow ? at(place).decode / at(*now).decode : at(place).prefill / at(*now).prefill, 1.05);
      last_move = step;
      place = *now;
    }
  }
}

}  // namespace
}  // namespace ladder
