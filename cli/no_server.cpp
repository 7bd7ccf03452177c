// What stands in for the commands that need the server where the build has none (cli/serve*.cpp are left out of it).
#ifndef LADDER_HAS_SERVER

#include "cli/commands.h"
#include "step1_layers/core/error.h"

namespace ladder {

RunCommand add_serve_command(CLI::App& app) {
  app.allow_extras();
  return [] {
    fail("serve: this program was built without Boost 1.81 (libboost1.81-dev), which the server needs: install it "
         "and build again");
  };
}

}  // namespace ladder

#endif
