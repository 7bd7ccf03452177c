#pragma once
// The emulator lane: the tests of a task with CUDA kernels, without a GPU (EMULATOR.md).
#include <string>

#include "lab/machine.h"
#include "lab/tree.h"

namespace lab {

constexpr const char* kEmulatorTarget = "test_emulator";

// Why a task's tests do not run on the emulated device, a line; "" where they do.
std::string why_not_emulated(const Tree& tree, const Task& task);

// Why `lab grade` does not grade a task on a machine, a line; "" where it does. Tasks with the emulator lane are graded in it
// everywhere, the others with CUDA kernels on a machine with a GPU and the CUDA toolkit only.
std::string why_not_graded(const Task& task, const Machine& machine = this_machine());

// Prints what the rungs of a task cost, with a picture of one warp's accesses, and writes the pictures to
// build/course/emulator. Nothing of a rung that cannot run.
void draw_accesses(const Tree& tree, const Task& task, const std::string& rung);

}  // namespace lab
