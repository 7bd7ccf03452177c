#pragma once
// What the lanes of a warp get from each other, on the emulated device.
#include <vector>

// results[operation][lane]; the lane's own value is 100 + lane.
std::vector<std::vector<int>> exchange_lanes();
// Counts of a block of 64 threads: __syncthreads_count, _or and _and of `thread < 10`, an atomic sum of all.
std::vector<int> count_block();
// What no host can do on a GPU: reads an int of the device's memory.
int host_reads_the_device();
