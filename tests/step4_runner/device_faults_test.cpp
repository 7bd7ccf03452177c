// Task 4.5: a kernel that fails does so long after its launch. The step is named, the process ends, nothing
// hangs.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/embedding/embedding.h"
#include "step4_runner/local_executor.h"

namespace ladder {
namespace {

constexpr int64_t kHidden = 32, kVocab = 64, kRows = 8;

DecoderSpec tiny_spec() {
  DecoderSpec spec;
  spec.hidden_size = kHidden;
  spec.intermediate_size = 2 * kHidden;
  spec.num_layers = 1;
  spec.num_heads = spec.num_kv_heads = 1;
  spec.head_dim = spec.rope.rotary_dim = kHidden;
  spec.vocab_size = kVocab;
  spec.max_position_embeddings = 64;
  return spec;
}

// Its logits are zeros. Once it is broken its kernel, captured or not, looks a token up that lies terabytes
// past its table.
class FaultyModel final : public Model {
 public:
  explicit FaultyModel(const OpContext& ctx)
      : table_(Tensor::zeros({kVocab, kHidden}, DType::bf16, ctx.device)),
        ids_(Tensor::zeros({kRows}, DType::i32, ctx.device)) {}
  void break_it() const { ids_.copy_from(Tensor::from<int32_t>(std::vector(kRows, INT32_MAX), {kRows})); }

  const DecoderSpec& spec() const override { return spec_; }
  DType dtype() const override { return DType::bf16; }
  int64_t max_model_len() const override { return 64; }
  std::vector<KvCacheSpec> kv_cache_specs() const override {
    KvCacheSpec cache;
    cache.dtype = DType::bf16;
    cache.num_kv_heads = 1;
    cache.k_dim = cache.v_dim = kHidden;
    return {cache};
  }
  int64_t weight_bytes() const override { return table_.nbytes(); }
  Tensor forward(const OpContext& ctx, const ModelInput& input) override {
    const int64_t rows = input.input_ids.dim(0);
    const Tensor hidden = ctx.arena->take({rows, kHidden}, DType::bf16);
    const Tensor far = Tensor::wrap(table_.raw(), {int64_t{1} << 40, kHidden}, DType::bf16, ctx.device);
    run_variant("embedding", embedding_variants(), ctx, EmbeddingArgs{ids_.rows(rows), far, 0, hidden});
    return hidden;
  }
  Tensor compute_logits(const OpContext& ctx, const Tensor& hidden) override {
    const Tensor logits = ctx.arena->take({hidden.dim(0), kVocab}, DType::f32);
    device_fill(logits.raw(), ctx.device, 0, logits.nbytes(), ctx.stream);
    return logits;
  }

 private:
  DecoderSpec spec_ = tiny_spec();
  Tensor table_, ids_;
};

// One token after the other, two steps in flight where `ahead`, replayed where `graphs`. The model breaks in
// front of step 3.
void decode_into_the_fault(bool ahead, bool graphs) {
  RunnerConfig config;
  config.device = {DeviceType::cuda, 0};
  config.dtype = DType::bf16;
  config.batch.max_num_seqs = 2;
  config.batch.max_num_batched_tokens = kRows;
  config.batch.max_model_len = 32;
  config.batch.num_kv_blocks = 8;
  config.cuda_graphs = graphs;
  const FaultyModel* model = nullptr;
  LocalExecutor executor(tiny_spec(), config, [&](const OpContext& ctx) {
    auto made = std::make_unique<FaultyModel>(ctx);
    model = made.get();
    return made;
  });
  std::vector<Ticket> tickets;
  for (int64_t number = 0; number < 20; ++number) {
    SchedulerOutput step;
    step.step = number;
    step.total_num_tokens = 1;
    step.scheduled = {{7, 1, {}}};
    if (number == 0) {
      NewSequence sequence;
      sequence.id = 7;
      sequence.token_ids = {1};
      sequence.num_prompt_tokens = 1;
      sequence.sampling.temperature = 0;
      sequence.block_table = {3, 1};
      step.new_sequences = {sequence};
    } else {
      step.continued = {{7, {}, number}};
    }
    if (number == 3) {
      if (graphs && !ahead) executor.replay_last_step(1);  // throws another error if step 2 was no replay
      model->break_it();
    }
    tickets.push_back(executor.submit(step));
    if (std::ssize(tickets) > (ahead ? 1 : 0)) {
      executor.collect(tickets.front());
      tickets.erase(tickets.begin());
    }
  }
}

[[noreturn]] void end_with_the_error(bool ahead, bool graphs) {
  try {
    decode_into_the_fault(ahead, graphs);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(2);
  }
  std::exit(0);
}

TEST(Task4_5_DeviceFaults, AFailedKernelIsAnErrorThatNamesItsStepAndEndsTheProcess) {
  std::string reason;
  if (cuda_device_count(&reason) == 0) GTEST_SKIP() << "needs a GPU: " << reason;
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own: the GPU is lost to it afterwards
  for (const bool graphs : {false, true}) {
    EXPECT_EXIT(end_with_the_error(false, graphs), ::testing::ExitedWithCode(2),
                "step 3: cuda.*illegal memory access")
        << (graphs ? "replayed" : "eager");
    // The step in flight may meet the fault, too; the one after it may be launched before it is seen.
    EXPECT_EXIT(end_with_the_error(true, graphs), ::testing::ExitedWithCode(2),
                "step [2-5]: cuda.*illegal memory access")
        << (graphs ? "replayed" : "eager");
  }
}

}  // namespace
}  // namespace ladder
