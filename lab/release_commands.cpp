#include <iostream>

#include "lab/commands.h"
#include "lab/lab_error.h"

namespace lab {
namespace {

void print_keys(const std::map<std::string, std::string>& keys, const std::vector<std::string>& of) {
  for (const std::string& lab : of) std::cout << "  " << lab << "  " << keys.at(lab) << "\n";
}

}  // namespace

int release(const Tree& tree, const ReleaseOptions& options) {
  const ReleaseInfo info = make_release(tree, options);
  std::cout << options.out.string() << ": release " << info.release << " of the course '" << info.course
            << "', without the reference of";
  for (const std::string& lab : info.cut) std::cout << " " << lab;
  std::cout << "\n";
  for (const auto& [name, choice] : info.variants)
    std::cout << "  variant " << name << ": " << choice << "\n";
  if (info.sealed.empty()) {
    std::cout << "the reference is not in it, so nothing can be unlocked\n";
  } else {
    std::cout
        << "keys, one for each lab, for ./ladder lab unlock LAB --key K (again: release --keys --salt S)\n";
    print_keys(lab_keys(tree.course(), options.salt), info.cut);
  }
  std::cout << options.out.string()
            << "-instructor: for you alone, it holds the salt and the tree to grade in; zipped it is "
            << "Gradescope's autograder\n";
  return 0;
}

int print_keys(const Tree& tree, const std::string& salt) {
  if (salt.empty()) throw LabError("release --keys: expected --salt S");
  std::vector<std::string> all;
  for (const Lab& lab : tree.course().labs) all.push_back(lab.id);
  print_keys(lab_keys(tree.course(), salt), all);
  return 0;
}

}  // namespace lab
