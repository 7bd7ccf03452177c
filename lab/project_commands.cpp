#include <iostream>

#include "lab/commands.h"
#include "lab/files.h"

// What tools/check_stubs.py asks for: the reference with one task's regions as stubs, or with all regions traced.

namespace lab {
namespace {

namespace fs = std::filesystem;

using Texts = std::map<std::string, std::map<std::string, NewText>>;  // path -> task -> text

void write(const Tree& tree, const Texts& texts, const fs::path& folder, const std::string& first_line) {
  for (const auto& [path, in_path] : texts) {
    write_if_changed(folder / path, first_line + with_regions(read_file(tree.root() / path), in_path));
    std::cout << path << "\n";
  }
}

}  // namespace

int write_stubs(const Tree& tree, const std::string& id, const std::string& folder) {
  Texts texts;
  for (const Task* task : tree.course().tasks_of(id))
    for (const std::string& path : task->regions) texts[path][task->id] = {tree.stub(*task, path), ""};
  write(tree, texts, folder, "");
  return 0;
}

int write_traced(const Tree& tree, const std::string& folder) {
  Texts texts;
  for (const Task& task : tree.course().tasks)
    for (const std::string& path : task.regions)
      texts[path][task.id] = {make_traced(tree.region(task, path).text, task.id), ""};
  write(tree, texts, folder, "#include \"lab/ran.h\"\n");
  return 0;
}

}  // namespace lab
