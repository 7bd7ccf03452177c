// Tasks 4.5 and 4.6: what reaches a GPU is what the batch laid out, and which graph a batch takes.
#include "step4_runner/device_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/linear/matmul.h"
#include "step4_runner/step_graphs.h"
#include "tests/support/devices.h"
#include "tests/support/model_devices.h"
#include "tests/support/numerics.h"
#include "tests/support/recording_stream.h"

namespace ladder {
namespace {

using ladder::testing::Random;

BatchConfig config_of_inputs() {
  BatchConfig config;
  config.max_num_seqs = 40;
  config.max_num_batched_tokens = 700;
  config.max_model_len = 600;
  config.block_size = 4;
  config.num_kv_blocks = 1000;
  return config;
}

template <class T>
std::vector<T> read(const Tensor& tensor) {
  const Tensor host = tensor.to(Device{});
  return {host.data<T>(), host.data<T>() + host.numel()};
}

template <class T>
std::vector<T> first(std::vector<T> values, int64_t count) {
  values.resize(static_cast<size_t>(count));
  return values;
}

std::vector<int64_t> rows_of(const std::vector<GraphSize>& sizes) {
  std::vector<int64_t> rows;
  for (const GraphSize& size : sizes) rows.push_back(size.rows);
  return rows;
}

TEST(Task4_6_StepGraphs, DecodeSizesEndAtTheLargestBatchAndPadLittle) {
  EXPECT_EQ(rows_of(decode_graph_sizes(1, 100)), (std::vector<int64_t>{1}));
  EXPECT_EQ(rows_of(decode_graph_sizes(20, 100)), (std::vector<int64_t>{1, 2, 4, 8, 16, 20}));
  const auto sizes = rows_of(decode_graph_sizes(300, kShortDecodeKeys));
  EXPECT_EQ(sizes.back(), 300);
  for (size_t i = 1; i < sizes.size(); ++i) {
    EXPECT_GT(sizes[i], sizes[i - 1]);
    EXPECT_LE(sizes[i] - sizes[i - 1], sizes[i - 1] < 8 ? sizes[i - 1] : sizes[i - 1] < 256 ? 8 : 32);
  }
}

TEST(Task4_6_StepGraphs, MixedSizesAreThoseOfTheProductsAndEndWhereLaunchesAreHidden) {
  EXPECT_EQ(rows_of(mixed_graph_sizes(20)),
            (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20}));
  const auto sizes = rows_of(mixed_graph_sizes(8192));
  EXPECT_EQ(sizes.back(), kMaxMixedRows);
  for (const int64_t rows : sizes) EXPECT_EQ(rows, last_of_row_class(rows));
}

TEST(Task4_6_StepGraphs, FewSequencesHaveAGraphForShortOnesAndOneForAny) {
  constexpr int64_t kLong = 4 * kShortDecodeKeys;
  const std::vector<GraphSize> sizes = decode_graph_sizes(48, kLong);
  for (const int64_t rows : {int64_t{1}, int64_t{2}, int64_t{8}, kMaxFewSeqs}) {
    EXPECT_EQ(std::count(sizes.begin(), sizes.end(), GraphSize{rows, kShortDecodeKeys}), 1) << rows;
    EXPECT_EQ(std::count(sizes.begin(), sizes.end(), GraphSize{rows, kLong}), 1) << rows;
  }
  EXPECT_EQ(std::count(sizes.begin(), sizes.end(), GraphSize{48, kShortDecodeKeys}), 0);
  EXPECT_EQ(sizes.back(), (GraphSize{48, kLong}));
}

TEST(Task4_6_StepGraphs, AStepTakesTheSmallestGraphWithRoomForItsRowsAndItsLength) {
  constexpr int64_t kLong = 4 * kShortDecodeKeys;
  const std::vector<GraphSize> sizes = decode_graph_sizes(48, kLong);
  const auto found = [&](GraphSize wanted) {
    const size_t at = find_graph_size(sizes, wanted);
    return at < sizes.size() ? sizes[at] : GraphSize{};
  };
  EXPECT_EQ(found({1, 1}), (GraphSize{1, kShortDecodeKeys}));
  EXPECT_EQ(found({3, kShortDecodeKeys}), (GraphSize{4, kShortDecodeKeys}));
  EXPECT_EQ(found({3, kShortDecodeKeys + 1}), (GraphSize{4, kLong}));
  EXPECT_EQ(found({41, 1}), (GraphSize{48, kLong}));
  EXPECT_EQ(found({49, 1}), GraphSize{});
  EXPECT_EQ(found({1, kLong + 1}), GraphSize{});
}

class Task4_5_DeviceInputs : public ::testing::TestWithParam<DeviceType> {
 protected:
  // Sends what the batch laid out. 0 rows: as an eager step, else for a graph of so many, and as many
  // sequences.
  void send(int64_t graph_rows = 0, int64_t graph_seqs = 0) {
    const int64_t rows = graph_rows > 0 ? graph_rows : batch.input_ids().dim(0);
    const int64_t seqs = graph_rows > 0 ? graph_seqs : batch.attention().num_seqs;
    upload.begin(ctx, inputs->upload_bytes(batch, rows, seqs));
    if (graph_rows > 0)
      inputs->load_padded(batch, graph_rows, graph_seqs, upload);
    else
      inputs->load(batch, upload);
    upload.send(ctx);
    inputs->unpack(ctx);
    device_synchronize(ctx.device, ctx.stream);
  }
  void SetUp() override {
    ladder::testing::need_device(GetParam());
    if (IsSkipped()) return;
    ctx = GetParam() == DeviceType::cuda ? *ladder::testing::cuda_context() : stream.context();
    inputs = std::make_unique<DeviceInputs>(ctx.device, config);
  }

