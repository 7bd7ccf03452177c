// Task 1.4: collectives of ranks that are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/distributed/local_group.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Random;

const OpContext kContext;

// Calls fn(rank, group) on every rank.
void on_each(int size, const std::function<void(int rank, Communicator& group)>& fn) {
  run_ranks(size, [&](int rank, const ParallelContext& parallel) { fn(rank, *parallel.tp); });
}

// What every rank's call failed with, "" where it did not. The ranks catch, so that the group does not fail as a whole.
std::vector<std::string> errors_of(int size, const std::function<void(int rank, Communicator& group)>& fn) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  on_each(size, [&](int rank, Communicator& group) {
    try {
      fn(rank, group);
    } catch (const Error& error) {
      errors[static_cast<size_t>(rank)] = error.what();
    }
  });
  return errors;
}

Tensor full(const Shape& shape, float value) {
  Tensor tensor = Tensor::empty(shape, DType::f32);
  for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] = value;
  return tensor;
}

TEST(Task1_4_Communicator, AGroupOfOneCopies) {
  Communicator& one = single_rank();
  EXPECT_EQ(one.rank(), 0);
  EXPECT_EQ(one.size(), 1);
  Tensor in = full({2, 3}, 4), out = testing::poisoned({2, 3}, DType::f32);
  one.all_gather(kContext, in, out);
  EXPECT_TRUE(testing::bitwise_equal(in, out));
  out = testing::poisoned({2, 3}, DType::f32);
  one.reduce_scatter(kContext, in, out);
  EXPECT_TRUE(testing::bitwise_equal(in, out));
  one.all_reduce(kContext, out);
  one.broadcast(kContext, out, 0);
  one.barrier(kContext);
  EXPECT_TRUE(testing::bitwise_equal(in, out));
  EXPECT_THROW(one.send(kContext, in, 0), Error);
}

TEST(Task1_4_LocalGroup, AllReduceGivesEveryRankTheSameBitsInRankOrder) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (int size : {1, 2, 3, 4})
      for (int64_t count : {0, 1, 3, 1000}) {
        std::vector<Tensor> inputs;
        for (int r = 0; r < size; ++r) inputs.push_back(random.normal({count}, dtype));
        Tensor expected = Tensor::empty({count}, dtype);
        with_float_type(dtype, "test", [&](auto tag) {
          using T = decltype(tag);
          for (int64_t i = 0; i < count; ++i) {
            float sum = 0;
            for (const Tensor& input : inputs) sum += static_cast<float>(input.data<T>()[i]);
            expected.data<T>()[i] = T(sum);
          }
        });
        on_each(size, [&](int rank, Communicator& group) {
          Tensor mine = inputs[static_cast<size_t>(rank)].clone();
          group.all_reduce(kContext, mine);
          EXPECT_TRUE(testing::bitwise_equal(mine, expected));
        });
      }
}

TEST(Task1_4_LocalGroup, GatherAndBroadcastMoveTheRightRows) {
  for (int size : {1, 2, 4})
    on_each(size, [&](int rank, Communicator& group) {
      const auto r = static_cast<float>(rank);
      Tensor gathered = testing::poisoned({size * 2, 3}, DType::f32);
      group.all_gather(kContext, full({2, 3}, r + 1), gathered);
      for (int64_t i = 0; i < size * 2; ++i)
        for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(gathered.at<float>({i, j}), static_cast<float>(i / 2 + 1));

      for (int root = 0; root < size; ++root) {
        Tensor value = full({5}, r);
        group.broadcast(kContext, value, root);
        EXPECT_THAT(testing::to_double(value), Each(root));
      }
    });
}

