// Task 7.2: groups of random shapes: sums and messages of random lengths, ranks that dawdle, leave and are missed.
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <thread>

#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/forked_ranks.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using namespace ladder::testing;

constexpr auto kDeadline = 20s;
const OpContext kContext;

GroupMemoryShape random_shape(Random& random, int64_t most_ranks = 5) {
  return {static_cast<int>(random.integer(2, most_ranks)), random.integer(4, 600) * 64,
          random.integer(1, 40) * 64, random.integer(1, 6)};
}

void dawdle(Random& random) {
  if (random.integer(0, 9) == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(random.integer(0, 300)));
}

// What a rank brings to a call: numbers whose sum depends on the order in which they are added.
Tensor brought_by(int rank, uint64_t call, int64_t count, DType dtype) {
  Random random(call * 64 + static_cast<uint64_t>(rank));
  return random.normal({count}, dtype, 10);
}

void check_sum(Communicator& group, uint64_t call, int64_t count, DType dtype) {
  const Tensor mine = brought_by(group.rank(), call, count, dtype);
  group.all_reduce(kContext, mine);
  const Tensor sum = Tensor::empty({count}, dtype);
  std::vector<Tensor> all;
  for (int rank = 0; rank < group.size(); ++rank) all.push_back(brought_by(rank, call, count, dtype));
  with_float_type(dtype, "sum", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t i = 0; i < count; ++i) {
      float value = 0;
      for (const Tensor& one : all) value += static_cast<float>(one.data<T>()[i]);
      sum.data<T>()[i] = T(value);
    }
  });
  LADDER_CHECK(bitwise_equal(mine, sum), "all_reduce of {} has other bits than the sum in rank order",
               mine.str());
}

void check_message(Communicator& group, uint64_t call, int64_t rows, int from, int to) {
  const Tensor message = brought_by(from, call, rows * 6, DType::f32).view({rows, 6});
  if (group.rank() == from) group.send(kContext, message.narrow(1, 1, 4), to);
  if (group.rank() != to) return;
  const Tensor into = poisoned({rows, 9}, DType::f32), untouched = into.clone();
  group.recv(kContext, into.narrow(1, 3, 4), from);
  LADDER_CHECK(bitwise_equal(into.narrow(1, 3, 4).clone(), message.narrow(1, 1, 4).clone()),
               "a message of {}", into.str());
  LADDER_CHECK(bitwise_equal(into.narrow(1, 0, 3).clone(), untouched.narrow(1, 0, 3).clone()) &&
                   bitwise_equal(into.narrow(1, 7, 2).clone(), untouched.narrow(1, 7, 2).clone()),
               "what stands beside a message in {}", into.str());
}

