#include "tests/step7_parallel/communicators/collective_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <thread>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"

namespace ladder::testing {
namespace {

const OpContext kContext;

void expect(bool holds, std::string_view what) {
  LADDER_CHECK(holds, "wrong: {}", what);
}
void expect(const ::testing::AssertionResult& result, const std::string& what) {
  LADDER_CHECK(static_cast<bool>(result), "wrong: {}: {}", what, result.message());
}

// Inputs of all ranks, which each of them makes.
std::vector<Tensor> inputs_of_all(int size, const std::function<Tensor(int rank)>& make) {
  std::vector<Tensor> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(make(rank));
  return inputs;
}

std::vector<double> sum_in_double(const std::vector<Tensor>& inputs) {
  std::vector<double> sum = to_double(inputs[0]);
  for (size_t r = 1; r < inputs.size(); ++r) {
    const std::vector<double> values = to_double(inputs[r]);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

// In f32, in rank order, rounded once.
Tensor sum_in_rank_order(const std::vector<Tensor>& inputs) {
  Tensor sum = Tensor::empty(inputs[0].shape(), inputs[0].dtype());
  with_float_type(sum.dtype(), "sum", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t i = 0; i < sum.numel(); ++i) {
      float value = 0;
      for (const Tensor& input : inputs) value += static_cast<float>(input.data<T>()[i]);
      sum.data<T>()[i] = T(value);
    }
  });
  return sum;
}

// Odd sizes, none, one; above what one staging area takes in f32 (and so two of any other dtype).
const std::vector<int64_t> kSizes = {0, 1, 2, 3, 7, 64, 1000, 4097, 70001, 300007};

void all_reduce_sums_in_rank_order(Communicator& group, uint64_t seed) {
  Random random(seed);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t size : kSizes) {
      const auto inputs = inputs_of_all(group.size(), [&](int) { return random.normal({size}, dtype, 10); });
      const Tensor mine = inputs[static_cast<size_t>(group.rank())].clone();
      group.all_reduce(kContext, mine);
      expect(bitwise_equal(mine, sum_in_rank_order(inputs)), fmt::format("all_reduce of {}", mine.str()));
      // Sums of several cancel: what an element is worth is judged by the whole.
      if (size >= 1000)
        expect(close_to(mine, sum_in_double(inputs)), fmt::format("all_reduce of {} in double", mine.str()));
    }
}

void sums_of_integers_are_exact(Communicator& group, uint64_t seed) {
  Random random(seed);
  const int64_t ranks = group.size();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t size : {1, 5, 1001, 70001}) {
      const auto inputs = inputs_of_all(group.size(), [&](int) {
        return random.exact({ranks, size}, dtype);
      });
      const std::vector<double> sum = sum_in_double(inputs);
      const Tensor& mine = inputs[static_cast<size_t>(group.rank())];
      const Tensor part = poisoned({size}, dtype);
      group.reduce_scatter(kContext, mine, part);
      const auto first = sum.begin() + group.rank() * size;
      expect(to_double(part) == std::vector<double>(first, first + size), "reduce_scatter of integers");
      group.all_reduce(kContext, mine);
      expect(to_double(mine) == sum, "all_reduce of integers");
    }
}

void reduce_scatter_sums_in_rank_order(Communicator& group, uint64_t seed) {
  Random random(seed);
  const int64_t ranks = group.size();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t size : kSizes) {
      const auto inputs = inputs_of_all(group.size(), [&](int) {
        return random.normal({ranks, size}, dtype, 10);
      });
      const Tensor part = poisoned({1, size}, dtype);
      group.reduce_scatter(kContext, inputs[static_cast<size_t>(group.rank())], part);
      const Tensor expected = sum_in_rank_order(inputs).narrow(0, group.rank(), 1);
      expect(bitwise_equal(part, expected), fmt::format("reduce_scatter to {}", part.str()));
    }
}

void rows_come_from_every_rank(Communicator& group, uint64_t seed) {
  Random random(seed);
  const int64_t ranks = group.size();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t rows : {0, 1, 3, 1111}) {
      const int64_t columns = random.one_of<int64_t>({1, 3, 257});
      const auto inputs = inputs_of_all(group.size(), [&](int) {
        return random.normal({rows, columns}, dtype);
      });
      const Tensor& mine = inputs[static_cast<size_t>(group.rank())];
      const Tensor all = poisoned({ranks * rows, columns}, dtype);
      group.all_gather(kContext, mine, all);
      for (int rank = 0; rank < group.size(); ++rank)
        expect(bitwise_equal(all.narrow(0, rank * rows, rows), inputs[static_cast<size_t>(rank)]),
               fmt::format("all_gather of {}, rank {}'s part", mine.str(), rank));
      for (int root = 0; root < group.size(); ++root) {
        const Tensor value = mine.clone();
        group.broadcast(kContext, value, root);
        expect(bitwise_equal(value, inputs[static_cast<size_t>(root)]),
               fmt::format("broadcast of {} by {}", value.str(), root));
        const Tensor gathered = poisoned({ranks * rows, columns}, dtype);
        group.gather(kContext, mine, gathered, root);
        if (group.rank() == root) expect(bitwise_equal(gathered, all), "gather");
      }
    }
}

