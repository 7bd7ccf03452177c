// What a program brings for the runner through load_engine's options: a logits processor (a grammar)
// and a proposer of drafts.
#include <gtest/gtest.h>

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step1_layers/sampling/token_bitmask.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/support/model_devices.h"

namespace ladder {
namespace {

using testing::GoldenCheckpoint;
using testing::same_bits;

// Requests of this salt are constrained, the others are not.
constexpr const char* kConstrained = "constrained";

// A mask that is the same for every token.
class EvenIds final : public LogitsProcessor {
 public:
  explicit EvenIds(int64_t vocab_size) : mask_(static_cast<size_t>(bitmask_words(vocab_size)), 0x55555555u) {}
  bool needs_tokens(const SamplingParams&) const override { return false; }
  void edit(const BatchSequence& sequence, LogitsEdits& edits) override {
    if (sequence.sampling.cache_salt == kConstrained) edits.allow_only(mask_);
  }
  static bool allows(std::span<const int32_t>, int32_t token, int64_t) { return token % 2 == 0; }

 private:
  std::vector<uint32_t> mask_;
};

// As a grammar does, it asks what came before: a token may only be followed by one of three.
class ThreeSuccessors final : public LogitsProcessor {
 public:
  explicit ThreeSuccessors(int64_t vocab_size) : vocab_size_(vocab_size) {}
  bool needs_tokens(const SamplingParams& sampling) const override {
    return sampling.cache_salt == kConstrained;
  }
  void edit(const BatchSequence& sequence, LogitsEdits& edits) override {
    if (sequence.sampling.cache_salt != kConstrained) return;
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocab_size_; ++id)
      if (allows(sequence.token_ids, id, vocab_size_)) allowed.push_back(id);
    edits.allow_only_ids(allowed);
  }
  static bool allows(std::span<const int32_t> before, int32_t token, int64_t vocab_size) {
    const auto distance = (token - before.back() + vocab_size) % vocab_size;
    return distance == 1 || distance == 7 || distance == 20;
  }

 private:
  int64_t vocab_size_;
};

struct Schedule {
  std::string name;
  DeviceType device;
  bool async;
  int ranks = 1;
};

class RunnerMakersOnSchedules : public ::testing::TestWithParam<Schedule> {
 protected:
  void SetUp() override { testing::need_device(GetParam().device); }

  EngineOptions options() const {
    EngineOptions options =
        testing::small_options(checkpoint.directory, GetParam().device, checkpoint.max_model_len);
    options.runner.async_scheduling = GetParam().async;
    options.runner.tensor_parallel_size = GetParam().ranks;
    options.runner.batch.block_size = 4;
    return options;
  }

  // Every request greedily and drawn, constrained and not.
  std::vector<Request> requests() const {
    std::vector<Request> all;
    for (const Request& greedy : testing::greedy_requests(checkpoint))
      for (const bool constrained : {false, true})
        for (const double temperature : {0.0, 1.0}) {
          Request& request = all.emplace_back(greedy);
          request.sampling.temperature = temperature;
          request.sampling.seed = all.size();
          if (constrained) request.sampling.cache_salt = kConstrained;
        }
    return all;
  }

  template <class Processor>
  void expect_constrained() const {
    const std::vector<Request> all = requests();
    const auto plain = testing::engine_with(options())->generate(all);
    const int64_t vocab_size = load_decoder_spec(checkpoint.directory).vocab_size;

    EngineOptions constrained = options();
    constrained.makers.runner.logits_processor = [&](const ExecutorOptions& given) {
      EXPECT_EQ(given.model, checkpoint.directory);
      EXPECT_EQ(given.spec.vocab_size, vocab_size);
      return std::make_shared<Processor>(given.spec.vocab_size);
    };
    const auto check = [&](const std::vector<RequestOutput>& outputs) {
      int64_t num_changed = 0;
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (all[i].sampling.cache_salt != kConstrained) {
          EXPECT_TRUE(same_bits(outputs[i], plain[i])) << "request " << i;
          continue;
        }
        num_changed += outputs[i].completions[0].token_ids != plain[i].completions[0].token_ids;
        std::vector<int32_t> tokens = all[i].prompt_token_ids;
        for (const int32_t token : outputs[i].completions[0].token_ids) {
          EXPECT_TRUE(Processor::allows(tokens, token, vocab_size)) << "request " << i;
          tokens.push_back(token);
        }
        EXPECT_EQ(std::ssize(tokens), std::ssize(all[i].prompt_token_ids) + *all[i].sampling.max_tokens);
      }
      EXPECT_GT(num_changed, 0) << "the model's own tokens were allowed";
    };
    const auto outputs = testing::engine_with(constrained)->generate(all);
    check(outputs);

