#pragma once
// Two kinds of work side by side on one GPU, each on multiprocessors of its own.
//
// Kernels of two plain streams take turns as their blocks come: a kernel of few blocks waits until blocks of a large one end.
// A green context is a share of the multiprocessors, and a stream made in it runs on no others. What is not shared out are
// memory bandwidth and the L2 cache. CUDA driver API, "Green Contexts" (since CUDA 12.5).
//
// The driver's functions are looked up at run time: an older driver has none of them.
#include <cuda.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "step1_layers/core/device_cuda.h"

namespace ladder {

// nullptr: the driver has it not.
struct GreenContextDriver {
  int driver_version = 0;  // the newest CUDA that it serves: 13000 is 13.0
  decltype(&cuDeviceGetDevResource) get_resource = nullptr;
  decltype(&cuDevSmResourceSplitByCount) split = nullptr;
  decltype(&cuDevResourceGenerateDesc) describe = nullptr;
  decltype(&cuGreenCtxCreate) create = nullptr;
  decltype(&cuGreenCtxDestroy) destroy = nullptr;
  decltype(&cuGreenCtxStreamCreate) create_stream = nullptr;
};
GreenContextDriver find_green_context_driver();
// Error, one line: the first function that it lacks.
void expect_green_contexts(const GreenContextDriver& driver);

// One place of the border between two sides.
struct SmSplit {
  std::shared_ptr<CudaContext> first, second;  // their num_multiprocessors() add up to the GPU's
};

// The borders that leave the first side so many multiprocessors and the second one the rest. The GPU's granularity holds: from 8
// on in steps of 8 on compute capability 9.0; what lies between is rounded up, and what becomes the same border is left out. The first
// side is the one that the driver promises clusters of 8 blocks; what is left over may have room for smaller ones only.
// `first`, `second`: contexts of the whole GPU, whose workspaces the shares take over, so that a side has work in one of its
// contexts at a time (stream_order.h). The first side's blocks go first where the two overlap, as they may while the border moves. Error, one line: a function that the driver lacks, a GPU that cannot be shared out, a border that leaves nothing.
std::vector<SmSplit> split_multiprocessors(const CudaContext& first, const CudaContext& second,
                                           std::span<const int> first_sms,
                                           const GreenContextDriver& driver = find_green_context_driver());

// The same rank's on another stream of the whole GPU, whose blocks go before those of plain streams.
std::shared_ptr<CudaContext> with_priority(const CudaContext& whole);

}  // namespace ladder
