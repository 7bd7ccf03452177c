#pragma once
// Runs programs that a student's text was compiled into, or compilers on such a text: no network, no processes but
// their own, a read-only view of a few folders, an empty scratch folder of limited size, and limits of time, memory,
// processes and files. Everything that was started is dead when the call returns.
//
// With bubblewrap (bwrap): user, process, network, IPC and mount namespaces. Run by root it gives the program a user id
// of its own, since root has no limit of processes. The files of `readable` must be readable by all then.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lab/process.h"

namespace lab {

struct Limits {
  std::chrono::seconds wall{90}, cpu{180};
  int64_t memory =
      int64_t{2} << 30;  // bytes resident in all its processes together; looked at 20 times a second
  int64_t scratch = int64_t{64} << 20;  // bytes in the scratch folder, all files together
  int64_t file = int64_t{256} << 20;    // bytes of any one file
  int64_t output =
      int64_t{1} << 18;  // bytes kept of what it prints, and of its result; the rest is thrown away
  int processes = 64;    // and threads
  int open_files = 256;
};

// Of a program that uses a GPU, whose CUDA libraries alone take more than all of the above.
Limits gpu_limits();

// Seen under their own paths, beside /usr, /lib and /etc. `writable` ones have no limit of size: for compilers only.
struct Folders {
  std::vector<std::filesystem::path> readable, writable;
  std::map<std::string, std::string>
      environment;              // all of it, but for PATH, HOME and TMPDIR (the scratch folder)
  bool gpu = false;             // it may use the machine's GPUs
  std::string input;            // what stands on its standard input; at most 4096 bytes
  std::filesystem::path start;  // where it starts; empty: in the scratch folder
};

struct Confined : Outcome {
  std::string result;  // what it wrote to file descriptor 3
  std::string
      stopped;  // why it was ended, as a student reads it: "took more than 2048 MiB of memory"; else ""
};

// Where it runs: in namespaces, or (for a container that is thrown away afterwards, such as Gradescope's) as a plain
// process with limits, which can see the file system and the network. Run by root it has a user id of its own there too.
enum class Sandbox { namespaces, none };

// Error: bwrap is not installed, or the kernel refuses namespaces; says what to do.
void check_sandbox(Sandbox sandbox);

// The command's paths are those outside. The scratch folder is its TMPDIR.
Confined run_confined(const std::vector<std::string>& command, const Limits& limits, const Folders& folders,
                      Sandbox sandbox = Sandbox::namespaces);

}  // namespace lab
