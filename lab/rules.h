#pragma once
// What may not stand in a region that is handed in: looked for in its tokens, so that a name that only contains
// another one, a comment or a string does no harm; then in the symbols of what the compiler made of it, so that a call
// which the tokens hide is seen too.
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lab {

// One line each, with the line in the region: "line 12: `getenv`: the environment is not ...". `allows` (labs.json) names
// what a task may use all the same: "asm", "builtins", "casts", "extern", "files", "threads"; and "tests", for a student's
// test of a bug, lets it have the test framework and namespaces. `first_line`: the number of the region's first line.
std::vector<std::string> forbidden_in(std::string_view region, const std::vector<std::string>& allows,
                                      int first_line = 1);

// The names in an object or a program, as nm prints them, mangled.
struct Symbols {
  std::set<std::string> undefined;
  std::set<std::string> strong, weak;  // defined, seen by other objects
};

// Error: nm cannot read it.
Symbols symbols_of(const std::filesystem::path& object);

// What a student's object calls or defines beyond the reference's.
struct SymbolFindings {
  std::vector<std::string> forbidden;  // of the system, or a definition that would take the place of another
  std::vector<std::string> unusual;    // of the project: for the instructor's eye
};

// `elsewhere`: what the program defines without this object's file.
SymbolFindings compare_symbols(const Symbols& object, const Symbols& reference,
                               const std::set<std::string>& elsewhere);

}  // namespace lab
