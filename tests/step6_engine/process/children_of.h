#pragma once
// Which processes a process has started.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace ladder::testing {

// Those whose parent is `parent`, or a thread of it; no zombies.
inline std::set<int> children_of(int parent) {
  std::set<int> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    const size_t end = text.rfind(')');
    if (end == text.npos) continue;
    char state = 0;
    int of = 0;
    if (std::sscanf(text.c_str() + end + 1, " %c %d", &state, &of) == 2 && of == parent && state != 'Z')
      children.insert(std::stoi(name));
  }
  return children;
}

}  // namespace ladder::testing