  // Eagerly sent, everything must be there.
  void expect_equal_to_the_batch() {
    EXPECT_EQ(read<int32_t>(inputs->input_ids()), read<int32_t>(batch.input_ids()));
    EXPECT_EQ(read<int32_t>(inputs->positions()), read<int32_t>(batch.positions()));
    const AttentionMetadata &got = inputs->attention(), &expected = batch.attention();
    EXPECT_EQ(read<int64_t>(got.slot_mapping), read<int64_t>(expected.slot_mapping));
    EXPECT_EQ(read<int32_t>(got.query_start_loc), read<int32_t>(expected.query_start_loc));
    EXPECT_EQ(read<int32_t>(got.seq_lens), read<int32_t>(expected.seq_lens));
    EXPECT_EQ(got.num_seqs, expected.num_seqs);
    EXPECT_EQ(got.num_tokens, expected.num_tokens);
    EXPECT_EQ(got.max_query_len, expected.max_query_len);
    EXPECT_EQ(got.max_seq_len, expected.max_seq_len);
    const auto indices = batch.logits_indices();
    EXPECT_EQ(read<int32_t>(inputs->logits_indices()), std::vector<int32_t>(indices.begin(), indices.end()));
    expect_equal_tables();
  }
  void expect_equal_tables() {
    const auto tables = read<int32_t>(inputs->attention().block_tables);
    const int64_t width = config.max_blocks_per_seq();
    for (size_t i = 0; i < batch.sequences().size(); ++i) {
      const std::vector<int32_t>& table = batch.sequences()[i]->block_table;
      const auto row = tables.begin() + static_cast<std::ptrdiff_t>(i) * width;
      EXPECT_EQ(std::vector<int32_t>(row, row + std::ssize(table)), table) << "row " << i;
    }
  }

  ladder::testing::RecordingStream stream;
  OpContext ctx;
  BatchConfig config = config_of_inputs();
  Batch batch{config, 1000};
  std::unique_ptr<DeviceInputs> inputs;
  StepUpload upload;
};

TEST_P(Task4_5_DeviceInputs, AreWhatTheBatchLaidOutStepAfterStep) {
  Random random;
  SCOPED_TRACE(random.describe());
  std::vector<std::pair<SequenceId, int64_t>> running;  // and how many tokens each has
  SequenceId next_id = 0;
  for (int64_t number = 0; number < 60; ++number) {
    SchedulerOutput step;
    step.step = number;
    // Some leave, so that the rows after them move up.
    std::erase_if(running, [&](const auto& sequence) {
      const bool leaves = sequence.second > 500 || random.integer(0, 9) == 0;
      if (leaves) step.finished.push_back(sequence.first);
      return leaves;
    });
    for (auto& [id, tokens] : running) {
      ContinuedSequence change{id, {}, tokens};
      if (tokens % config.block_size == 0)
        change.new_block_ids.push_back(static_cast<int32_t>(random.integer(0, 999)));
      step.continued.push_back(std::move(change));
      step.scheduled.push_back({id, 1, {}});
      ++step.total_num_tokens;
      ++tokens;
    }
    while (std::ssize(running) < 39 && step.total_num_tokens < 400 && random.integer(0, 3) > 0) {
      NewSequence added;
      added.id = next_id++;
      added.num_prompt_tokens = random.integer(1, 290);
      added.token_ids.assign(static_cast<size_t>(added.num_prompt_tokens), 0);
      for (int32_t& token : added.token_ids) token = static_cast<int32_t>(random.integer(0, 999));
      for (int64_t slots = 0; slots < added.num_prompt_tokens; slots += config.block_size)
        added.block_table.push_back(static_cast<int32_t>(random.integer(0, 999)));
      step.scheduled.push_back({added.id, added.num_prompt_tokens, {}});
      step.total_num_tokens += added.num_prompt_tokens;
      running.push_back({added.id, added.num_prompt_tokens});
      step.new_sequences.push_back(std::move(added));
    }
    if (step.empty()) continue;
    batch.prepare(step);
    send();
    expect_equal_to_the_batch();
    std::vector<int32_t> tokens(batch.sampled_sequences().size());
    std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(number));
    batch.fill(batch.advance(), tokens);
    if (HasFailure()) return;
  }
}

