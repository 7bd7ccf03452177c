// Tasks 8.7.lanes and 8.7.border: engine, scheduler and border in virtual time, with room, in a crowd, and with room again: steps of both phases
// begin and end, answers stay what they are, and what it is worth.
#include <gtest/gtest.h>

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "step6_engine/engine.h"
#include "tests/step5_scheduler/harness.h"
#include "tests/step8_advanced/disaggregation/partition/predicted_gpu.h"

namespace ladder {
namespace {

// A multiprocessor computes 25 times less than an H200's, so that prompts of a few hundred tokens stand for ten thousand.
constexpr SmRates kRates{.sm_flops = 6e12 / 25, .sm_bytes = 60e9, .bytes = 4.2e12};

// A step takes what the border's model says of where SmLanes puts it and of the step that is beside it then (without what its
// tokens look back at). Its tokens are those of simulators that know whose blocks a step in flight reads and writes.
class VirtualGpu final : public PhaseExecutors {
 public:
  VirtualGpu(const SchedulerConfig& config, const SmBorderOptions& border)
      : lanes(testing::gpu_without_contexts(), border),
        prefill_(*this, StepPhase::prefill, config),
        decode_(*this, StepPhase::decode, config) {
    testing::calibrate(lanes, kRates);
    decode_.simulator.share_cache_with(prefill_.simulator);
  }

  Executor& of(StepPhase phase) override { return phase == StepPhase::decode ? decode_ : prefill_; }
  StepPhase wait() override {
    const bool decode = decode_.next_end() <= prefill_.next_end();
    now = std::max(now, decode ? decode_.next_end() : prefill_.next_end());
    return decode ? StepPhase::decode : StepPhase::prefill;
  }
  bool on_waiting(int64_t num_tokens) override { return lanes.on_waiting(num_tokens); }

  SmLanes lanes;
  double now = 0;  // seconds

 private:
  struct InFlight {
    StepNeeds needs;
    double seconds = 0, end = 0;
  };
  struct Lane final : Executor {
    Lane(VirtualGpu& gpu, StepPhase phase, const SchedulerConfig& config)
        : simulator(config.batch.num_kv_blocks, config.batch.block_size, config.vocab_size, 1),
          gpu_(gpu),
          phase_(phase) {}
    Ticket submit(const SchedulerOutput& step) override {
      const size_t context = gpu_.lanes.choose(phase_, step);
      InFlight added;
      add_rows(added.needs, needs_of_model(testing::Shape8B()), step.total_num_tokens, 0);
      const Lane& other = phase_ == StepPhase::decode ? gpu_.prefill_ : gpu_.decode_;
      const StepNeeds beside =
          context > 0 && !other.in_flight.empty() ? other.in_flight.front().needs : StepNeeds();
      const SmPlace place =
          context > 0 ? testing::gpu_without_contexts().places[context - 1] : SmPlace{132, 132};
      added.seconds =
          phase_ == StepPhase::decode
              ? predict_steps(kRates, added.needs, place.decode_sms, beside, place.prefill_sms).decode
              : predict_steps(kRates, beside, place.decode_sms, added.needs, place.prefill_sms).prefill;
      added.end = std::max(gpu_.now, in_flight.empty() ? 0 : in_flight.back().end) + added.seconds;
      in_flight.push_back(added);
      return simulator.submit(step);
    }
    StepOutput collect(Ticket ticket) override {
      gpu_.lanes.on_done(phase_, in_flight.front().seconds);
      in_flight.pop_front();
      return simulator.collect(ticket);
    }
    int max_in_flight() const override { return 2; }
    double next_end() const {
      return in_flight.empty() ? std::numeric_limits<double>::infinity() : in_flight.front().end;
    }

    KvSimulator simulator;
    std::deque<InFlight> in_flight;

   private:
    VirtualGpu& gpu_;
    const StepPhase phase_;
  };

