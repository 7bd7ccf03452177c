#pragma once
// Random linears in every format of stored_linear.h, written by the test itself, beside the dense matrix that they stand for.
#include <map>
#include <string>
#include <vector>

#include "step8_advanced/quantization/stored_linear.h"
#include "tests/support/numerics.h"

namespace ladder::testing {

// One merged part of a linear, as a checkpoint has it.
struct StoredPart {
  std::map<std::string, Tensor> tensors;  // by the name after the linear's
  int64_t n = 0, k = 0;
  std::vector<float> dense;  // [n, k]: what the codes stand for, computed in double
};

// `order`: the group of each input feature, where the weights' actorder is group.
StoredPart random_part(Random& random, const StoredLinear& stored, int64_t n, int64_t k,
                       const std::vector<int32_t>& order = {});

// The groups of k features in a random order, group_size members each.
std::vector<int32_t> random_order(Random& random, int64_t k, int64_t group_size);

// "gptq 4 bits, groups of 64, act-order, zeros one less": for SCOPED_TRACE.
std::string describe(const StoredLinear& stored);

// Some of every format that linear/ reads. k = 160 fits them all.
std::vector<StoredLinear> all_stored_linears();

}  // namespace ladder::testing
