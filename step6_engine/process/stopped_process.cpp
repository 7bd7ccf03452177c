#include "step6_engine/process/stopped_process.h"

#include <fmt/format.h>

#include <fstream>
#include <string>

namespace ladder {

bool is_stopped_process(int pid) {
  std::string line;  // "4711 (its name, with any bytes) T 1 ..."
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), line);
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() && line[name_end + 2] == 'T';
}

}  // namespace ladder
