#pragma once
// Where in the source an instruction stands.
#include <stdint.h>

#include <string>

namespace ladder_emulator {

// A return address as an offset in the program.
uint32_t place_of(const void* return_address);
// "rms_norm_cuda.cu:55": the line of the .cu file, also for what is inlined from a header. Asks addr2line, once for
// each place; "?" where it is missing.
std::string line_at(uint32_t place);
// Below the repository's root, for finding the file: "step1_layers/norm/rms_norm_cuda.cu", and the line.
struct SourceLine {
  std::string file;
  int line = 0;
};
SourceLine source_line_at(uint32_t place);
std::string function_at(const void* function);  // "norm_registers", without what it is a template of

}  // namespace ladder_emulator
