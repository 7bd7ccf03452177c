#pragma once
// `mpirun -np 4 ladder generate --tensor-parallel-size 4 ...`: rank 0 runs the command, the others are ranks of its engine.
#include <functional>

namespace ladder {

// Whether mpirun has started this process, as one of several.
bool started_by_mpirun();

// Joins the others, and returns the program's exit code: on rank 0 that of `command`, which runs there alone, between the
// arrival and the dismissal of the others. A failure that the others cannot hear of ends all of them. Error: this build
// has no MPI.
int run_as_rank(int argc, char** argv, const std::function<int()>& command);

}  // namespace ladder
