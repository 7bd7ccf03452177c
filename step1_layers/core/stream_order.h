#pragma once
// Work on one stream that comes after work on another of the same GPU.
#include "step1_layers/core/context.h"

namespace ladder {

// What is launched on `later` from now on begins when all that was launched on `earlier` so far is done. The host waits for
// nothing (that of a fake device does). Nothing to do where both are one stream, and on the CPU.
void order_streams(const OpContext& earlier, const OpContext& later);

}  // namespace ladder
