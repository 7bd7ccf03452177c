#include "cli/launched_command.h"

#include "cli/engine_flags.h"
#include "cli/tiny_model.h"

namespace ladder {

namespace {

LaunchedWorld* world_of_rank_0 = nullptr;

}  // namespace

LaunchedWorld* launched_world() {
  return world_of_rank_0;
}

int run_with_ranks(LaunchedWorld& world, const std::function<int()>& command) {
  world_of_rank_0 = &world;
  const int code = command();
  world_of_rank_0 = nullptr;
  dismiss_launched_ranks(world);
  return code;
}

ExecutorOptions options_of_rank(const std::vector<std::string>& arguments) {
  CLI::App app;
  EngineFlags flags;
  flags.add(app, {}, tiny_model_folder());
  app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the end
  return flags.parts();
}

}  // namespace ladder
