#pragma once
// A race: the student's build and the reference's, one after the other on the same new inputs, many times.
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "bench/course_race/race_ops.h"
#include "bench/course_support/channel.h"

namespace ladder::course {

// What the judge does against cheats, each of which can be left out to see that it is needed (tools/course_cheats.py):
//   fresh      new inputs in every repetition
//   poison     outputs are filled with NaN before it
//   check      the outputs are compared with the judge's own
//   late       outputs are looked at as soon as the worker says it is done, and again later
//   idle       the worker must not compute while it is not asked
//   floor      nothing is faster than the bytes and products that it needs
//   outside    the judge's own clock and not the worker's (left out: the worker reports its seconds)
//   hidden     the expected output is not in memory that the worker sees (left out: it lies behind the problem)
struct RaceOptions {
  int repetitions = 31;  // on a core up to three times as many where the result is not clear
  std::set<std::string> without;
};

struct RaceResult {
  double ratio = 0;          // student's seconds / reference's, the median over the repetitions
  double low = 0, high = 0;  // the 95 % confidence interval of that median: points are given for `low`
  int repetitions = 0;
  // Medians, of the worker's CPU clock (on a GPU: of the judge's on the wall), an empty call taken off.
  double seconds = 0, reference_seconds = 0;
  double wall_ratio = 0;  // by the wall clock, of the shortest turns
  double share = 0;       // of the roofline: the least time for its bytes and products / the student's
  std::vector<std::string> flags;  // what an instructor must look at; with one of them nothing is scored
};

// Error (WorkerError): the student's code failed, is wrong, or does not keep to the rules.
RaceResult race(const RaceOp& op, const std::string& rung, uint64_t seed,
                const std::vector<std::string>& student, const std::vector<std::string>& reference,
                const RaceOptions& options);

}  // namespace ladder::course