    // A cache that holds the longest, but not all: the preempted come back with the same answer.
    int64_t longest = 0;
    for (const Request& request : all)
      longest = std::max(longest, std::ssize(request.prompt_token_ids) + *request.sampling.max_tokens);
    constrained.runner.kv_memory = 0;
    constrained.runner.batch.max_model_len = std::max(longest, checkpoint.max_model_len);
    constrained.runner.batch.num_kv_blocks = constrained.runner.batch.max_model_len / 4 + 2;
    const std::unique_ptr<Engine> engine = testing::engine_with(constrained);
    const auto preempted = engine->generate(all);
    EXPECT_GT(engine->metrics().num_preemptions, 0);
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_EQ(preempted[i].completions[0].token_ids, outputs[i].completions[0].token_ids)
          << "request " << i;
  }

  const GoldenCheckpoint checkpoint = testing::load_golden(testing::golden_folder() / "qwen3_tied");
};

TEST_P(RunnerMakersOnSchedules, ALogitsProcessorConstrainsItsRequestsAlone) {
  expect_constrained<EvenIds>();
}

TEST_P(RunnerMakersOnSchedules, ALogitsProcessorThatReadsTheTokensSeesThemAll) {
  expect_constrained<ThreeSuccessors>();
}

INSTANTIATE_TEST_SUITE_P(Schedules, RunnerMakersOnSchedules,
                         ::testing::Values(Schedule{"cpu", DeviceType::cpu, false},
                                           Schedule{"two_ranks", DeviceType::cpu, false, 2},
                                           Schedule{"cuda", DeviceType::cuda, false},
                                           Schedule{"cuda_async", DeviceType::cuda, true}),
                         [](const auto& info) { return info.param.name; });

// It learns what a grammar needs, once, and only rank 0 asks it: every row of every step once.
TEST(RunnerMakers, OneProcessorForAllRanksSeesEachRowOnce) {
  struct Count final : LogitsProcessor {
    bool needs_tokens(const SamplingParams&) const override { return false; }
    void edit(const BatchSequence&, LogitsEdits&) override { ++rows; }
    int64_t rows = 0;
  };
  for (const int ranks : {1, 2}) {
    EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
    options.runner.tensor_parallel_size = ranks;
    const auto count = std::make_shared<Count>();
    int num_made = 0;
    options.makers.runner.logits_processor = [&](const ExecutorOptions& given) {
      ++num_made;
      EXPECT_NE(given.tokenizer, nullptr);
      EXPECT_EQ(given.config.batch.max_model_len, 64);
      return count;
    };
    const std::unique_ptr<Engine> engine = testing::engine_with(options);
    EXPECT_EQ(num_made, 1);
    EXPECT_EQ(count->rows, 0) << "the warm-up's rows belong to no request";
    Request request;
    request.prompt_token_ids = {1, 2, 3};
    request.sampling.max_tokens = 5;
    request.sampling.ignore_eos = true;
    request.sampling.n = 3;
    engine->generate({request, request});
    EXPECT_EQ(count->rows, 2 * 3 * 5) << ranks << " ranks";
  }
}

TEST(RunnerMakers, AMakerMayDecline) {
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
  Request request;
  request.prompt_token_ids = {1, 2, 3};
  request.sampling.max_tokens = 5;
  request.sampling.temperature = 0;
  const auto tokens = [&] { return testing::engine_with(options)->generate({request})[0].completions[0]; };
  const std::vector<int32_t> own = tokens().token_ids;
  options.makers.runner.logits_processor = [](const ExecutorOptions&) { return nullptr; };
  EXPECT_EQ(tokens().token_ids, own);
}

TEST(RunnerMakers, AProposerIsRefusedByNameWhereNoDraftsAreVerified) {
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
  options.makers.runner.proposer = [](const ExecutorOptions&) -> std::unique_ptr<Proposer> {
    ADD_FAILURE() << "it was made";
    return nullptr;
  };
  try {
    testing::engine_with(options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("proposer"), std::string::npos) << error.what();
  }
  // Another executor may take it: the maker arrives there.
  bool seen = false;
  options.makers.executor = [&](const ExecutorOptions& given) -> MadeExecutor {
    seen = given.runner_makers.proposer != nullptr;
    throw Error("enough");
  };
  EXPECT_THROW(testing::engine_with(options), Error);
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace ladder
