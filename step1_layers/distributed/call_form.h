#pragma once
// What the ranks of a group must agree on about a call, and the sums: what every group whose ranks add by themselves
// has in common, be they threads, processes or machines. A form holds no pointers, so it can be sent as its bytes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "step1_layers/core/tensor.h"

namespace ladder {

// A tensor without its elements.
struct TensorForm {
  static TensorForm of(const Tensor& tensor);

  bool defined = false;
  bool is_plain = false;  // contiguous, on the CPU
  DType dtype = DType::f32;
  int32_t ndim = 0;
  std::array<int64_t, Shape::kMaxDims> dims = {};

  bool operator==(const TensorForm& other) const = default;
  Shape shape() const { return Shape(std::span(dims.data(), static_cast<size_t>(ndim))); }
  int64_t numel() const { return shape().numel(); }
  int64_t nbytes() const { return numel() * dtype_size(dtype); }
  int64_t row_elements() const;  // of one index of the first dimension
  std::string str() const;       // "bf16[2, 3]", as Tensor says it
};

struct CallForm {
  std::array<char, 24> name = {};
  TensorForm input = {}, output = {};
  int64_t root = 0;
  bool has_counts = false;  // all_to_all: the ranks' numbers of rows differ
};
static_assert(std::is_trivially_copyable_v<CallForm>);

CallForm call_form(const char* name, const Tensor& input = {}, const Tensor& output = {}, int root = 0,
                   bool has_counts = false);

// The counts of an all_to_all by rank: [rank][peer].
struct CallCounts {
  std::vector<std::vector<int64_t>> send, recv;
};

// Every rank looks at the same forms, by rank, and so comes to the same answer: an Error's text; empty if all is
// well. Do the calls fit together?
std::string disagreement(std::span<const CallForm> calls);
// Does a call on which they agree fit itself: an output that can take the ranks' inputs, a root that is there?
std::string misfit(const CallForm& call, int size);
// The first pair of ranks whose counts do not fit each other or their tensors.
std::string counts_problem(std::span<const CallForm> calls, const CallCounts& counts);

// to[i] = the sum of from[r][i] over the ranks, in float and in rank order, written to all of `to`, which may be
// among `from`. Blocks of a few kilobytes, rank by rank: loops that a compiler makes vectors of.
template <class T>
void reduce_elements(const std::vector<const T*>& from, const std::vector<T*>& to, int64_t count) {
  constexpr int64_t kBlock = 512;
  std::array<float, kBlock> sum;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    sum.fill(0);
    for (const T* values : from)
      for (int64_t i = 0; i < length; ++i)
        sum[static_cast<size_t>(i)] += static_cast<float>(values[begin + i]);
    for (T* values : to)
      for (int64_t i = 0; i < length; ++i) values[begin + i] = T(sum[static_cast<size_t>(i)]);
  }
}

}  // namespace ladder
