#include "lab/variants.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/region.h"
#include "lab/salt.h"
#include "lab/sha256.h"

namespace lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void apply(const fs::path& root, const Variant& variant, const Edit& edit) {
  std::string text = read_file(root / edit.file);
  const size_t at = text.find(edit.find);
  if (edit.find.empty() || at == std::string::npos || text.find(edit.find, at + 1) != std::string::npos)
    throw LabError("lab/variants.json, " + variant.name + ": `" + edit.find.substr(0, edit.find.find('\n')) +
                   "` stands not exactly once in " + edit.file);
  write_file(root / edit.file, text.replace(at, edit.find.size(), edit.replace));
}

// The lines of lab/regions.txt whose files were edited, with the hashes of what stands there now.
void hash_again(const fs::path& root, const std::set<std::string>& edited) {
  const fs::path path = root / "lab" / "regions.txt";
  std::istringstream lines(read_file(path));
  std::string all;
  for (std::string id, file, hash; lines >> id >> file >> hash;) {
    if (edited.contains(file)) {
      const std::string text = read_file(root / file);
      const std::map<std::string, Region> regions = find_regions(text);
      std::map<std::string, NewText> nothing;
      for (const auto& region : regions) nothing[region.first] = {};
      hash = sha256(id == "outside" ? with_regions(text, nothing) : regions.at(id).text);
    }
    all += id + " " + file + " " + hash + "\n";
  }
  write_file(path, all);
}

}  // namespace

std::vector<Variant> read_variants(const fs::path& root) {
  const fs::path path = root / "lab" / "variants.json";
  std::vector<Variant> variants;
  if (!fs::exists(path)) return variants;
  try {
    for (const json& from : json::parse(read_file(path))) {
      Variant variant{from.at("name"), from.at("title"), from.at("tasks"), {}};
      for (const json& choice : from.at("choices")) {
        variant.choices.push_back({choice.at("name"), {}});
        for (const json& edit : choice.at("edits"))
          variant.choices.back().edits.push_back({edit.at("file"), edit.at("find"), edit.at("replace")});
      }
      if (variant.choices.size() < 2 || !variant.choices[0].edits.empty())
        throw LabError("lab/variants.json, " + variant.name +
                       ": expected two choices or more, of which the first edits nothing");
      variants.push_back(std::move(variant));
    }
  } catch (const json::exception& error) {
    throw LabError(std::string("lab/variants.json: ") + error.what());
  }
  return variants;
}

std::map<std::string, std::string> draw_variants(const std::vector<Variant>& variants,
                                                 const std::string& salt) {
  std::map<std::string, std::string> choices;
  for (const Variant& variant : variants)
    choices[variant.name] =
        variant.choices[derive_number(salt, "variant/" + variant.name) % variant.choices.size()].name;
  return choices;
}

void apply_variants(const fs::path& root, const std::map<std::string, std::string>& choices) {
  const std::vector<Variant> variants = read_variants(root);
  for (const auto& [name, of] : choices)
    if (std::ranges::count(variants, name, &Variant::name) == 0)
      throw LabError("lab/variants.json has no variant " + name);
  std::set<std::string> edited;
  for (const Variant& variant : variants) {
    const auto wanted = choices.find(variant.name);
    if (wanted == choices.end()) continue;
    const auto choice = std::ranges::find(variant.choices, wanted->second, &Choice::name);
    if (choice == variant.choices.end())
      throw LabError("lab/variants.json, " + variant.name + ": no choice " + wanted->second);
    for (const Edit& edit : choice->edits) {
      apply(root, variant, edit);
      edited.insert(edit.file);
    }
  }
  if (!edited.empty()) hash_again(root, edited);
}

}  // namespace lab