// The same calls on every rank, at its own pace.
void random_calls(Communicator& group, uint64_t seed) {
  Random random(seed), delays(seed + 1 + static_cast<uint64_t>(group.rank()));
  for (uint64_t call = 0; call < 400; ++call) {
    dawdle(delays);
    const DType dtype = random.one_of<DType>({DType::f32, DType::bf16, DType::f16});
    const int64_t count = random.one_of<int64_t>({0, 1, random.integer(2, 300), random.integer(301, 30'000)});
    const int from = static_cast<int>(random.integer(0, group.size() - 1));
    const int to = (from + static_cast<int>(random.integer(1, group.size() - 1))) % group.size();
    if (random.integer(0, 1) == 0)
      check_sum(group, seed + call, count, dtype);
    else
      check_message(group, seed + call, count / 6, from, to);
  }
}

TEST(Hidden7_2_SharedMemory, ProcessesOfAllSpeedsGetTheSame) {
  const uint64_t seed = fresh_seed();
  Random random(seed);
  for (int round = 0; round < 4; ++round) {
    const GroupMemoryShape shape = random_shape(random);
    const std::chrono::microseconds spin(random.integer(0, 1) * 100);
    const auto errors = run_forked_ranks(
        {.shape = shape, .patience = {.timeout = kDeadline, .spin = spin}, .deadline = kDeadline},
        [&](int, Communicator& group) { random_calls(group, seed); });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << shape.size << " ranks, seed " << seed;
    if (HasFailure()) return;
  }
}

TEST(Hidden7_2_SharedMemory, ThreadsGetTheSame) {
  const uint64_t seed = fresh_seed();
  Random random(seed);
  const GroupMemoryShape shape = random_shape(random);
  const SharedMemoryGroup group = SharedMemoryGroup::create(shape);
  std::vector<std::future<std::string>> ranks;
  for (int rank = 0; rank < shape.size; ++rank)
    ranks.push_back(std::async(std::launch::async, [&, rank]() -> std::string {
      try {
        const auto mine = group.join(rank, {.timeout = kDeadline});
        random_calls(*mine, seed);
      } catch (const std::exception& error) {
        group.close(error.what());
        return error.what();
      }
      return "";
    }));
  for (const auto deadline = std::chrono::steady_clock::now() + kDeadline; auto& rank : ranks)
    if (rank.wait_until(deadline) != std::future_status::ready) group.close("not done in time");
  for (auto& rank : ranks) EXPECT_EQ(rank.get(), "") << shape.size << " ranks, seed " << seed;
}

// As many messages as there are slots go out with nobody there to take them, and no more; what a rank sent before it
// left is there.
TEST(Hidden7_2_SharedMemory, AMailboxHoldsAsManyMessagesAsItHasSlots) {
  Random random(fresh_seed());
  for (int round = 0; round < 10; ++round) {
    const GroupMemoryShape shape = random_shape(random, 4);
    const SharedMemoryGroup group = SharedMemoryGroup::create(shape);
    const SharedMemoryGroup::Patience patience{.timeout = 20ms};
    const int from = static_cast<int>(random.integer(0, shape.size - 1));
    const int to = (from + 1) % shape.size;
    auto sender = group.join(from, patience);
    const auto receiver = group.join(to, patience);
    const bool overflows = random.integer(0, 1) == 0;
    for (int64_t i = 0; i < shape.slots; ++i)
      sender->send(kContext, Tensor::from<float>(std::vector<float>{static_cast<float>(i)}, {1}), to);
    const Tensor value = Tensor::zeros({1}, DType::f32);
    if (overflows) {
      EXPECT_THROW(sender->send(kContext, value, to), Error);
      EXPECT_NE(group.closed_because(), "") << "past its time a wait closes the group";
      continue;
    }
    sender.reset();
    for (int64_t i = 0; i < shape.slots; ++i) {
      receiver->recv(kContext, value, from);
      EXPECT_EQ(value.data<float>()[0], static_cast<float>(i));
    }
    EXPECT_THROW(receiver->recv(kContext, value, from), Error);
    EXPECT_THROW(receiver->send(kContext, value, from), Error);
    EXPECT_THROW(receiver->barrier(kContext), Error);
    EXPECT_EQ(group.closed_because(), "") << "the others may still talk to each other";
  }
}

// However often those try who are left: their arrivals do not stand for those of the one that is gone.
TEST(Hidden7_2_SharedMemory, NobodyMeetsWithoutAllOfThem) {
  Random random(fresh_seed());
  GroupMemoryShape shape = random_shape(random);
  shape.size = std::max(shape.size, 3);
  const SharedMemoryGroup group = SharedMemoryGroup::create(shape);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < shape.size; ++rank) ranks.push_back(group.join(rank, {.timeout = kDeadline}));
  std::vector<std::future<void>> meetings;
  for (const auto& rank : ranks)
    meetings.push_back(std::async(std::launch::async, [&rank] {
      for (int i = 0; i < 4; ++i) rank->barrier(kContext);
    }));
  for (auto& meeting : meetings) meeting.get();
  const auto leaver = static_cast<size_t>(random.integer(0, shape.size - 1));
  ranks[leaver].reset();
  for (size_t i = 1; i < ranks.size(); ++i)
    for (int attempt = 0; attempt < shape.size; ++attempt)
      EXPECT_THROW(ranks[(leaver + i) % ranks.size()]->barrier(kContext), Error);
}

// A rank that calls something else: the same error for all, and the next sum is as if nothing had been. A message that
// is not what its receiver takes: an error there, and one for its sender with the same words.
TEST(Hidden7_2_SharedMemory, WhoPartsFromTheOthersIsNoticedByAll) {
  const uint64_t seed = fresh_seed();
  Random random(seed);
  const GroupMemoryShape shape = random_shape(random, 4);
  const auto culprit = static_cast<int>(random.integer(0, shape.size - 1));
  const int64_t count = random.integer(1, 20'000), other = count + random.integer(1, 9);
  const SharedMemoryGroup group = SharedMemoryGroup::create(shape);
  const auto error_of = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const auto live = [&](int rank) {
    const auto mine = group.join(rank, {.timeout = kDeadline});
    std::vector<std::string> said;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensor value = Tensor::zeros({rank == culprit ? other : count}, dtype);
      said.push_back(error_of([&] { mine->all_reduce(kContext, value); }));
      said.push_back(error_of([&] { check_sum(*mine, seed, count, dtype); }));
    }
    mine->barrier(kContext);
    if (rank == culprit) {
      mine->send(kContext, Tensor::zeros({2, 3}, DType::f32), (culprit + 1) % shape.size);
      const Tensor answer = Tensor::zeros({1}, DType::f32);  // which does not come
      said.push_back(error_of([&] { mine->recv(kContext, answer, (culprit + 1) % shape.size); }));
    } else if (rank == (culprit + 1) % shape.size) {
      said.push_back(error_of([&] { mine->recv(kContext, Tensor::zeros({3, 2}, DType::f32), culprit); }));
    }
    return said;
  };
  std::vector<std::future<std::vector<std::string>>> ranks;
  for (int rank = 0; rank < shape.size; ++rank) ranks.push_back(std::async(std::launch::async, live, rank));
  std::vector<std::vector<std::string>> said;
  for (auto& rank : ranks) said.push_back(rank.get());
  for (const auto& one : said)
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(one[i], said[0][i]) << "seed " << seed;
      EXPECT_EQ(one[i] == "no error", i % 2 == 1) << one[i] << ", seed " << seed;
    }
  const std::string problem = said[static_cast<size_t>((culprit + 1) % shape.size)].back();
  EXPECT_NE(problem, "no error");
  EXPECT_NE(said[static_cast<size_t>(culprit)].back().find(problem), std::string::npos)
      << said[static_cast<size_t>(culprit)].back() << ", seed " << seed;
}

}  // namespace
}  // namespace ladder
