#pragma once
// A CUDA source as C++ for the emulator (EMULATOR.md). Two things of the language are no macros:
//
//   norm<T><<<grid, block>>>(a, b);       a launch becomes a call
//   __shared__ float x[4], y;             shared variables stand between guards and are known by their names
//   extern __shared__ float z[];
//
// All else is a matter of headers (emulator/include).
#include <string>
#include <string_view>

namespace lab {

// The lines stay where they are; messages name `path`. Error (LabError): a launch or a declaration of shared
// variables that cannot be read, with its line.
std::string emulated_source(std::string_view source, const std::string& path);

}  // namespace lab
