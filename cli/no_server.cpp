// What stands in for the commands that need the server where the build has none (cli/serve*.cpp and cli/route.cpp are left out of it).
#ifndef LADDER_HAS_SERVER

#include "cli/bench/bench.h"
#include "cli/commands.h"
#include "step1_layers/core/error.h"

namespace ladder {

namespace {

RunCommand refuse(CLI::App& app) {
  app.allow_extras();
  return [name = app.get_name()] {
    fail(
        "{}: this program was built without Boost 1.81 (libboost1.81-dev), which the server and its load need: "
        "install it and build again",
        name);
  };
}

}  // namespace

RunCommand add_serve_command(CLI::App& app) {
  return refuse(app);
}
RunCommand add_route_command(CLI::App& app) {
  return refuse(app);
}
RunCommand add_api_server_command(CLI::App& app) {
  return refuse(app);
}
RunCommand add_disaggregated_server_command(CLI::App& app) {
  return refuse(app);
}
RunCommand add_bench_serve(CLI::App& app) {
  return refuse(app);
}
RunCommand add_bench_canned(CLI::App& app) {
  return refuse(app);
}
RunCommand add_bench_serve_overhead(CLI::App& app) {
  return refuse(app);
}

}  // namespace ladder

#endif
