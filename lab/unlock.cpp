#include "lab/unlock.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/salt.h"
#include "lab/seal.h"

namespace lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string label_of(const std::string& lab, const std::string& release) {
  return "lab " + lab + " of release " + release;
}

std::string sealed_file(const std::string& lab) {
  return "lab/sealed/" + lab + ".bin";
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The lab's sealed text. Error: says which of all that can be wrong is.
json open_lab(const Tree& tree, const std::string& id, const std::string& digits) {
  const auto& info = tree.release_info();
  if (!info)
    throw LabError("unlock: this is no released repository; the reference of every task stands in its file");
  const auto is_it = [&](const Lab& lab) { return lab.id == id; };
  if (std::ranges::none_of(tree.course().labs, is_it))
    throw LabError("no lab '" + id + "': this release has locked " + listed(info->cut));
  if (std::ranges::count(info->cut, id) == 0)
    throw LabError("lab " + id + " is not locked: its reference stands in its files");
  if (!info->sealed.contains(id))
    throw LabError("lab " + id + " cannot be unlocked: this release came without the reference");
  const std::string path = sealed_file(id);
  std::string key;
  try {
    key = from_hex(digits);
  } catch (const LabError&) {
  }
  if (key.size() != 32) throw LabError("--key: expected 64 hexadecimal digits, as the instructor gives them");
  if (key_id(key) != info->sealed.at(id)) {
    for (const auto& [other, its_key] : info->sealed)
      if (its_key == key_id(key)) throw LabError("this is the key of lab " + other + ", not of lab " + id);
    throw LabError("this is not the key of lab " + id + " of the course '" + info->course + "'");
  }
  if (!fs::exists(tree.root() / path)) throw LabError(path + " is missing: git checkout " + path);
  try {
    return json::parse(unseal(read_file(tree.root() / path), key, label_of(id, info->release)));
  } catch (const std::exception& error) {
    throw LabError(path + " is damaged: git checkout " + path);
  }
}

// Those of the other labs stay. Returns whether it changed the file.
bool keep_bugs(const Tree& tree, const Lab& lab, const json& bugs) {
  const fs::path path = tree.root() / ".lab" / "bugs.json";
  json all = json::array();
  if (fs::exists(path)) try {
      for (const json& bug : json::parse(read_file(path)))
        if (std::ranges::count(lab.tasks, bug.at("task").get<std::string>()) == 0) all.push_back(bug);
    } catch (const json::exception&) {  // spoilt: those of other labs come back when these are unlocked again
      all = json::array();
    }
  for (const json& bug : bugs) all.push_back(bug);
  const std::string text = all.dump(1) + "\n";
  if (bugs.empty() || (fs::exists(path) && read_file(path) == text)) return false;
  write_file(path, text);
  return true;
}

}  // namespace

std::string seal_lab(const Tree& tree, const Lab& lab, const json& bugs, const std::string& key,
                     const std::string& release) {
  json all = {{"regions", json::array()}, {"bugs", json::array()}};
  for (const std::string& id : lab.tasks) {
    const Task& task = tree.course().task(id);
    if (task.given) continue;
    for (const std::string& path : task.regions)
      all["regions"].push_back({{"task", id}, {"file", path}, {"text", tree.reference(task, path)}});
  }
  for (const json& bug : bugs)
    if (std::ranges::count(lab.tasks, bug.at("task").get<std::string>()) > 0) all["bugs"].push_back(bug);
  return seal(all.dump(), key, label_of(lab.id, release));
}

bool unlock(const Tree& tree, const std::string& lab_id, const std::string& key_digits) {
  const json sealed = open_lab(tree, lab_id, key_digits);
  const Lab& lab = *std::ranges::find(tree.course().labs, lab_id, &Lab::id);
  bool news = false;
  for (const json& region : sealed.at("regions")) {
    const Task& task = tree.course().task(region.at("task"));
    news |= !tree.has_reference(task);
    tree.keep_reference(task, region.at("file"), region.at("text"));
  }
  return keep_bugs(tree, lab, sealed.at("bugs")) || news;
}

}  // namespace lab