TEST(Task1_4_LocalGroup, OnlyTheRootGathers) {
  for (int size : {2, 3})
    on_each(size, [size](int rank, Communicator& group) {
      for (int root = 0; root < size; ++root) {
        const Tensor mine = full({1, 2}, static_cast<float>(10 + rank));
        const Tensor all = testing::poisoned({size, 2}, DType::f32), not_looked_at = full({5}, -1);
        group.gather(kContext, mine, rank == root ? all : root == 1 ? Tensor() : not_looked_at, root);
        EXPECT_THAT(testing::to_double(not_looked_at), Each(-1));
        if (rank != root) continue;
        for (int from = 0; from < size; ++from)
          EXPECT_THAT(testing::to_double(all.narrow(0, from, 1)), Each(10 + from))
              << "rank " << from << "'s part";
      }
    });
}

TEST(Task1_4_Exchange, ReduceScatterGivesEachRankItsPartOfTheSum) {
  for (int size : {1, 2, 4})
    on_each(size, [&](int rank, Communicator& group) {
      const auto r = static_cast<float>(rank);
      Tensor parts = Tensor::empty({size, 2}, DType::f32), mine = testing::poisoned({1, 2}, DType::f32);
      for (int64_t i = 0; i < size * 2; ++i) parts.data<float>()[i] = static_cast<float>(i) + 10 * r;
      group.reduce_scatter(kContext, parts, mine);
      const int others = 10 * size * (size - 1) / 2;  // the sum of 10 * rank
      for (int64_t j = 0; j < 2; ++j)
        EXPECT_EQ(mine.at<float>({0, j}), static_cast<float>(size * (rank * 2 + j) + others));
    });
}

TEST(Task1_4_Exchange, AllToAllSendsEachRankItsRowsInRankOrder) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int size : {1, 2, 4}) {
    std::vector<std::vector<int64_t>> counts(static_cast<size_t>(size));
    for (auto& row : counts)
      for (int r = 0; r < size; ++r) row.push_back(random.integer(0, 3));  // zero rows, too
    on_each(size, [&](int rank, Communicator& group) {
      const auto& send = counts[static_cast<size_t>(rank)];
      std::vector<int64_t> recv;
      for (const auto& row : counts) recv.push_back(row[static_cast<size_t>(rank)]);
      Tensor in = Tensor::empty({std::reduce(send.begin(), send.end()), 2}, DType::i32);
      Tensor out = Tensor::empty({std::reduce(recv.begin(), recv.end()), 2}, DType::i32);
      int64_t row = 0;
      for (int to = 0; to < size; ++to)
        for (int64_t i = 0; i < send[static_cast<size_t>(to)]; ++i, ++row)
          for (int64_t j = 0; j < 2; ++j)
            in.at<int32_t>({row, j}) = static_cast<int32_t>(1000 * rank + 100 * to + 10 * i + j);
      group.all_to_all(kContext, in, send, out, recv);
      row = 0;
      for (int from = 0; from < size; ++from)
        for (int64_t i = 0; i < recv[static_cast<size_t>(from)]; ++i, ++row)
          for (int64_t j = 0; j < 2; ++j)
            EXPECT_EQ(out.at<int32_t>({row, j}), 1000 * from + 100 * rank + 10 * i + j);
    });
  }
}

TEST(Task1_4_Exchange, SendAndReceiveKeepTheirOrderAndDoNotDeadlock) {
  on_each(4, [](int rank, Communicator& group) {
    const int next = (rank + 1) % 4, previous = (rank + 3) % 4;
    for (int i = 0; i < 3; ++i) group.send(kContext, full({2}, static_cast<float>(10 * rank + i)), next);
    for (int i = 0; i < 3; ++i) {
      Tensor value = testing::poisoned({2}, DType::f32);
      group.recv(kContext, value, previous);
      EXPECT_THAT(testing::to_double(value), Each(10 * previous + i));
    }
  });
}

TEST(Task1_4_Exchange, WhatWasSentIsNoLongerTheSenders) {
  on_each(2, [](int rank, Communicator& group) {
    Tensor value = full({2}, 5);
    if (rank == 0) {
      group.send(kContext, value, 1);
      value.fill_bytes(0);
    }
    group.barrier(kContext);
    if (rank == 0) return;
    value.fill_bytes(0xff);
    group.recv(kContext, value, 0);
    EXPECT_THAT(testing::to_double(value), Each(5));
  });
}

