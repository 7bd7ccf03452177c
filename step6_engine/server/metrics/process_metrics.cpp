// What the kernel knows of this process: /proc/self.
#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "step6_engine/server/metrics/metrics_text.h"
#include "step6_engine/server/metrics/prometheus.h"

namespace ladder {

namespace {

// Of /proc/self/stat, from the third field on: the second, the program's name, may hold anything.
struct ProcessStat {
  double cpu_ticks = 0, start_ticks = 0, virtual_bytes = 0, resident_pages = 0;
};

bool read_process_stat(ProcessStat& stat) {
  std::ifstream file("/proc/self/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return false;
  std::istringstream fields(line.substr(name_end + 1));
  std::string state;
  fields >> state;
  double value = 0;
  for (int field = 4; field <= 24 && fields >> value; ++field) {
    if (field == 14 || field == 15) stat.cpu_ticks += value;  // in user mode, in the kernel
    if (field == 22) stat.start_ticks = value;                // after the machine's start
    if (field == 23) stat.virtual_bytes = value;
    if (field == 24) stat.resident_pages = value;
  }
  return static_cast<bool>(fields);
}

// Seconds since 1970; 0: unknown.
double machine_start() {
  std::ifstream file("/proc/stat");
  std::string word;
  for (double seconds = 0; file >> word;)
    if (word == "btime" && file >> seconds) return seconds;
  return 0;
}

int64_t count_descriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (!folder) return -1;
  int64_t count = 0;
  while (const dirent* entry = readdir(folder.get())) count += entry->d_name[0] != '.';
  return count - 1;  // the folder's own
}

}  // namespace

std::string process_metrics_text() {
  MetricsText text("process_", {});
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (ProcessStat stat; read_process_stat(stat)) {
    text.gauge("virtual_memory_bytes", "Virtual memory size in bytes.", stat.virtual_bytes);
    text.gauge("resident_memory_bytes", "Resident memory size in bytes.",
               stat.resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE)));
    if (const double start = machine_start(); start > 0)
      text.gauge("start_time_seconds", "Start time of the process since unix epoch in seconds.",
                 start + stat.start_ticks / ticks);
    text.counter("cpu_seconds_total", "Total user and system CPU time spent in seconds.",
                 stat.cpu_ticks / ticks);
  }
  if (const int64_t count = count_descriptors(); count >= 0)
    text.gauge("open_fds", "Number of open file descriptors.", static_cast<double>(count));
  if (rlimit limit{}; getrlimit(RLIMIT_NOFILE, &limit) == 0)
    text.gauge("max_fds", "Maximum number of open file descriptors.", static_cast<double>(limit.rlim_cur));
  return text.take();
}

}  // namespace ladder
