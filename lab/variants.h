#pragma once
// Choices in the course's contracts that the salt draws: where freed blocks go, how a prompt is cut. Each is the same
// work, and last year's solution fails the tests of another choice.
//
//   lab/variants.json: [{"name", "title", "tasks": [...], "choices": [{"name", "edits": [{"file", "find", "replace"}]}]}]
//
// The first choice is what the project's text has, without edits. The edits of another one change contract, reference
// and tests together; each `find` stands exactly once in its file (tools/variants.py proves it, and that the
// reference passes where the standard one fails).
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lab {

struct Edit {
  std::string file, find, replace;
};

struct Choice {
  std::string name;
  std::vector<Edit> edits;
};

struct Variant {
  std::string name, title;
  std::vector<std::string> tasks;
  std::vector<Choice> choices;
};

// Of the tree in `root`; none, if it has no lab/variants.json. Error: the file is damaged.
std::vector<Variant> read_variants(const std::filesystem::path& root);

// The choice of each variant, by name, that follows from the salt.
std::map<std::string, std::string> draw_variants(const std::vector<Variant>& variants,
                                                 const std::string& salt);

// Edits the tree in `root`, which is the project's unchanged text, and brings lab/regions.txt in line with it, so that
// release ids and hashes are those of the release. Error: no such choice, or a text stands not exactly once.
void apply_variants(const std::filesystem::path& root, const std::map<std::string, std::string>& choices);

}  // namespace lab