TEST(Task1_4_LocalGroup, ManyCallsInARowDoNotMixUp) {
  on_each(3, [](int rank, Communicator& group) {
    for (int i = 0; i < 300; ++i) {
      Tensor value = full({7}, static_cast<float>(rank * i));
      group.all_reduce(kContext, value);
      ASSERT_THAT(testing::to_double(value), Each(3 * i));
      if (i % 3 == rank) std::this_thread::yield();
    }
  });
}

TEST(Task1_4_LocalGroup, RanksThatDisagreeAllGetAnError) {
  // Sizes.
  auto errors = errors_of(
      3, [](int rank, Communicator& group) { group.all_reduce(kContext, full({rank == 1 ? 5 : 4}, 1)); });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("all_reduce"), HasSubstr("[4]"), HasSubstr("[5]"))));
  // Dtypes, also such as cannot be summed.
  errors = errors_of(2, [](int rank, Communicator& group) {
    group.all_reduce(kContext, Tensor::zeros({4}, rank == 1 ? DType::bf16 : DType::f32));
  });
  EXPECT_THAT(errors, Each(HasSubstr("all_reduce")));
  errors = errors_of(
      2, [](int, Communicator& group) { group.all_reduce(kContext, Tensor::zeros({4}, DType::i32)); });
  EXPECT_THAT(errors, Each(HasSubstr("all_reduce")));
  // Another collective.
  errors = errors_of(2, [](int rank, Communicator& group) {
    rank == 0 ? group.barrier(kContext) : group.all_reduce(kContext, full({1}, 1));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("barrier"), HasSubstr("all_reduce"))));
  // Outputs that cannot take the ranks' inputs; a root that is not there; a window with gaps.
  errors =
      errors_of(2, [](int, Communicator& group) { group.all_gather(kContext, full({2}, 1), full({3}, 1)); });
  EXPECT_THAT(errors, Each(HasSubstr("all_gather")));
  for (const Tensor& output :
       {full({3}, 1), Tensor::zeros({4}, DType::bf16), full({2, 4}, 1).narrow(1, 0, 2), Tensor()}) {
    errors = errors_of(2, [&](int rank, Communicator& group) {
      group.gather(kContext, full({2}, 1), rank == 1 ? output : full({4}, 1), 1);
    });
    EXPECT_THAT(errors, Each(HasSubstr("gather")));
  }
  errors = errors_of(2, [](int, Communicator& group) { group.broadcast(kContext, full({2}, 1), 2); });
  EXPECT_THAT(errors, Each(HasSubstr("no rank 2")));
  errors =
      errors_of(2, [](int, Communicator& group) { group.gather(kContext, full({2}, 1), full({4}, 1), 2); });
  EXPECT_THAT(errors, Each(HasSubstr("no rank 2")));
  errors = errors_of(2, [](int rank, Communicator& group) {
    group.all_reduce(kContext, rank == 0 ? full({2, 2}, 1) : full({2, 4}, 1).narrow(1, 0, 2));
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 1")));
}

TEST(Task1_4_Exchange, RanksWhoseCountsDisagreeAllGetAnError) {
  // Counts: each rank means to receive one row more than the other sends.
  auto errors = errors_of(2, [](int, Communicator& group) {
    const std::vector<int64_t> send = {1, 1}, recv = {2, 2};
    group.all_to_all(kContext, full({2, 1}, 1), send, full({4, 1}, 1), recv);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("all_to_all"), HasSubstr("expects 2"))));
  errors = errors_of(2, [](int, Communicator& group) {
    const std::vector<int64_t> counts = {-1, 3};
    group.all_to_all(kContext, full({2, 1}, 1), counts, full({2, 1}, 1), counts);
  });
  EXPECT_THAT(errors, Each(HasSubstr("counts do not fit")));
  errors = errors_of(
      2, [](int, Communicator& group) { group.reduce_scatter(kContext, full({3}, 1), full({2}, 1)); });
  EXPECT_THAT(errors, Each(HasSubstr("reduce_scatter")));
}

