#pragma once
// Lanes of a GPU: streams of all of it, or of shares.
#include <vector>

#include "step1_layers/core/device.h"
#include "step8_advanced/disaggregation/partition/sm_lanes.h"

namespace ladder {

// Where the border may stand: 16, 32, 48 and 64 of 132 multiprocessors, and the same shares of others. Each place has graphs of its
// own for every size of a step, which take time at the start and memory, so they are few. On an H200 24, 40 and 80 gain next to
// nothing over 16, 32 and 64: what a part of the chip reads is limited, and such shares are not spread evenly over the parts.
std::vector<int> decode_shares(int num_multiprocessors);

// Contexts of green contexts (sm_partition_cuda.h), decode having `decode_sms` of the multiprocessors at the places; `decode_sms` empty: decode_shares(). Error: this
// build has no CUDA, or what split_multiprocessors() says.
SharedGpu share_gpu(Device device, const std::vector<int>& decode_sms);
// Without any place.
SharedGpu whole_gpu(Device device);

}  // namespace ladder
