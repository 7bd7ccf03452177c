#pragma once
// How a block of rows_stream (rows_stream_cuda.cu) walks over its part of the weight, and the shapes that
// were measured to be good.
//
//   weight [n, k]                   k ->
//                   |  segment 0  |  segment 1  |  segment 2  |
//          unit 0   +-------------+-------------+-------------+
//   group  unit 1   |   slot 0    |   slot 1    |   slot 2    |   unit:    8 rows of the weight, the columns
//     0    unit 2   |             |             |             |            of one mma (16 x 8 x 16)
//          unit 3   +-------------+-------------+-------------+   segment: 8 warps times `chunks` chunks of
//          unit 4   |   slot 3    |   slot 0    |   slot 1    |            32 columns; a warp multiplies its
//   group  unit 5   |             |   (again)   |             |            own chunks of every segment
//     1    unit 6   |             |             |             |   slot:    one segment of one group, and its
//          unit 7   +-------------+-------------+-------------+            place in the ring in shared memory
//
//   inside a segment, chunks = 2:   | w0 | w0 | w1 | w1 | ... | w7 | w7 |    each 32 columns wide
//
// A block owns neighbouring units. It goes through them group by group, left to right, while the copies run
// up to `slots` slots ahead. The sums of a group stay in registers until its last segment: then the eight
// warps, each of which has summed over its own chunks, add up in shared memory and the epilogue writes the
// group's columns.
#include <iterator>

#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder {

inline constexpr int kWarps = 8, kThreads = kWarps * kWarp;
inline constexpr int kUnit = 8;    // rows of the weight: the columns of one mma
inline constexpr int kChunk = 32;  // columns of k that a warp multiplies at a time: two mma

struct StreamShape {
  int rows;             // of x, at most: 8, 16, 32
  int units;            // of a group
  int chunks;           // of one warp in a segment
  int slots;            // of the ring
  int slots_at_once;    // of a block whose slots all fit the ring: asked for at a time
  bool x_in_registers;  // x is at most kMaxKInRegisters long, and lives in registers

  // Columns of k.
  __host__ __device__ constexpr int segment() const { return kWarps * chunks * kChunk; }
  // A slot holds sixteen bytes per thread, unit and chunk.
  __host__ __device__ constexpr int slot_bytes() const { return units * chunks * kThreads * 16; }
};

// A thread's share of a row of x in registers: four packs of eight elements.
inline constexpr int kChunksInRegisters = 4;
inline constexpr int kMaxKInRegisters = kChunksInRegisters * kWarps * kChunk;
inline constexpr int kMaxRowsInRegisters = 16;

// What limits a shape is shared memory, which two blocks of a multiprocessor share where they fit: one of
// this kernel, one of the next. More slots keep more bytes in flight, longer segments turn the loop less
// often, and more units share one read of x. Many rows of x take the room of slots.
//
// slots_at_once: the blocks of the next kernel ask for their weights while this one's x is still coming from
// L2, and memory answers roughly in order. Half of the ring at a time or less keeps memory busy and lets x
// overtake the rest. With that and x in registers gate_up of Qwen3-0.6B went from 4 us to 3.5 with one row
// and from 5.4 to 3.8 with sixteen.
//
// At the end of each row: the products of Qwen3-0.6B and 8B that it serves on an H200 (132 multiprocessors),
// in microseconds; in parentheses the rung below, rows_tensor_core, which takes up to 16 rows, and from 17
// rows on the library (bench/results/h200/step1_layers.json), which serves those marked "library". No product
// of these models has two units per block or, beside short rows of x, one: these have the shape of their
// neighbours.
// clang-format off
inline constexpr StreamShape kStreamShapes[] = {
  // rows  units chunks slots at once  x in registers
    { 8,   1,    4,     4,    1,       false},  // 0.6B o 2.37 (3.44), down 2.81 (4.34)
    { 8,   2,    2,     4,    1,       false},
    { 8,   4,    2,     3,    1,       false},  // 8B o 8.96 (10.8), down 23.8 (29.8)
    { 8,   6,    1,     4,    2,       false},  // 8B qkv 12.3 (15.6), gate_up 47.1 (53.8)
    { 8,   1,    4,     4,    1,       true},
    { 8,   2,    2,     4,    1,       true},
    { 8,   4,    2,     3,    1,       true},   // 0.6B qkv 2.83 (3.65)
    { 8,   6,    1,     4,    2,       true},   // 0.6B gate_up 3.54 (5.30), lm_head 72.3 (76.6)
    {16,   1,    4,     4,    2,       false},  // 0.6B o 3.61 (4.51), down 4.20 (5.86)
    {16,   2,    2,     4,    2,       false},
    {16,   4,    2,     3,    1,       false},  // 8B o 10.1 (11.6), down 26.1 (29.6)
    {16,   6,    1,     3,    1,       false},  // 8B qkv 14.4 (18.3), gate_up 51.4 (58.5)
    {16,   1,    4,     4,    2,       true},
    {16,   2,    2,     4,    2,       true},
    {16,   4,    2,     3,    1,       true},   // 0.6B qkv 3.48 (4.56)
    {16,   6,    1,     4,    1,       true},   // 0.6B gate_up 3.84 (7.52), lm_head 78.9 (95.6)
    {32,   1,    2,     4,    4,       false},  // 0.6B o 4.02 (5.50), down 5.45 (7.08)
    {32,   2,    2,     3,    3,       false},
    {32,   4,    2,     2,    2,       false},  // 8B o 12.9 (13.2); 0.6B qkv 5.29 (4.88): the library's
    {32,   6,    1,     3,    3,       false},  // 8B qkv 16.4 (15.8), gate_up 57.7 (50.3), library
};
// clang-format on

// The row of the table for m rows of x and a group of so many units; -1: there is none.
constexpr int find_stream_shape(int m, int units, bool x_in_registers) {
  for (int i = 0; i < static_cast<int>(std::size(kStreamShapes)); ++i)
    if (m <= kStreamShapes[i].rows && units == kStreamShapes[i].units &&
        x_in_registers == kStreamShapes[i].x_in_registers)
      return i;
  return -1;
}

}  // namespace ladder