void rows_go_to_where_their_counts_say(Communicator& group, uint64_t seed) {
  Random random(seed);
  const auto ranks = static_cast<size_t>(group.size()), me = static_cast<size_t>(group.rank());
  for (const int64_t most : {0, 1, 3, 40000}) {  // of which the last need many rounds
    const int64_t columns = random.one_of<int64_t>({1, 2, 9});
    std::vector<std::vector<int64_t>> counts(ranks, std::vector<int64_t>(ranks));
    for (auto& row : counts)
      for (int64_t& count : row) count = random.integer(0, 2) == 0 ? 0 : random.integer(0, most);
    std::vector<int64_t> recv;
    for (const auto& row : counts) recv.push_back(row[me]);
    const auto total = [](const std::vector<int64_t>& values) {
      return std::accumulate(values.begin(), values.end(), int64_t{0});
    };
    const auto value = [&](size_t from, size_t to, int64_t row, int64_t column) {
      return static_cast<int32_t>((from * ranks + to) * 10'000'000) +
             static_cast<int32_t>(row * columns + column);
    };
    const Tensor in = Tensor::empty({total(counts[me]), columns}, DType::i32);
    const Tensor out = poisoned({total(recv), columns}, DType::i32);
    int32_t* at = in.data<int32_t>();
    for (size_t to = 0; to < ranks; ++to)
      for (int64_t row = 0; row < counts[me][to]; ++row)
        for (int64_t column = 0; column < columns; ++column) *at++ = value(me, to, row, column);
    group.all_to_all(kContext, in, counts[me], out, recv);
    at = out.data<int32_t>();
    for (size_t from = 0; from < ranks; ++from)
      for (int64_t row = 0; row < recv[from]; ++row)
        for (int64_t column = 0; column < columns; ++column)
          expect(*at++ == value(from, me, row, column),
                 fmt::format("all_to_all: row {} of rank {} at rank {}", row, from, me));
  }
}

// To the next and from the one before; nobody receives before all have sent, and none of it disturbs a collective.
void messages_keep_their_order(Communicator& group, uint64_t seed) {
  if (group.size() == 1) return;
  Random random(seed);
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  const auto text = [](int from, int number, const Shape& shape) {
    const Tensor tensor = Tensor::empty(shape, DType::f32);
    for (int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data<float>()[i] = static_cast<float>(1000 * from + 100 * number) + static_cast<float>(i % 97);
    return tensor;
  };
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<Shape> shapes = {{0, 3}, {}, {1, 1}, {5, 7}};
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Tensor message = text(group.rank(), static_cast<int>(i), shapes[i]);
      group.send(kContext, message, next);
      message.fill_bytes(0xff);  // it is the receiver's now
      const Tensor one = Tensor::from<float>(std::vector<float>{1}, {1});
      group.all_reduce(kContext, one);
      expect(one.data<float>()[0] == static_cast<float>(group.size()), "a sum between messages");
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Tensor message = poisoned(shapes[i], DType::f32);
      group.recv(kContext, message, previous);
      expect(bitwise_equal(message, text(previous, static_cast<int>(i), shapes[i])), "a message");
    }
  }
  // Longer than anything between them holds: down the line, as in a pipeline.
  const Shape large = {1001, 1003};
  for (int number = 0; number < 3; ++number) {
    const Tensor message = poisoned(large, DType::f32);
    if (group.rank() > 0) {
      group.recv(kContext, message, previous);
      expect(bitwise_equal(message, text(0, number, large)), "a long message");
    }
    if (group.rank() == 0) message.copy_from(text(0, number, large));
    if (next != 0) group.send(kContext, message, next);
  }
}

