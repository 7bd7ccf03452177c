// Ranks that somebody else has started: here threads, whose groups are those of processes.
#include "step7_parallel/workers/launched_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <thread>

#include "step7_parallel/communicators/shared_memory_group.h"
#include "tests/step7_parallel/workers/worker_program.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::fits;
using testing::Grid;
using ::testing::HasSubstr;
using testing::on_grid;
using testing::same_bits;

constexpr SharedMemoryGroup::Patience kPatience{.timeout = 60s};

// The groups of `size` ranks, made when the first of them asks.
class World {
 public:
  explicit World(int size) : size_(size) {}
  LaunchedWorld of(int rank, Grid grid) {
    LaunchedWorld world;
    world.steps = group(-1, size_).join(rank, kPatience);
    world.calls = group(-2, size_).join(rank, kPatience);
    world.make_group = [this, rank, grid, num_calls = 0](int colour) mutable {
      const bool is_stage = num_calls++ % 2 == 0;
      const int generation = 1000 * ((num_calls - 1) / 2);
      return is_stage ? group(generation + colour, grid.tp).join(rank % grid.tp, kPatience)
                      : group(generation + colour, grid.pp).join(rank / grid.tp, kPatience);
    };
    return world;
  }

 private:
  const SharedMemoryGroup& group(int key, int size) {
    std::lock_guard lock(mutex_);
    const auto found = groups_.find(key);
    return found != groups_.end()
               ? found->second
               : groups_.emplace(key, SharedMemoryGroup::create({.size = size})).first->second;
  }

  int size_;
  std::mutex mutex_;
  std::map<int, SharedMemoryGroup> groups_;
};

ExecutorOptions parts_of(const EngineOptions& options) {
  return executor_options(options, open_model_folder(options.model), {});
}

