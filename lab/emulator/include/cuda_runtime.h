#pragma once
// What nvcc lets every .cu file see, for the emulated device.
#include <cuda_runtime_api.h>

#include "lab/emulator/intrinsics.h"
#include "lab/emulator/kernel.h"
#include "lab/emulator/launch.h"
#include "lab/emulator/vectors.h"
