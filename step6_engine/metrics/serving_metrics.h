#pragma once
// Task 6.5: what those who run a server watch: how its latencies and lengths are distributed, since the start.
//
// Everything is observed on the engine's thread with the moments that the requests' timers get, so one monotonic clock
// is behind all of it. Names and bounds are vLLM's: boards and alerts are made for them.
#include <array>
#include <cstdint>

#include "step3_sequence/sequence.h"
#include "step6_engine/metrics/histogram.h"

namespace ladder {

class RequestTimer;
struct RequestMetrics;
struct RequestOutput;

// Seconds.
inline constexpr std::array kFirstTokenBounds = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                                 0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                                 20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
inline constexpr std::array kTokenGapBounds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                               0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
inline constexpr std::array kRequestTimeBounds = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                                  5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                                  60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
// Tokens. Of kLengthBounds, which go on by 1, 2, 5, a reader is shown those up to max_model_len.
inline constexpr std::array kLengthBounds = {1e0, 2e0, 5e0, 1e1, 2e1, 5e1, 1e2, 2e2, 5e2, 1e3, 2e3,
                                             5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7};
inline constexpr std::array kStepTokensBounds = {1.0,   8.0,    16.0,   32.0,   64.0,   128.0,  256.0,
                                                 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0};
inline constexpr std::array kCompletionsBounds = {1.0, 2.0, 5.0, 10.0, 20.0};

struct ServingMetrics {
  // Of every request that got a token.
  Histogram<kFirstTokenBounds> time_to_first_token;
  // Of every token but the first of a completion: tokens that arrive together share the wait before them.
  Histogram<kTokenGapBounds> inter_token_latency;

  // Of requests that were served to their end (no completion was aborted or failed); see metrics.h for the moments.
  Histogram<kRequestTimeBounds> end_to_end;
  Histogram<kRequestTimeBounds> queue;
  Histogram<kRequestTimeBounds> prefill;    // first scheduled to first token
  Histogram<kRequestTimeBounds> decode;     // first token to last token
  Histogram<kRequestTimeBounds> inference;  // first scheduled to last token
  // The mean gap between tokens; of those that have a gap.
  Histogram<kTokenGapBounds> request_time_per_output_token;
  Histogram<kLengthBounds> request_prompt_tokens;
  Histogram<kLengthBounds> request_generation_tokens;      // of each completion
  Histogram<kLengthBounds> request_max_generation_tokens;  // of its longest completion

  // Of all requests, when they are added.
  Histogram<kCompletionsBounds> request_n;
  Histogram<kLengthBounds> request_max_tokens;  // of those that set it

  Histogram<kStepTokensBounds> step_tokens;  // rows that a step computed

  int64_t num_prompt_tokens = 0;                   // of requests that have got a token
  int64_t num_generation_tokens = 0;               // so far: those of running requests too
  std::array<int64_t, 5> num_completions_ended{};  // by FinishReason

  void on_request(const SamplingParams& sampling);
  void on_step(int64_t num_tokens) { step_tokens.observe(static_cast<double>(num_tokens)); }
  // `count` tokens of a completion arrive together; 0: nothing has happened. Called before the same call of the
  // request's timer; `request` has the number of its prompt tokens.
  void on_tokens(const RequestTimer& timer, const RequestMetrics& request, int64_t completion, int64_t count,
                 double now);
  void on_ended(const RequestOutput& output);  // which is complete, its metrics too

  ServingMetrics& operator+=(const ServingMetrics& other);  // of another engine
};

}  // namespace ladder
