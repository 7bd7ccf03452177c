#include "lab/submissions.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "lab/archive.h"
#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/lane.h"
#include "lab/sha256.h"

namespace lab {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxErrors = 20;  // that a report says of one hand-in

std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return text.substr(0, 300);
}

std::string student_of(const fs::path& path, const std::string& otherwise) {
  const std::string stem = path.stem().string();
  if (!stem.starts_with("hand-in")) return stem;
  const std::string folder = path.parent_path().filename().string();
  return folder.empty() || folder == "." ? otherwise.empty() ? stem : otherwise : folder;
}

void add_file(const fs::path& path, bool named, std::vector<Submission>& to) {
  Submission submission{one_line(path.string()), one_line(student_of(path, "")), "", "", {}};
  std::error_code error;
  if (!named && fs::is_symlink(path)) {
    submission.error = "a link, not a file";
  } else if (!fs::is_regular_file(path)) {
    submission.error = "neither a file nor a folder";
  } else if (is_archive(path)) {
    std::string stem = path.filename().string();
    for (const char* ending : {".zip", ".tar.gz", ".tgz", ".tar"})
      if (stem.ends_with(ending)) stem.resize(stem.size() - std::string(ending).size());
    submission.student = one_line(stem);
    std::vector<Submission> inside;
    try {
      read_archive(path, [&](ArchiveEntry entry) {
        inside.push_back({submission.name + ":" + one_line(entry.path),
                          one_line(student_of(entry.path, stem)),
                          std::move(entry.text),
                          entry.error,
                          {}});
      });
      if (inside.empty()) submission.error = "no hand-in (.json) in the archive";
    } catch (const LabError& wrong) {
      submission.error = one_line(wrong.what());
    }
    to.insert(to.end(), inside.begin(), inside.end());
    if (submission.error.empty()) return;
  } else if (static_cast<int64_t>(fs::file_size(path, error)) > ArchiveLimits{}.entry) {
    submission.error =
        "more than " + std::to_string(ArchiveLimits{}.entry >> 20) + " MiB: no hand-in is so large";
  } else {
    try {
      submission.text = read_file(path);
    } catch (const LabError& wrong) {
      submission.error = wrong.what();
    }
  }
  to.push_back(std::move(submission));
}

// The tasks and bugs that a hand-in says it holds.
std::set<std::string> ids_in(const std::string& text) {
  std::set<std::string> ids;
  try {
    const auto all = nlohmann::json::parse(text);
    for (const auto& region : all.at("regions")) ids.insert(region.at("task"));
    for (const auto& test : all.value("bugs", nlohmann::json::array())) ids.insert(test.at("bug"));
  } catch (const nlohmann::json::exception&) {  // said where it is graded
  }
  return ids;
}

// A student with several hand-ins, and students with the same one.
void compare(std::vector<Submission>& all) {
  std::map<std::string, std::map<std::string, std::vector<Submission*>>> by_student;  // and task
  std::map<std::string, std::vector<Submission*>> by_text;
  for (Submission& one : all) {
    for (const std::string& id : ids_in(one.text)) by_student[one.student][id].push_back(&one);
    if (!one.text.empty()) by_text[one.text].push_back(&one);
  }
  for (const auto& [student, tasks] : by_student)
    for (const auto& [id, of] : tasks)
      for (Submission* one : of)
        if (of.size() > 1)
          one->flags.push_back(student + " handed in " + id + " " + std::to_string(of.size()) +
                               " times; each is graded");
  for (const auto& [text, of] : by_text)
    for (Submission* one : of)
      for (const Submission* other : of)
        if (other->student != one->student)
          one->flags.push_back("the same hand-in as that of " + other->student);
}

}  // namespace

std::vector<Submission> read_submissions(const std::vector<std::string>& paths) {
  std::vector<Submission> all;
  for (const std::string& name : paths) {
    if (!fs::exists(name)) throw LabError(name + ": no such file or folder");
    if (!fs::is_directory(name)) {
      add_file(name, true, all);
      continue;
    }
    for (auto at = fs::recursive_directory_iterator(name, fs::directory_options::skip_permission_denied);
         at != fs::recursive_directory_iterator(); ++at) {
      const fs::path& path = at->path();
      if (at->is_symlink() ? path.extension() == ".json" || is_archive(path)
                           : !at->is_directory() && (path.extension() == ".json" || is_archive(path)))
        add_file(path, false, all);
    }
  }
  if (all.empty()) throw LabError("no hand-in there: expected .json files, or .zip, .tar or .tar.gz of them");
  std::ranges::stable_sort(all, {}, [](const Submission& one) { return std::pair(one.student, one.name); });
  compare(all);
  return all;
}

