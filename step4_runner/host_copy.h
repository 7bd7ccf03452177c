#pragma once
// Task 4.5: a step's copies between pinned memory and the device.
//
// On a GPU they are kernels. A copy of the driver's is done by the GPU's copy engine, and the work before and
// after it by other units: handing over and back costs more than the few kilobytes of a step. These kernels
// read and write pinned memory themselves, over the bus, and are launched like any other.
#include <cstdint>

#include "step1_layers/core/context.h"

namespace ladder {

// Pinned memory to the device's, both aligned to 16 bytes and with room for a multiple of them. What is
// copied must be there when this is called: it is read before the preceding kernel has ended. What is
// written may be read only after wait_for_previous_kernel().
void copy_from_host(const OpContext& ctx, void* to, const void* from, int64_t bytes);
void copy_from_host_cuda(const OpContext& ctx, void* to, const void* from, int64_t bytes);

// The device's memory to pinned memory, a multiple of four bytes.
void copy_to_host(const OpContext& ctx, void* to, const void* from, int64_t bytes);
void copy_to_host_cuda(const OpContext& ctx, void* to, const void* from, int64_t bytes);

}  // namespace ladder
