#pragma once
// Task 8.7.border: how many of a GPU's multiprocessors compute answers while the others compute a prompt.
//
// A step of answers (decode) reads all weights for a few rows: it waits for memory, and more multiprocessors than saturate the
// memory are of no use to it. A step of a prompt (prefill) computes, and is the shorter the more it has. So the border between the two
// stands where answers are just fast enough. Where that is depends on the load: on how many answers there are, how long they
// are, and how much memory bandwidth, which nothing shares out, the prompt takes from them.
//
//   t_P(s) = max(F_P / (s c), Y_P / W_P)               F, Y: floating point operations and bytes of memory of a step
//   t_D(s) = max(F_D / (s c), Y_D / min(W_D, s w))     c, w: operations and bytes per second of one multiprocessor
//   W_P + W_D <= W, by demand                          W: bytes per second of the memory
//
// The rates are fitted to steps that were measured alone on several shares. What beside each other is still wrong, the steps
// themselves tell: measured over predicted, remembered for each place of the border. Nothing here knows of a GPU.
//
// Both sides read the weights, and each computes with a part of the multiprocessors. So where more prompts wait than may, there
// is no border: prompts are cut into chunks beside the answers, in steps of the whole GPU, until none waits.
//
// Nexus (arXiv:2507.06608) and MuxWise choose so, too; SGLang's pdmux takes a table of batch sizes.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ladder {

// Of one step, or of nothing.
struct StepNeeds {
  double flops = 0;
  double bytes = 0;  // read from memory: weights, keys and values
  bool none() const { return flops <= 0; }
};

struct SmRates {
  double sm_flops = 0;  // c, per second and multiprocessor
  double sm_bytes = 0;  // w
  double bytes = 0;     // W, per second
};

struct SmTimes {
  double decode = 0, prefill = 0;  // seconds of a step; 0 where there is none
};
// Of two steps beside each other, or of one. Each asks for the bandwidth that it would use alone on its multiprocessors. Where that is
// more than the memory has, both get the same share of what they ask for.
SmTimes predict_steps(const SmRates& rates, const StepNeeds& decode, int decode_sms, const StepNeeds& prefill,
                      int prefill_sms);

// A step that was measured alone on a share of the GPU.
struct MeasuredShare {
  bool is_prefill = false;
  int sms = 0;
  StepNeeds needs;
  double seconds = 0;
};
struct FittedRates {
  SmRates rates;
  double mean_error = 0, worst_error = 0;  // of a row: |model - measured| / measured
};
// No step is faster than any one of its limits, so each rate is at least the best that a row shows: that is where the search begins.
// Then, until nothing changes, every row belongs to the limit that is its longest, and each rate becomes the geometric mean of
// what its rows show. A rate that limits no row stays at the best seen. Error: no row of either kind, or a time of 0.
FittedRates fit_sm_rates(std::span<const MeasuredShare> rows);

// One place where the border may stand.
struct SmPlace {
  int decode_sms = 0, prefill_sms = 0;
};

struct SmBorderOptions {
  double max_itl =
      0;  // seconds that a decode step may take; 0: (1 + slack) of the least that any place gives it
  double slack = 0.25;
  double max_wait = 0;  // seconds until the last prompt that is here may be computed; 0: as long as it takes
  // What a move must be worth, or two places that are about as good would take turns.
  int min_step = 8;        // multiprocessors
  double min_gain = 0.05;  // of the time of whichever the move is for
  int64_t min_dwell = 16;  // decode steps that the border stays
};

class SmBorder {
 public:
  // `places` ascend by decode_sms. It begins at the first. Error: none, or they do not ascend.
  SmBorder(std::vector<SmPlace> places, const SmRates& rates, const SmBorderOptions& options);

  // For the decode step that is about to be launched, beside such a prefill step: which of the places, or none, where one of
  // the two is empty and the other has all of the GPU (the border then stays where it was, and nothing is counted).
  //
  // Wanted is the place with the fewest multiprocessors for decode whose decode step takes no longer than it may; if there is
  // none, the one where it is the shortest. The border moves there if it has stayed for min_dwell decode steps (the first move
  // need not wait), is min_step away, and the move gains more than min_gain: of the prefill step, or, where the decode step takes
  // longer than it may, of that.
  std::optional<size_t> place_for(const StepNeeds& decode, const StepNeeds& prefill);

  // Whether steps should be of both phases, on all multiprocessors, and there be no border. `waiting`: floating point operations
  // of the prompts that wait. Begins when the last place, where prompts have the fewest multiprocessors, would compute them (at
  // its rate, with its correction) for longer than max_wait. Ends when none waits: nothing in between changes it, or both would
  // take turns. Without max_wait never.
  bool mixes(double waiting);

  static constexpr double kForget = 8192;  // steps: about a minute of them
  // How long a step took at a place, beside one of the other kind. Of measured over predicted each place remembers a moving mean
  // (an eighth of what is new, which counts as no more than twice the mean: a step that was held up says little), by which
  // predictions are multiplied from then on. A place where none was measured takes over what another one learns; one where
  // some were comes nearer by a kForget-th of the difference, so that it is tried again one day, whatever it looked like.
  void learn(size_t place, const StepNeeds& decode, const StepNeeds& prefill, bool is_prefill,
             double seconds);

  size_t place() const { return place_; }
  int64_t num_moves() const { return num_moves_; }
  const std::vector<SmPlace>& places() const { return places_; }

 private:
  SmTimes predict(size_t place, const StepNeeds& decode, const StepNeeds& prefill) const;

  std::vector<SmPlace> places_;
  SmRates rates_;
  SmBorderOptions options_;
  struct Correction {
    double factor = 1;
    bool measured = false;  // here
  };
  struct Corrections {
    Correction decode, prefill;
  };
  std::vector<Corrections> corrections_;  // of places_
  size_t place_ = 0;
  int64_t stayed_ = 0;  // decode steps since the last move
  int64_t num_moves_ = 0;
  bool mixes_ = false;
};

}  // namespace ladder