// `of_rank_0` runs on rank 0, whose engines get their ranks from the others; `options_of(rank)` is what they load. By
// rank: what it threw.
std::vector<std::string> run_world(Grid grid, const std::function<void(LaunchedWorld&)>& of_rank_0,
                                   const std::function<ExecutorOptions(int rank)>& options_of) {
  World world(grid.tp * grid.pp);
  std::vector<std::string> errors(static_cast<size_t>(grid.tp * grid.pp));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < grid.tp * grid.pp; ++rank)
    threads.emplace_back([&, rank] {
      LaunchedWorld mine = world.of(rank, grid);
      try {
        if (rank > 0) return serve_launched_rank([&](const auto&) { return options_of(rank); }, mine);
        of_rank_0(mine);
        dismiss_launched_ranks(mine);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

EngineOptions launched(EngineOptions options, LaunchedWorld& world) {
  options.makers.executor = make_launched_executor({"some", "words"}, world);
  return options;
}

class LaunchedGrids : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(LaunchedGrids, AnswerWhatThreadsOfOneProcessAnswer) {
  const Grid grid{std::get<0>(GetParam()), std::get<1>(GetParam())};
  for (const std::string& name : testing::golden_names(testing::golden_folder())) {
    const auto checkpoint = testing::load_golden(testing::golden_folder() / name);
    const EngineOptions options = on_grid(
        testing::small_options(checkpoint.directory, DeviceType::cpu, checkpoint.max_model_len), grid);
    if (!fits(load_decoder_spec(checkpoint.directory), grid)) continue;
    const std::vector<Request> requests = testing::greedy_requests(checkpoint);
    const auto expected = testing::engine_with(options)->generate(requests);
    const auto errors = run_world(
        grid,
        [&](LaunchedWorld& world) {
          for (int engine = 0; engine < 2; ++engine) {  // one after the other
            const auto outputs = testing::engine_with(launched(options, world))->generate(requests);
            for (size_t i = 0; i < outputs.size(); ++i) EXPECT_TRUE(same_bits(outputs[i], expected[i])) << i;
          }
          EXPECT_FALSE(world.broken);
        },
        [&](int) { return parts_of(options); });
    EXPECT_THAT(errors, ::testing::Each(""));
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, LaunchedGrids,
                         ::testing::Values(std::tuple(2, 1), std::tuple(4, 1), std::tuple(1, 2),
                                           std::tuple(1, 3), std::tuple(1, 4), std::tuple(2, 2)),
                         [](const auto& info) {
                           return fmt::format("tp{}_pp{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const AgreedError& error) {
    return fmt::format("agreed: {}", error.what());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// Whatever is wrong before a step is heard of by all, and the next engine can be tried.
TEST(LaunchedRanks, WhatIsWrongOnOneRankIsTheErrorOfAll) {
  const EngineOptions good =
      on_grid(testing::small_options(testing::tiny_model(), DeviceType::cpu, 64), {2, 1});
  EngineOptions other_files = good, no_files = good, faulty = good;
  other_files.model = testing::golden_folder() / "qwen3_tied";
  no_files.model = "/no/such/folder";
  faulty.makers.model.mlp = [](const OpContext&, int64_t, const DecoderSpec&, DType,
                               const ModelMakers&) -> std::unique_ptr<Mlp> { fail("the disk is on fire"); };
  std::vector<EngineOptions> of_rank_1 = {other_files, no_files, faulty, good};
  size_t next = 0;
  const auto errors = run_world(
      {2, 1},
      [&](LaunchedWorld& world) {
        const auto start = [&] { return error_of([&] { testing::engine_with(launched(good, world)); }); };
        EXPECT_THAT(start(),
                    HasSubstr("agreed: rank 1 of 2: this program and the files of --model are others"));
        EXPECT_THAT(start(),
                    HasSubstr("agreed: rank 1 of 2: --model /no/such/folder: there is no such folder"));
        EXPECT_THAT(start(), HasSubstr("agreed: rank 1 of 2: the disk is on fire"));
        EXPECT_EQ(start(), "no error");
        EngineOptions too_many = on_grid(good, {4, 1});
        EXPECT_EQ(
            error_of([&] { testing::engine_with(launched(too_many, world)); }),
            "2 ranks were started: expected --tensor-parallel-size times --pipeline-parallel-size to be that, it "
            "is 4 times 1");
        EXPECT_FALSE(world.broken);
      },
      [&](int) { return parts_of(of_rank_1[next++]); });
  EXPECT_THAT(errors, ::testing::Each(""));
}

TEST(LaunchedRanks, ArgumentsMustBeTheSame) {
  World world(3);
  std::vector<std::string> errors(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      LaunchedWorld mine = world.of(rank, {3, 1});
      agree_on(mine, "same", "the arguments");
      errors[static_cast<size_t>(rank)] =
          error_of([&] { agree_on(mine, rank == 2 ? "other" : "same", "the arguments"); });
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(errors, ::testing::Each(
                          "agreed: rank 2 of 3: the arguments are others than rank 0's, expected the same on "
                          "all ranks"));
}

// A step that fails on rank 0 leaves the others waiting: whoever has started them must know.
TEST(LaunchedRanks, AStepThatFailsBreaksTheWorld) {
  const EngineOptions good = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
  const auto errors = run_world(
      {1, 1},
      [&](LaunchedWorld& world) {
        const ModelFolder folder = open_model_folder(good.model);
        LaunchedExecutor executor(executor_options(good, folder, resolved_runner_config(good, folder.spec)),
                                  {}, world);
        SchedulerOutput step;
        step.continued.push_back({7, {}, 1});  // nobody has heard of it
        step.scheduled.push_back({7, 1, {}});
        step.total_num_tokens = 1;
        EXPECT_THAT(error_of([&] { executor.submit(step); }), HasSubstr("7"));
        EXPECT_TRUE(world.broken);
        EXPECT_EQ(error_of([&] { executor.submit(step); }), "the ranks have failed");
      },
      [&](int) { return parts_of(good); });
  EXPECT_EQ(errors[0], "");
}

}  // namespace
}  // namespace ladder
