#include "lab/tree.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/process.h"
#include "lab/sha256.h"

namespace lab {
namespace {

namespace fs = std::filesystem;

std::string hash_of(std::string text) {
  std::erase(text, '\r');  // git may check files out with Windows' line ends
  return sha256(text);
}

std::string lab_of(const Course& course, const std::string& task) {
  for (const Lab& lab : course.labs)
    if (std::ranges::count(lab.tasks, task) > 0) return lab.id;
  return "LAB";
}

// The region as some older commit has it, looked for from the newest to the oldest.
std::optional<std::string> from_history(const fs::path& root, const std::string& id, const std::string& path,
                                        const std::string& hash) {
  std::istringstream commits(run({"git", "-C", root.string(), "log", "--format=%H", "--", path}).output);
  for (std::string commit; std::getline(commits, commit);) {
    const Outcome shown = run({"git", "-C", root.string(), "show", commit + ":" + path});
    if (!shown.ok()) continue;
    try {
      const auto regions = find_regions(shown.output);
      const auto found = regions.find(id);
      if (found != regions.end() && hash_of(found->second.text) == hash) return found->second.text;
    } catch (const LabError&) {
    }
  }
  return std::nullopt;
}

}  // namespace

fs::path lock_of(const fs::path& root) {
  return root / ".lab" / "lock";
}

fs::path find_root(const fs::path& folder) {
  for (fs::path at = fs::absolute(folder);; at = at.parent_path()) {
    if (fs::exists(at / "lab" / "labs.json")) return at;
    if (at == at.parent_path())
      throw LabError(folder.string() + " is in no checkout of the course: no lab/labs.json");
  }
}

Tree::Tree(fs::path root) : root_(std::move(root)), course_(read_course(root_ / "lab" / "labs.json")) {
  std::istringstream lines(read_file(root_ / "lab" / "regions.txt"));
  for (std::string id, path, hash; lines >> id >> path >> hash;) reference_hashes_[{id, path}] = hash;
  release_info_ = read_release_info(root_);
  if (release_info_)
    for (const Lab& lab : course_.labs)
      if (std::ranges::count(release_info_->cut, lab.id) > 0)
        for (const std::string& id : lab.tasks)
          if (!course_.task(id).given) cut_.insert(id);
  read_files();
  if (!fs::exists(root_ / ".lab" / "choices")) return;
  std::istringstream choices(read_file(root_ / ".lab" / "choices"));
  for (std::string what, id; choices >> what >> id;) {
    if (what == "start") started_ = id;
    if (what == "start" || what == "begun") begun_.insert(id);
    if (what == "mine" || what == "reference") uses_mine_[id] = what == "mine";
  }
}

void Tree::read_files() {
  for (const Task& task : course_.tasks)
    for (const std::string& path : task.regions) {
      if (files_.contains(path) || problems_.contains(path)) continue;
      try {
        files_[path] = read_file(root_ / path);
        regions_[path] = find_regions(files_[path]);
      } catch (const LabError& error) {
        problems_[path] = files_.contains(path) ? path + ", " + error.what() : error.what();
      }
    }
}

std::string Tree::release() const {
  return sha256(read_file(root_ / "lab" / "labs.json") + read_file(root_ / "lab" / "regions.txt"))
      .substr(0, 12);
}

const Region& Tree::region(const Task& task, const std::string& path) const {
  if (const auto problem = problems_.find(path); problem != problems_.end()) throw LabError(problem->second);
  const auto& found = regions_.at(path);
  if (!found.contains(task.id))
    throw LabError(path + ": the region of task " + task.id + " is missing: expected `// >>> task " +
                   task.id + ": ...` and `// <<< task " + task.id + "`");
  return found.at(task.id);
}

bool Tree::is_reference(const Task& task, const std::string& path) const {
  const auto hash = reference_hashes_.find({task.id, path});
  return hash != reference_hashes_.end() && hash_of(region(task, path).text) == hash->second;
}

std::string Tree::stub(const Task& task, const std::string& path) const {
  const std::string& text = region(task, path).text;
  try {
    return make_stub(text, task.id, task.rungs);
  } catch (const LabError& error) {
    throw LabError(path + ", region of task " + task.id + ", " + error.what());
  }
}

std::string Tree::reference(const Task& task, const std::string& path) const {
  const auto hash = reference_hashes_.find({task.id, path});
  if (hash == reference_hashes_.end())
    throw LabError("lab/regions.txt does not name task " + task.id + " in " + path);
  if (is_reference(task, path)) return region(task, path).text;
  const fs::path kept = root_ / ".lab" / "reference" / hash->second;
  if (fs::exists(kept))
    if (std::string text = read_file(kept); hash_of(text) == hash->second) return text;
  if (is_cut(task))
    throw LabError("the reference of task " + task.id + " is not here: " +
                   (release_info_->sealed.empty() ? "this release came without it"
                                                  : "./ladder lab unlock " + lab_of(course_, task.id) +
                                                        " --key K, with the key that the instructor gives"));
  if (auto text = from_history(root_, task.id, path, hash->second)) {
    write_file(kept, *text);
    return *text;
  }
  throw LabError("the reference of task " + task.id + " in " + path +
                 " is neither in this checkout nor in its history: git pull, or ./ladder lab use mine " +
                 task.id);
}

void Tree::keep_reference(const Task& task, const std::string& path, const std::string& text) const {
  const auto hash = reference_hashes_.find({task.id, path});
  if (hash == reference_hashes_.end() || hash_of(text) != hash->second)
    throw LabError("the reference of task " + task.id + " in " + path +
                   " is not the one that lab/regions.txt names");
  write_if_changed(root_ / ".lab" / "reference" / hash->second, text);
}

bool Tree::has_reference(const Task& task) const {
  if (!is_cut(task)) return true;
  return std::ranges::all_of(task.regions, [&](const std::string& path) {
    const auto hash = reference_hashes_.find({task.id, path});
    return hash != reference_hashes_.end() && fs::exists(root_ / ".lab" / "reference" / hash->second);
  });
}

std::string Tree::reference_file(const std::string& path) const {
  const auto problem = problems_.find(path);
  if (problem != problems_.end()) throw LabError(problem->second);
  const auto regions = regions_.find(path);
  if (regions == regions_.end()) return read_file(root_ / path);
  std::map<std::string, NewText> texts;
  for (const auto& [id, region] : regions->second) texts[id] = {reference(course_.task(id), path), ""};
  return with_regions(files_.at(path), texts);
}

Text Tree::text_of(const Task& task, const std::string& path) const {
  if (is_reference(task, path))
    return is_cut(task) || begun_.contains(task.id) ? Text::mine : Text::reference;
  return is_stub(region(task, path).text, task.id, task.rungs) ? Text::stub : Text::mine;
}

TaskState Tree::state(const Task& task) const {
  TaskState state;
  bool mine = false, stub = false, unfinished = false, same = true;
  for (const std::string& path : task.regions) {
    try {
      const Text text = text_of(task, path);
      mine |= text == Text::mine;
      stub |= text == Text::stub;
      unfinished |= text != Text::reference && is_unfinished(region(task, path).text);
      same &= is_reference(task, path);
    } catch (const LabError& error) {
      state.text = Text::broken;
      state.problem = error.what();
      state.builds_reference = false;
      return state;
    }
  }
  state.text = mine ? Text::mine : stub ? Text::stub : Text::reference;
  state.unfinished = mine && unfinished;
  state.is_reference = mine && same;
  const auto told = uses_mine_.find(task.id);
  if (state.text == Text::reference)
    state.builds_reference = true;
  else if (told != uses_mine_.end())
    state.builds_reference = !told->second;
  else
    state.builds_reference = unfinished && task.id != started_;
  if (state.text != Text::reference && !has_reference(task)) {
    state.builds_reference = false;
    state.is_missing = unfinished;
  }
  return state;
}

void Tree::check(const std::vector<const Task*>& tasks) const {
  for (const Task* task : tasks)
    for (const std::string& path : task->regions) region(*task, path);
}

std::vector<std::string> Tree::changed_outside(const Task& task) const {
  std::vector<std::string> changed;
  for (const std::string& path : task.regions) {
    region(task, path);  // so it is whole
    std::map<std::string, NewText> nothing;
    for (const auto& [id, region] : regions_.at(path)) nothing[id] = {};
    const auto hash = reference_hashes_.find({"outside", path});
    if (hash == reference_hashes_.end() || hash_of(with_regions(files_.at(path), nothing)) != hash->second)
      changed.push_back(path);
  }
  return changed;
}

// While the checkout still has them: a text that is written over must not be gone.
void Tree::keep_references() const {
  for (const Task& task : course_.tasks)
    for (const std::string& path : task.regions) {
      if (problems_.contains(path) || !regions_.at(path).contains(task.id) || !is_reference(task, path))
        continue;
      const fs::path kept = root_ / ".lab" / "reference" / reference_hashes_.at({task.id, path});
      if (!fs::exists(kept)) write_file(kept, region(task, path).text);
    }
}

void Tree::save_choices() const {
  std::string lines = started_.empty() ? "" : "start " + started_ + "\n";
  for (const std::string& id : begun_)
    if (id != started_) lines += "begun " + id + "\n";
  for (const auto& [id, mine] : uses_mine_) lines += (mine ? "mine " : "reference ") + id + "\n";
  write_file(root_ / ".lab" / "choices", lines);
}

std::vector<std::string> Tree::start(const Task& task, bool anew) {
  if (task.given) throw LabError("task " + task.id + " is given: there is nothing to write");
  const TaskState before = state(task);
  std::map<std::string, std::string> changed;
  for (const std::string& path : task.regions) {
    if (!is_reference(task, path)) continue;           // a stub already, or the student's own text
    if (before.text == Text::mine && !anew) continue;  // may be what the student wrote
    changed[path] = with_regions(files_.at(path), {{task.id, {stub(task, path), ""}}});
  }
  keep_references();
  std::vector<std::string> paths;
  for (const auto& [path, text] : changed) {
    write_file(root_ / path, text);
    paths.push_back(path);
  }
  files_.clear(), regions_.clear(), problems_.clear();
  read_files();
  started_ = task.id;
  begun_.insert(task.id);
  uses_mine_.erase(task.id);
  save_choices();
  splice();
  return paths;
}

void Tree::use(const Task& task, bool mine) {
  const TaskState now = state(task);
  if (now.text == Text::broken) throw LabError(now.problem);
  if (mine && now.text == Text::reference)
    throw LabError("task " + task.id + ": no text of yours stands in its regions; ./ladder lab start " +
                   task.id);
  if (!mine)
    for (const std::string& path : task.regions) reference(task, path);
  keep_references();
  if (now.text == Text::reference)
    uses_mine_.erase(task.id);
  else
    uses_mine_[task.id] = mine;
  save_choices();
  splice();
}

void Tree::splice(bool traced, bool all_reference) const {
  std::map<std::string, std::map<std::string, NewText>> texts;  // path -> task -> text
  for (const Task& task : course_.tasks) {
    const TaskState now = state(task);
    if (now.text == Text::broken || now.text == Text::reference) continue;
    const bool written = now.text == Text::mine && !now.unfinished;
    for (const std::string& path : task.regions) {
      if ((all_reference && has_reference(task)) || now.builds_reference ||
          (traced && !written && !now.is_missing)) {
        if (!is_reference(task, path))
          texts[path][task.id] = {reference(task, path), path + " (the reference of task " + task.id + ")"};
      } else if (traced) {
        try {
          texts[path][task.id] = {make_traced(region(task, path).text, task.id), ""};
        } catch (const LabError&) {  // cannot be traced; `demo` will not see it run, and says so
        }
      }
    }
  }
  const fs::path folder = root_ / ".lab" / "spliced";
  std::set<std::string> wanted;
  for (const auto& [path, in_path] : texts) {
    std::string copy = copy_with_regions(files_.at(path), in_path, (root_ / path).string());
    if (traced) copy = "#include \"lab/ran.h\"\n" + copy;
    write_if_changed(folder / path, copy);
    wanted.insert((folder / path).string());
  }
  if (!fs::exists(folder)) return;
  std::vector<fs::path> left;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && !wanted.contains(entry.path().string())) left.push_back(entry.path());
  for (const fs::path& path : left) fs::remove(path);
}

}  // namespace lab