// So many sequences with prompts of three tokens, each with a block of its own, from block 10 on.
SchedulerOutput prompts_of_three(SequenceId sequences) {
  SchedulerOutput step;
  for (SequenceId id = 0; id < sequences; ++id) {
    NewSequence added;
    added.id = id;
    added.token_ids = {1, 2, 3};
    added.num_prompt_tokens = 3;
    added.block_table = {static_cast<int32_t>(10 + id)};
    step.new_sequences.push_back(added);
    step.scheduled.push_back({id, 3, {}});
    step.total_num_tokens += 3;
  }
  return step;
}

TEST_P(Task4_5_DeviceInputs, SpareRowsStandInNoSlotAndPlaceholdersAreFilledOnTheDevice) {
  batch.prepare(prompts_of_three(3));
  send();
  const Tensor sampled = Tensor::from<int32_t>(std::vector<int32_t>{501, 502, 503}, {3});
  inputs->sampled_ids(3).copy_from(sampled, ctx.stream);
  batch.advance();

  SchedulerOutput next;
  next.step = 1;
  for (const SequenceId id : {2, 0, 1}) {
    next.continued.push_back({id, {}, 3});
    next.scheduled.push_back({id, 1, {}});
  }
  next.total_num_tokens = 3;
  batch.prepare(next);
  send(8, 8);
  inputs->view_padded(8, 8, 1, config.max_model_len);
  EXPECT_EQ(first(read<int32_t>(inputs->input_ids()), 3), (std::vector<int32_t>{503, 501, 502}));
  const AttentionMetadata& got = inputs->attention();
  EXPECT_EQ(read<int32_t>(got.query_start_loc), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(read<int32_t>(got.seq_lens), (std::vector<int32_t>{4, 4, 4, 0, 0, 0, 0, 0}));
  EXPECT_EQ(read<int64_t>(got.slot_mapping), (std::vector<int64_t>{51, 43, 47, -1, -1, -1, -1, -1}));
  EXPECT_EQ(first(read<int32_t>(inputs->positions()), 4), (std::vector<int32_t>{3, 3, 3, 0}));
  expect_equal_tables();
}

TEST_P(Task4_5_DeviceInputs, SpareSequencesHaveNoKeysAndTakeNoMoreRowsThanAreSpare) {
  batch.prepare(prompts_of_three(2));
  send(8, 6);
  inputs->view_padded(8, 6, 8, config.max_model_len);
  const AttentionMetadata& got = inputs->attention();
  EXPECT_EQ(read<int32_t>(got.query_start_loc), (std::vector<int32_t>{0, 3, 6, 7, 8, 8, 8}));
  EXPECT_EQ(read<int32_t>(got.seq_lens), (std::vector<int32_t>{3, 3, 0, 0, 0, 0}));
  EXPECT_EQ(read<int64_t>(got.slot_mapping), (std::vector<int64_t>{40, 41, 42, 44, 45, 46, -1, -1}));
  EXPECT_EQ(read<int32_t>(inputs->logits_indices()), (std::vector<int32_t>{2, 5}));
  EXPECT_EQ(got.num_seqs, 6);
  EXPECT_EQ(got.num_tokens, 8);
  EXPECT_EQ(got.max_query_len, 8);
}

// The captured graph's table must have room for the block of a token that is sampled last (nano-vllm PR 258).
TEST_P(Task4_5_DeviceInputs, ATableMayHaveOneBlockMoreThanTheLongestSequenceFills) {
  NewSequence added;
  added.id = 0;
  added.num_prompt_tokens = config.max_model_len;
  added.token_ids.assign(static_cast<size_t>(config.max_model_len), 5);
  added.block_table.resize(static_cast<size_t>(config.max_blocks_per_seq()));
  std::iota(added.block_table.begin(), added.block_table.end(), 100);
  SchedulerOutput step;
  step.new_sequences = {added};
  step.scheduled = {{0, config.max_model_len, {}}};
  step.total_num_tokens = config.max_model_len;
  batch.prepare(step);
  send();
  expect_equal_to_the_batch();
}

INSTANTIATE_TEST_SUITE_P(Devices, Task4_5_DeviceInputs, ::testing::Values(DeviceType::fake, DeviceType::cuda),
                         [](const auto& info) { return info.param == DeviceType::fake ? "fake" : "cuda"; });

}  // namespace
}  // namespace ladder
