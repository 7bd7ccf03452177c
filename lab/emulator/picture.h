#pragma once
// A warp's request drawn: every row is 128 bytes, which is four sectors of global memory or one word of each of the 32
// banks of shared memory.
//
//   rms_norm_cuda.cu:56  load of 2 bytes by 32 lanes from global memory: 32 sectors, 2 would do
//     +0       0.......
//     +512     1.......
//
// A sign is a word of four bytes: the lane that takes it (0-9, a-v), `.` what comes along in a sector, nothing what does
// not.
#include <string>
#include <vector>

#include "lab/emulator/warp_accesses.h"

namespace ladder_emulator {

struct Drawing {
  std::string title;
  struct Row {
    int64_t offset;  // from the first byte that a lane takes, rounded down to 128
    char words[32];  // as above, ' ' for nothing
  };
  std::vector<Row> rows;
};

Drawing draw(const Instruction& instruction);
std::string as_text(const Drawing& drawing, int max_rows = 8);
std::string as_svg(const std::vector<Drawing>& drawings);

}  // namespace ladder_emulator
