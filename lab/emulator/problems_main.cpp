// emulator_problems list                    the names of the problems and of the planted kernels
// emulator_problems run NAME                runs one: on the emulated device, or on a GPU where it is built with CUDA
// On the emulated device also
// emulator_problems count                   requests, sectors and conflicts of every problem, as JSON
// emulator_problems draw NAME FOLDER        what its lines cost, a picture of each, all of them in FOLDER/NAME.svg
#include <cstring>
#include <iostream>
#include <string>

#include "lab/emulator/planted.h"
#include "lab/emulator/problems.h"
#include "step1_layers/core/device.h"
#include "tests/support/devices.h"
#ifdef LADDER_EMULATED
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/emulator/grid.h"
#include "lab/emulator/picture.h"
#include "lab/emulator/source_lines.h"
#endif

namespace ladder_emulator {
namespace {

void run(const Problem& problem) {
  ladder::OpContext ctx = *ladder::testing::cuda_context();
  const size_t slash = problem.name.find('/');
  ctx.kernels[std::string(problem.name.substr(0, slash))] = std::string(problem.name.substr(slash + 1));
  problem.run(ctx);
  ladder::device_synchronize(ctx.device, ctx.stream);
}

const Problem* find(const std::string& name) {
  for (const Problem& problem : problems())
    if (problem.name == name) return &problem;
  return nullptr;
}

bool run_named(const std::string& name) {
  if (const Problem* problem = find(name)) return run(*problem), true;
  for (const auto& planted : ladder_planted::planted())
    if (planted.name == name) {
      planted.run();
#ifdef LADDER_EMULATED
      if (!grid().reports().empty()) std::cout << grid().reports() << "\n";
#endif
      return true;
    }
  return false;
}

#ifdef LADDER_EMULATED
// The same numbers as a GPU's counters, of all launches: see tools/emulator_check.py.
nlohmann::json counted() {
  int64_t counts[2][2][2] = {};  // shared; store; requests or passes, sectors or those beyond the fewest
  for (const LaunchCounts& launch : grid().counts())
    for (const Instruction& one : launch.instructions) {
      int64_t(&of)[2] = counts[one.space == Space::shared][one.store];
      of[0] += one.requests;
      of[1] += one.space == Space::shared ? one.passes - one.fewest_passes : one.sectors;
    }
  return {{"load_requests", counts[0][0][0]},         {"load_sectors", counts[0][0][1]},
          {"store_requests", counts[0][1][0]},        {"store_sectors", counts[0][1][1]},
          {"shared_load_requests", counts[1][0][0]},  {"shared_load_conflicts", counts[1][0][1]},
          {"shared_store_requests", counts[1][1][0]}, {"shared_store_conflicts", counts[1][1][1]}};
}

void print_table(const LaunchCounts& launch) {
  std::printf("%s, %u x %u x %u blocks of %u x %u x %u threads\n", launch.kernel.c_str(), launch.grid.x,
              launch.grid.y, launch.grid.z, launch.block.x, launch.block.y, launch.block.z);
  std::printf("  %-28s %-16s %9s %20s %8s\n", "line", "access", "requests", "sectors or passes", "fewest");
  for (const Instruction& one : launch.instructions) {
    const bool shared = one.space == Space::shared;
    const std::string access = std::string(shared ? "shared " : "") + (one.store ? "store " : "load ") +
                               std::to_string(one.bytes) + " B";
    std::printf("  %-28s %-16s %9lld %13.2f each %8.2f\n", line_at(one.place).c_str(), access.c_str(),
                static_cast<long long>(one.requests),
                static_cast<double>(shared ? one.passes : one.sectors) / static_cast<double>(one.requests),
                static_cast<double>(shared ? one.fewest_passes : one.fewest_sectors) /
                    static_cast<double>(one.requests));
  }
}

int draw_problem(const Problem& problem, const std::filesystem::path& folder) {
  run(problem);
  std::vector<Drawing> drawings;
  for (const LaunchCounts& launch : grid().counts()) {
    print_table(launch);
    for (const Instruction& one : launch.instructions) drawings.push_back(draw(one));
  }
  for (const Drawing& drawing : drawings) std::cout << as_text(drawing);
  std::filesystem::create_directories(folder);
  std::string file(problem.name);
  std::replace(file.begin(), file.end(), '/', '-');
  std::ofstream(folder / (file + ".svg")) << as_svg(drawings);
  std::cout << "  as a picture: " << (folder / (file + ".svg")).string() << "\n";
  return 0;
}

int count_all() {
  nlohmann::json all;
  for (const Problem& problem : problems()) {
    grid().counts().clear();
    run(problem);
    all[std::string(problem.name)] = counted();
  }
  std::cout << all.dump(1) << "\n";
  return 0;
}
#endif

int run_command(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "list" && argc == 2) {
    for (const Problem& problem : problems()) std::cout << problem.name << "\n";
    for (const auto& planted : ladder_planted::planted()) std::cout << planted.name << "\n";
    return 0;
  }
  if (ladder::testing::cuda_context() == nullptr) {
    std::cerr << "emulator_problems: no GPU\n";
    return 2;
  }
  if (command == "run" && argc == 3 && run_named(argv[2])) return 0;
#ifdef LADDER_EMULATED
  grid().count(true);
  if (command == "count" && argc == 2) return count_all();
  if (command == "draw" && argc == 4 && find(argv[2]) != nullptr)
    return draw_problem(*find(argv[2]), argv[3]);
#endif
  std::cerr
      << "emulator_problems: expected list, run NAME, count or draw NAME FOLDER, with a name of the list\n";
  return 2;
}

}  // namespace
}  // namespace ladder_emulator

int main(int argc, char** argv) {
  try {
    return ladder_emulator::run_command(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
