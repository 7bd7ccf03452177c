#pragma once
// The starter text of a region, made from the text of its solution.
#include <string>
#include <string_view>
#include <vector>

namespace lab {

struct Rung {
  std::string op;
  std::vector<std::string> names;
};

// Every function body becomes a throw of TaskNotImplemented (on a GPU: nothing, or an empty value); constants, structs
// and comments between functions stay. A line for each rung keeps it out of the automatic choice. Error (LabError):
// the region cannot be a stub (functions.h), or defines no function.
std::string make_stub(std::string_view region, std::string_view task, const std::vector<Rung>& rungs);

// Whether nothing is written there yet: the region is its own stub.
bool is_stub(std::string_view region, std::string_view task, const std::vector<Rung>& rungs);

// Whether some of it still throws TaskNotImplemented, or keeps a rung out of the choice.
bool is_unfinished(std::string_view region);

// The same text that notes in a file which of its functions ran (lab/ran.h). GPU functions cannot.
std::string make_traced(std::string_view region, std::string_view task);

}  // namespace lab
