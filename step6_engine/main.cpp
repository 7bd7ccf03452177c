#include "step6_engine/cli/commands.h"

int main(int argc, char** argv) {
  return ladder::run_command_line(argc, argv);
}
