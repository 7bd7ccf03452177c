#pragma once
// Included by traced copies of regions only (`lab demo`): each function says once per process that it ran, by a line
// "5.2 Scheduler::take" in the file that LADDER_LAB_RAN names. Internal linkage, so that a copy compiled for AVX-512
// is not taken by other units.
#include <stdio.h>
#include <stdlib.h>

namespace {

struct LadderLabRan {
  LadderLabRan(const char* task, const char* function) {
    const char* path = getenv("LADDER_LAB_RAN");
    FILE* file = path == nullptr ? nullptr : fopen(path, "a");
    if (file == nullptr) return;
    fprintf(file, "%s %s\n", task, function);
    fclose(file);
  }
};

}  // namespace

#define LADDER_LAB_RAN(task, function) \
  [[maybe_unused]] static const LadderLabRan ladder_lab_ran(task, function);
