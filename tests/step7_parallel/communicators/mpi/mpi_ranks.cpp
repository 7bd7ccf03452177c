// What mpirun starts in the tests and the measurement of the MPI communicator:
//
//   mpi_ranks case NAME SEED      a case of collective_cases.h
//   mpi_ranks fault KIND RANK     the rank throws, kills or stops itself in the midst of all_reduces
//   mpi_ranks split               groups by colour, whose calls do not disturb each other
//   mpi_ranks time BYTES CALLS    prints the seconds of an all_reduce of so many bytes
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <vector>

#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/mpi/mpi_world.h"
#include "tests/step7_parallel/communicators/collective_cases.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;

const OpContext kContext;

void fault(Communicator& group, const std::string& kind, int culprit) {
  const Tensor value = Tensor::zeros({100'000}, DType::f32);
  for (int call = 0; call < 1'000'000; ++call) {
    if (call == 20 && group.rank() == culprit) {
      if (kind == "throw") {
        group.send(kContext, value, (culprit + 1) % group.size());  // nobody receives it
        fail("the disk is on fire");
      }
      ::raise(kind == "kill" ? SIGKILL : SIGSTOP);
    }
    group.all_reduce(kContext, value);
  }
}

// Even and odd ranks, and all of them, in turns and at their own pace.
void split(MpiWorld& world) {
  const auto all = world.group(0, 30s), half = world.group(world.rank() % 2, 30s);
  LADDER_CHECK(half->rank() == world.rank() / 2, "wrong: rank {} of its half", half->rank());
  for (int call = 0; call < 100; ++call)
    for (int repeat = 0; repeat <= world.rank() % 2; ++repeat) {
      const Tensor one = Tensor::from<float>(std::vector<float>{1, 2}, {2});
      half->all_reduce(kContext, one);
      LADDER_CHECK(one.data<float>()[1] == 2 * static_cast<float>(half->size()),
                   "wrong: a sum of half the ranks");
      if (repeat > 0) continue;
      all->all_reduce(kContext, one);
    }
}

void time_all_reduce(Communicator& group, int64_t bytes, int calls) {
  const Tensor value = Tensor::zeros({bytes / 4}, DType::f32);
  for (int call = 0; call < 3; ++call) group.all_reduce(kContext, value);
  const auto begin = std::chrono::steady_clock::now();
  for (int call = 0; call < calls; ++call) group.all_reduce(kContext, value);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (group.rank() == 0) fmt::print("{}\n", took.count() / calls);
}

int run(MpiWorld& world, const std::vector<std::string>& arguments) {
  if (arguments.empty()) fail("what is to be done?");
  const std::string& what = arguments[0];
  if (what == "split") {
    split(world);
    return 0;
  }
  LADDER_CHECK(arguments.size() == 3, "{} takes two arguments", what);
  const auto group = world.group(0, arguments[1] == "stop" ? 2s : 60s);
  if (what == "case") testing::collective_case(arguments[1]).run(*group, std::stoull(arguments[2]));
  if (what == "fault") fault(*group, arguments[1], std::stoi(arguments[2]));
  if (what == "time") time_all_reduce(*group, std::stoll(arguments[1]), std::stoi(arguments[2]));
  return 0;
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) {
  ladder::MpiWorld world;
  return world.run([&] { return ladder::run(world, {argv + 1, argv + argc}); });
}