  Lane prefill_, decode_;
};

struct Outcome {
  double seconds = 0;            // of the crowd, from its arrival to its last token
  double longest_with_room = 0;  // gap between two tokens before the crowd comes
  std::vector<int64_t> mixed;    // steps of both phases until the crowd came, until it had gone, and in all
  std::map<int, std::vector<int32_t>> answers;  // of requests in their order
};

Request request_of(int number, int64_t prompt, int64_t output) {
  Request request;
  for (int64_t i = 0; i < prompt; ++i)
    request.prompt_token_ids.push_back(static_cast<int32_t>((37 * number + i) % 1000));
  request.sampling = greedy(output);
  request.sampling.ignore_eos = true;
  return request;
}

// Ten requests, one every 0.3 s; 24 at once; ten more, one every 0.3 s. 160 to 640 tokens, of which a whole GPU computes 2,000 a second.
Outcome run(double max_wait) {
  SchedulerConfig config = small_config();
  config.batch.max_num_seqs = 64;
  config.batch.max_num_batched_tokens = 4096 / 25;
  config.num_mixed_step_tokens = 512 / 25;
  config.batch.max_model_len = 1000;
  config.batch.num_kv_blocks = 8000;
  config.enable_prefix_caching = false;
  auto made = std::make_unique<VirtualGpu>(config, SmBorderOptions{.max_itl = 9e-3, .max_wait = max_wait});
  VirtualGpu& gpu = *made;
  Engine engine(std::move(made), config, nullptr);

  constexpr int kAlone = 10, kCrowd = 24;
  std::vector<Request> requests;
  for (int i = 0; i < 2 * kAlone + kCrowd; ++i)
    requests.push_back(request_of(i, 160 + 480 * (7 * i % 11) / 10, 64));
  Outcome outcome;
  std::map<RequestId, int> numbers;
  std::map<RequestId, double> last;
  const auto step = [&](bool with_room) {
    const StepResult result = engine.step();
    for (const CompletionUpdate& update : result.updates) {
      if (const auto before = last.find(update.request_id); with_room && before != last.end())
        outcome.longest_with_room = std::max(outcome.longest_with_room, gpu.now - before->second);
      last[update.request_id] = gpu.now;
    }
    for (const RequestOutput& output : result.finished)
      outcome.answers[numbers.at(output.request_id)] = output.completions[0].token_ids;
  };
  const auto one_by_one = [&](int first, bool with_room) {
    const double begin = gpu.now;
    for (int i = first; i < first + kAlone; ++i) {
      while (engine.has_unfinished() && gpu.now < begin + 0.3 * (i - first)) step(with_room);
      gpu.now = std::max(gpu.now, begin + 0.3 * (i - first));
      numbers[engine.add_request(requests[static_cast<size_t>(i)])] = i;
    }
    while (engine.has_unfinished()) step(with_room);
    outcome.mixed.push_back(gpu.lanes.report().num_mixed);
  };
  one_by_one(0, true);
  const double begin = gpu.now;
  for (int i = kAlone; i < kAlone + kCrowd; ++i)
    numbers[engine.add_request(requests[static_cast<size_t>(i)])] = i;
  while (engine.has_unfinished()) step(false);
  outcome.seconds = gpu.now - begin;
  outcome.mixed.push_back(gpu.lanes.report().num_mixed);
  one_by_one(kAlone + kCrowd, false);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(outcome.answers[static_cast<int>(i)],
              reference_output(requests[i].prompt_token_ids, requests[i].sampling, *requests[i].sampling.seed,
                               config.vocab_size, config.batch.max_model_len, {}))
        << i;
  return outcome;
}

TEST(Task8_7_Lanes_Mixed, ACrowdIsMixedAndNobodyElse) {
  const Outcome shares = run(0), mixed = run(3.0);
  EXPECT_EQ(shares.mixed, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(mixed.mixed[0], 0) << "with room";
  EXPECT_GT(mixed.mixed[1], 100);
  EXPECT_EQ(mixed.mixed[2], mixed.mixed[1]) << "with room again";
  EXPECT_EQ(mixed.longest_with_room, shares.longest_with_room);
  EXPECT_GT(shares.longest_with_room, 5e-3) << "answers were beside prompts";
  EXPECT_LT(mixed.seconds, 0.95 * shares.seconds);
  EXPECT_EQ(mixed.answers, shares.answers);
}

}  // namespace
}  // namespace ladder