// A window of whole rows is in place, and nothing around it is touched; messages may be of windows with gaps.
void windows_are_used_in_place(Communicator& group, uint64_t seed) {
  Random random(seed);
  const auto inputs = inputs_of_all(group.size(), [&](int) { return random.exact({9, 13}, DType::f32); });
  const Tensor& mine = inputs[static_cast<size_t>(group.rank())];
  const Tensor whole = mine.clone();
  group.all_reduce(kContext, whole.narrow(0, 2, 4));
  std::vector<Tensor> windows;
  for (const Tensor& input : inputs) windows.push_back(input.narrow(0, 2, 4));
  expect(bitwise_equal(whole.narrow(0, 2, 4), sum_in_rank_order(windows)), "all_reduce of a window");
  expect(bitwise_equal(whole.narrow(0, 0, 2), mine.narrow(0, 0, 2)), "what stands before a window");
  expect(bitwise_equal(whole.narrow(0, 6, 3), mine.narrow(0, 6, 3)), "what stands behind a window");
  if (group.size() == 1) return;
  if (group.rank() == 0) group.send(kContext, mine.narrow(1, 3, 5), 1);
  if (group.rank() == 1) {
    const Tensor into = mine.clone();
    group.recv(kContext, into.narrow(1, 1, 5), 0);
    expect(bitwise_equal(into.narrow(1, 1, 5).clone(), inputs[0].narrow(1, 3, 5).clone()),
           "a window's message");
    expect(bitwise_equal(into.narrow(1, 6, 7).clone(), mine.narrow(1, 6, 7).clone()),
           "what stands beside it");
  }
}

// One random call that all ranks make, and its result checked. Integers, so that sums are exact.
void random_call(Communicator& group, Random& random) {
  const int ranks = group.size(), me = group.rank();
  const int64_t rows = random.one_of<int64_t>({0, 1, 2, 3, 5, 17, 64}), columns = random.integer(1, 40);
  const DType dtype = random.one_of<DType>({DType::f32, DType::bf16, DType::f16});
  const int root = static_cast<int>(random.integer(0, ranks - 1));
  const auto values = [&](int rank, int64_t count) {  // small integers, known of every rank
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i)
      values.push_back(static_cast<float>((rank * 7 + i * 3 + rows) % 11) - 5);
    return values;
  };
  const auto tensor = [&](int rank, const Shape& shape) {
    return Tensor::from<float>(values(rank, shape.numel()), shape).to(dtype);
  };
  const auto sum = [&](const Shape& shape) {
    return sum_in_rank_order(inputs_of_all(ranks, [&](int rank) { return tensor(rank, shape); }));
  };
  switch (random.integer(0, 6)) {
    case 0: {
      const Tensor mine = tensor(me, {rows, columns});
      group.all_reduce(kContext, mine);
      return expect(bitwise_equal(mine, sum({rows, columns})), "all_reduce");
    }
    case 1: {
      const Tensor out = poisoned({ranks * rows, columns}, dtype);
      group.all_gather(kContext, tensor(me, {rows, columns}), out);
      for (int rank = 0; rank < ranks; ++rank)
        expect(bitwise_equal(out.narrow(0, rank * rows, rows), tensor(rank, {rows, columns})), "all_gather");
      return;
    }
    case 2: {
      const Tensor out = poisoned({rows, columns}, dtype);
      group.reduce_scatter(kContext, tensor(me, {ranks * rows, columns}), out);
      return expect(bitwise_equal(out, sum({ranks * rows, columns}).narrow(0, me * rows, rows)),
                    "reduce_scatter");
    }
    case 3: {
      const Tensor value = tensor(me, {rows, columns});
      group.broadcast(kContext, value, root);
      return expect(bitwise_equal(value, tensor(root, {rows, columns})), "broadcast");
    }
    case 4: {  // rank r gives each rank `rows` rows
      const std::vector<int64_t> counts(static_cast<size_t>(ranks), rows);
      const Tensor out = poisoned({ranks * rows, columns}, dtype);
      group.all_to_all(kContext, tensor(me, {ranks * rows, columns}), counts, out, counts);
      for (int rank = 0; rank < ranks; ++rank)
        expect(bitwise_equal(out.narrow(0, rank * rows, rows),
                             tensor(rank, {ranks * rows, columns}).narrow(0, me * rows, rows)),
               "all_to_all");
      return;
    }
    case 5: {
      const int to = (root + 1) % ranks;
      if (me == root && to != root) group.send(kContext, tensor(root, {rows, columns}), to);
      if (me != to || to == root) return;
      const Tensor out = poisoned({rows, columns}, dtype);
      group.recv(kContext, out, root);
      return expect(bitwise_equal(out, tensor(root, {rows, columns})), "a message");
    }
    default:
      return group.barrier(kContext);
  }
}

