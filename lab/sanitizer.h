#pragma once
// The CUDA toolkit's compute-sanitizer on a program that runs a student's kernel.
#include <array>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lab/process.h"

namespace lab {

// Accesses that are out of bounds or misaligned; threads that do not wait for each other's shared memory.
inline constexpr std::array<const char*, 2> kSanitizerTools = {"memcheck", "racecheck"};

// Runs `program` under one of these tools: `start` is given the words of the command. What the tool says first,
// "racecheck: Error: Race reported between ...", or that the program did not come to a clean end; "" for a clean run.
std::string found_by_sanitizer(const std::filesystem::path& sanitizer, const std::string& tool,
                               const std::vector<std::string>& program,
                               const std::function<Outcome(const std::vector<std::string>&)>& start);

}  // namespace lab
