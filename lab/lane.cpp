#include "lab/lane.h"

#include <array>
#include <iostream>

#include "lab/process.h"
#include "lab/test_run.h"
#include "lab/tokens.h"

namespace lab {

std::string why_not_emulated(const Tree& tree, const Task& task) {
  if (task.lane == "emulator") return "";
  const std::string begin = "task " + task.id + " is not for the emulator: ";
  if (!task.gpu) return begin + "its tests run without a GPU, ./ladder lab test " + task.id;
  struct Reason {
    const char *in_a_name, *what;
  };
  constexpr std::array kReasons = {
      Reason{"wgmma", "tensor cores (wgmma)"}, Reason{"mma", "tensor cores (mma)"},
      Reason{"cluster", "clusters of blocks"}, Reason{"cp_async", "asynchronous copies"},
      Reason{"Graph", "CUDA graphs"},          Reason{"PeerGroup", "another GPU, whose kernel it waits for"}};
  for (const Reason& reason : kReasons)
    for (const std::string& path : task.regions)
      for (const Token& token : tokenize(tree.region(task, path).text))
        if (token.kind == TokenKind::word && token.text.find(reason.in_a_name) != std::string_view::npos)
          return begin + "it takes " + reason.what + ", and so a GPU";
  return begin + "it takes what only a GPU has (lab/EMULATOR.md)";
}

std::string why_not_graded(const Task& task, const Machine& machine) {
  if (task.given) return "task " + task.id + " is given: there is nothing to grade";
  if (!task.gpu || task.lane == "emulator") return "";
  const std::string begin = "task " + task.id + " is graded on a GPU only, and this machine has no ";
  if (!machine.gpu) return begin + "GPU";
  if (machine.compiler.empty()) return begin + "CUDA toolkit (nvcc)";
  return "";
}

void draw_accesses(const Tree& tree, const Task& task, const std::string& rung) {
  const std::filesystem::path folder = build_folder(tree.root(), false);
  for (const Rung& ladder : task.rungs)
    for (const std::string& name : ladder.names) {
      if (!rung.empty() && rung != name && rung != "cuda_" + name) continue;
      const Outcome drawn = run({(folder / "lab/emulator/emulator_problems").string(), "draw",
                                 ladder.op + "/" + name, (folder / "emulator").string()},
                                std::chrono::seconds(60));
      if (drawn.ok()) std::cout << drawn.output;  // else the tests have said why
    }
}

}  // namespace lab