void random_calls(Communicator& group, uint64_t seed, int count) {
  Random random(seed);                                                 // of all ranks
  Random delays(seed * 31 + static_cast<uint64_t>(group.rank()) + 1);  // of this one
  for (int call = 0; call < count; ++call) {
    if (delays.integer(0, 60) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(delays.integer(0, 300)));
    try {
      random_call(group, random);
    } catch (const Error& error) {
      fail("call {}: {}", call, error.what());
    }
  }
}

void ten_thousand_random_calls(Communicator& group, uint64_t seed) {
  random_calls(group, seed, 10'000);
}

// Every rank gets the same error, which names the call and what differs; and the next call is as if nothing had been.
void disagreements_are_the_same_error_everywhere(Communicator& group, uint64_t) {
  if (group.size() == 1) return;
  const int me = group.rank(), last = group.size() - 1;
  const auto zeros = [](const Shape& shape, DType dtype = DType::f32) { return Tensor::zeros(shape, dtype); };
  const auto fails = [&](std::initializer_list<std::string_view> names, const std::function<void()>& call) {
    std::string text;
    try {
      call();
    } catch (const Error& error) {
      text = error.what();
    }
    for (const std::string_view name : names)
      LADDER_CHECK(text.find(name) != std::string::npos, "wrong: \"{}\" does not name {}", text, name);
    const Tensor one = Tensor::from<float>(std::vector<float>(3, 1), {3});
    group.all_reduce(kContext, one);
    expect(to_double(one) == std::vector<double>(3, group.size()), "a sum after a disagreement");
  };
  fails({"all_reduce", "[4]", "[5]", fmt::format("rank {}", last)},
        [&] { group.all_reduce(kContext, zeros({me == last ? 5 : 4})); });
  fails({"all_reduce", "f32", "bf16"},
        [&] { group.all_reduce(kContext, zeros({4}, me == last ? DType::bf16 : DType::f32)); });
  fails({"all_reduce", "i32"}, [&] { group.all_reduce(kContext, zeros({4}, DType::i32)); });
  fails({"barrier", "all_reduce"},
        [&] { me == 0 ? group.barrier(kContext) : group.all_reduce(kContext, zeros({9})); });
  fails({"all_gather", "[2]", "[1]"}, [&] { group.all_gather(kContext, zeros({2}), zeros({1})); });
  fails({"reduce_scatter"}, [&] { group.reduce_scatter(kContext, zeros({1}), zeros({2})); });
  fails({"broadcast", "as root", fmt::format("rank {} rank {}", last, last)},
        [&] { group.broadcast(kContext, zeros({2}), me == last ? last : 0); });
  fails({"broadcast", "no rank 77"}, [&] { group.broadcast(kContext, zeros({2}), 77); });
  fails({fmt::format("rank {}", last), "not contiguous"}, [&] {
    group.all_reduce(kContext, me == last ? zeros({2, 4}).narrow(1, 0, 2) : zeros({2, 2}));
  });
  const auto ranks = static_cast<size_t>(group.size());
  fails({"all_to_all", "sends 1", "expects 2"}, [&] {
    const std::vector<int64_t> send(ranks, 1), recv(ranks, 2);
    group.all_to_all(kContext, zeros({group.size(), 1}), send, zeros({2 * group.size(), 1}), recv);
  });
  fails({"all_to_all", "counts do not fit"}, [&] {
    const std::vector<int64_t> counts(ranks + 1, 1);
    group.all_to_all(kContext, zeros({group.size() + 1, 1}), counts, zeros({group.size() + 1, 1}), counts);
  });
}

constexpr CollectiveCase kCases[] = {
    {"all_reduce_sums_in_rank_order", all_reduce_sums_in_rank_order},
    {"sums_of_integers_are_exact", sums_of_integers_are_exact},
    {"reduce_scatter_sums_in_rank_order", reduce_scatter_sums_in_rank_order},
    {"rows_come_from_every_rank", rows_come_from_every_rank},
    {"rows_go_to_where_their_counts_say", rows_go_to_where_their_counts_say},
    {"messages_keep_their_order", messages_keep_their_order},
    {"windows_are_used_in_place", windows_are_used_in_place},
    {"ten_thousand_random_calls", ten_thousand_random_calls},
    {"disagreements_are_the_same_error_everywhere", disagreements_are_the_same_error_everywhere},
};

}  // namespace

std::span<const CollectiveCase> collective_cases() {
  return kCases;
}

const CollectiveCase& collective_case(std::string_view name) {
  for (const CollectiveCase& one : kCases)
    if (one.name == name) return one;
  fail("there is no case {}", name);
}

}  // namespace ladder::testing
