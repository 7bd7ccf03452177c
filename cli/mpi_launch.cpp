#include "cli/mpi_launch.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cli/launched_command.h"

#ifdef LADDER_HAS_MPI
#include "step7_parallel/communicators/mpi/mpi_world.h"
#include "step7_parallel/workers/rank_watch.h"
#endif

namespace ladder {

namespace {

// What Open MPI tells each process; 0: it does not.
int from_environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

#ifdef LADDER_HAS_MPI
// For the ranks, of which one may load for long while the others wait.
constexpr std::chrono::minutes kCallTimeout{5};
// For the next step, which comes when somebody asks for something.
constexpr std::chrono::hours kStepTimeout{24 * 365};
#endif

}  // namespace

bool started_by_mpirun() {
  return from_environment("OMPI_COMM_WORLD_SIZE") > 1;
}

#ifdef LADDER_HAS_MPI
int run_as_rank(int argc, char** argv, const std::function<int()>& command) {
  const RankWatch watch(fmt::format("rank {} of {}", from_environment("OMPI_COMM_WORLD_RANK"),
                                    from_environment("OMPI_COMM_WORLD_SIZE")));
  MpiWorld mpi;
  LaunchedWorld world;
  world.steps = mpi.group(0, kStepTimeout);
  world.calls = mpi.group(0, kCallTimeout);
  world.make_group = [&mpi](int colour) { return mpi.group(colour, kCallTimeout); };
  world.local_rank = from_environment("OMPI_COMM_WORLD_LOCAL_RANK");
  std::string arguments;
  for (int i = 1; i < argc; ++i) arguments += std::string(argv[i]) + '\0';
  try {
    agree_on(world, arguments, "the arguments");
  } catch (const AgreedError& error) {
    if (world.rank() == 0) std::fprintf(stderr, "ladder: error: %s\n", error.what());
    return 2;
  }
  if (world.rank() == 0) {
    const int code = run_with_ranks(world, command);
    if (world.broken) mpi.abort(code == 0 ? 1 : code);
    return code;
  }
  return mpi.run([&] {
    serve_launched_rank(options_of_rank, world);
    return 0;
  });
}
#else
int run_as_rank(int, char**, const std::function<int()>&) {
  if (from_environment("OMPI_COMM_WORLD_RANK") == 0)
    std::fprintf(
        stderr,
        "ladder: error: mpirun has started %d processes of this program, which was built without MPI: expected "
        "libopenmpi-dev and a new build, or no mpirun\n",
        from_environment("OMPI_COMM_WORLD_SIZE"));
  return 2;
}
#endif

}  // namespace ladder