TEST(Task1_4_LocalGroup, AfterADisagreementTheGroupStillWorks) {
  on_each(2, [](int rank, Communicator& group) {
    EXPECT_THROW(group.all_reduce(kContext, full({rank + 1}, 1)), Error);
    Tensor value = full({3}, 1);
    group.all_reduce(kContext, value);
    EXPECT_THAT(testing::to_double(value), Each(2));
  });
}

// After one call of all four, `culprit` throws; each of the others is released from `call` with the reason.
void expect_released(int culprit, const std::function<void(int rank, Communicator& group)>& call) {
  std::atomic<int> released = 0;
  try {
    on_each(4, [&](int rank, Communicator& group) {
      Tensor value = full({8}, 1);
      group.all_reduce(kContext, value);
      if (rank == culprit) throw std::runtime_error("the disk is on fire");
      try {
        call(rank, group);
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {} failed: the disk is on fire", culprit)));
        EXPECT_THROW(group.barrier(kContext), Error);  // and so does every later call
        ++released;
        throw;
      }
    });
    ADD_FAILURE() << "the exception was lost";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the disk is on fire");  // the cause, not what followed from it
  }
  EXPECT_EQ(released, 3);
}

TEST(Task1_4_LocalGroup, ARankThatThrowsReleasesItsPeers) {
  for (int culprit : {0, 2, 3})
    expect_released(culprit, [](int, Communicator& group) { group.all_reduce(kContext, full({8}, 1)); });
}

TEST(Task1_4_Exchange, ARankThatThrowsReleasesWhoReceives) {
  for (int culprit : {0, 2, 3})
    expect_released(culprit, [culprit](int rank, Communicator& group) {
      const Tensor value = full({8}, 1);
      rank == 1 ? group.recv(kContext, value, culprit) : group.barrier(kContext);
    });
}

TEST(Task1_4_Exchange, ARankThatReturnsEarlyReleasesWhoNeedsItAndNobodyElse) {
  const auto errors = errors_of(3, [](int rank, Communicator& group) {
    if (rank == 0) return;
    // The other two can still talk to each other ...
    Tensor value = full({2}, static_cast<float>(rank));
    group.send(kContext, value, 3 - rank);
    group.recv(kContext, value, 3 - rank);
    EXPECT_THAT(testing::to_double(value), Each(3 - rank));
    // ... but not meet all three.
    group.barrier(kContext);
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_THAT(errors[1], HasSubstr("rank 0 has left"));
  EXPECT_THAT(errors[2], HasSubstr("rank 0 has left"));
}

TEST(Task1_4_Exchange, AMismatchedMessageIsAnErrorOnBothSides) {
  const auto errors = errors_of(2, [](int rank, Communicator& group) {
    Tensor value = full({rank == 0 ? 3 : 4}, 1);
    if (rank == 0) {
      group.send(kContext, value, 1);
      group.recv(kContext, value, 1);  // waits for what will never come
    } else {
      group.recv(kContext, value, 0);
    }
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("[3]"), HasSubstr("[4]"))));
}

TEST(Task1_4_LocalGroup, RefusesRanksThatAreNotThere) {
  EXPECT_THROW(LocalGroup(0), Error);
  LocalGroup group(2);
  EXPECT_THROW(group.rank(2), Error);
  EXPECT_THROW(group.rank(-1), Error);
}

TEST(Task1_4_Exchange, RefusesPeersThatAreNotThere) {
  LocalGroup group(2);
  EXPECT_THROW(group.rank(0).send(kContext, full({1}, 1), 0), Error);
  EXPECT_THROW(group.rank(0).recv(kContext, full({1}, 1), 7), Error);
}

}  // namespace
}  // namespace ladder
