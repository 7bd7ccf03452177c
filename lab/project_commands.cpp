#include <iostream>
#include <random>

#include "lab/commands.h"
#include "lab/files.h"
#include "lab/performance.h"
#include "lab/rules.h"

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

int check_text(const Tree& tree, const std::string& id, const std::vector<std::string>& text_and_objects) {
  int found = 0;
  for (const std::string& line :
       forbidden_in(read_file(text_and_objects[0]), tree.course().task(id).allows)) {
    std::cout << "rules: " << line << "\n";
    found = 1;
  }
  for (size_t i = 1; i < text_and_objects.size(); ++i)
    for (const std::string& name : library_calls(symbols_of(text_and_objects[i]))) {
      std::cout << "symbols: " << name << "\n";
      found = 1;
    }
  return found;
}

int measure(const Tree& tree, const std::string& id, const std::vector<std::string>& folders_and_objects,
            bool confined) {
  const Task& task = tree.course().task(id);
  Measuring with;
  with.student = measured_build(folders_and_objects[0]);
  with.pristine = measured_build(folders_and_objects[1]);
  with.objects.assign(folders_and_objects.begin() + 2, folders_and_objects.end());
  with.salt = std::to_string(std::random_device{}());
  with.points = 100;
  with.confined = confined;
  std::vector<std::string> flags;
  std::vector<Part> parts = counted_parts(task, with, flags);
  for (Part& part : raced_parts(task, with, flags)) parts.push_back(std::move(part));
  for (const Part& part : parts)
    std::cout << part.points << " of " << part.of << "  " << part.name << ": " << part.text << "\n";
  for (const std::string& flag : flags) std::cout << "flag: " << flag << "\n";
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