HandIn read_hand_in(const Tree& tree, const std::string& text, const std::vector<std::string>& ids,
                    const Machine& machine) {
  HandIn hand_in;
  const auto wrong = [&](const std::string& line, const std::string& of = {}) {
    if (!of.empty()) hand_in.why_not.emplace(of, one_line(line));
    if (hand_in.errors.size() < kMaxErrors)
      hand_in.errors.push_back(one_line(line));
    else if (hand_in.errors.size() == kMaxErrors)
      hand_in.errors.push_back("and more of this kind");
  };
  const auto graded = [&](const std::string& id) {
    return ids.empty() || std::ranges::find(ids, id) != ids.end();
  };
  try {
    const auto all = nlohmann::json::parse(text);
    if (all.at("format") != 1) return wrong("a hand-in of a format that this program does not know"), hand_in;
    const std::string release = all.at("release");
    if (release != tree.release())
      return wrong("a hand-in of release " + release + "; this is release " + tree.release()), hand_in;
    std::set<std::string> bad;
    for (const auto& region : all.at("regions")) {
      const std::string id = region.at("task"), file = region.at("file"), content = region.at("text");
      const auto task = std::ranges::find(tree.course().tasks, id, &Task::id);
      if (task == tree.course().tasks.end()) {
        wrong("a region of task '" + id + "', which the course has not: left out");
        continue;
      }
      if (const std::string why = why_not_graded(*task, machine); !why.empty()) {
        wrong(why + ": its region is left out", id);
        continue;
      }
      if (!graded(id)) {
        wrong("a region of task " + id + ", which is not graded: left out");
        continue;
      }
      if (std::ranges::find(task->regions, file) == task->regions.end()) {
        wrong("task " + id + " has no region in '" + file + "'", id);
        bad.insert(id);
      } else if (sha256(content) != region.at("sha256").get<std::string>()) {
        wrong(
            "the text of task " + id + " in " + file + " is not the one that was handed in: its hash differs",
            id);
        bad.insert(id);
      } else if (!hand_in.texts[id].emplace(file, content).second) {
        wrong("task " + id + ": two texts for " + file, id);
        bad.insert(id);
      }
    }
    for (const auto& [id, files] : hand_in.texts)
      for (const std::string& path : tree.course().task(id).regions)
        if (!files.contains(path)) {
          wrong("task " + id + ": no text for its region in " + path, id);
          bad.insert(id);
        }
    for (const std::string& id : bad) hand_in.texts.erase(id);
    const std::vector<Bug> bugs = read_bugs(tree.root());
    for (const auto& test : all.value("bugs", nlohmann::json::array())) {
      const std::string id = test.at("bug"), content = test.at("text");
      if (std::ranges::find(bugs, id, &Bug::id) == bugs.end()) {
        wrong("a test of bug '" + id + "', which the course has not: left out");
      } else if (!graded(id)) {
        wrong("a test of bug " + id + ", which is not graded: left out");
      } else if (sha256(content) != test.at("sha256").get<std::string>()) {
        wrong("the test of bug " + id + " is not the one that was handed in: its hash differs", id);
        bad.insert(id);
      } else if (std::ranges::find(hand_in.bugs, id, &BugTest::bug) != hand_in.bugs.end()) {
        wrong("bug " + id + ": two tests", id);
        bad.insert(id);
      } else {
        hand_in.bugs.push_back({id, content});
      }
    }
    std::erase_if(hand_in.bugs, [&](const BugTest& test) { return bad.contains(test.bug); });
    for (const std::string& id : ids) {
      const bool is_there = hand_in.texts.contains(id) || bad.contains(id) ||
                            std::ranges::find(hand_in.bugs, id, &BugTest::bug) != hand_in.bugs.end();
      if (!is_there)
        wrong("nothing of " + (id.find('#') == std::string::npos ? "task " + id : "bug " + id) + " in it",
              id);
    }
  } catch (const nlohmann::json::exception& error) {
    hand_in.texts.clear();
    hand_in.bugs.clear();
    wrong(std::string("no hand-in: ") + error.what());
  }
  return hand_in;
}

}  // namespace lab
