#include <algorithm>
#include <array>
#include <iostream>
#include <set>
#include <sstream>

#include "lab/commands.h"
#include "lab/files.h"
#include "lab/grade.h"
#include "lab/lab_error.h"
#include "lab/lane.h"
#include "lab/report.h"
#include "lab/submissions.h"

namespace lab {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> kFormats = {"text", "gradescope", "classroom", "csv"};

// The tasks of a list of tasks, labs and bugs; the bugs go to `bugs`.
std::vector<std::string> task_ids(const Tree& tree, const std::string& list, std::vector<std::string>& bugs) {
  std::vector<std::string> ids;
  std::istringstream words(list);
  for (std::string id; std::getline(words, id, ',');)
    if (id.find('#') != std::string::npos)
      bugs.push_back(find_bug(tree.root(), id).id);
    else
      for (const Task* task : tree.course().tasks_of(id))
        if (why_not_graded(*task).empty() || task->id == id) ids.push_back(task->id);
  return ids;
}

// A name for a file: a student's name is theirs to choose.
std::string file_name(const std::string& student) {
  std::string name = student.substr(0, 100);
  std::ranges::replace_if(
      name, [](unsigned char c) { return c < 0x80 && !std::isalnum(c) && c != '-' && c != '_' && c != '.'; },
      '_');
  return name.empty() || name[0] == '.' ? "_" + name : name;
}

std::string report(const Grade& grade, const std::string& format) {
  if (format == "gradescope") return gradescope_report(grade);
  if (format == "classroom") return classroom_report(grade);
  return text_report(grade);
}

// Whatever happens with one hand-in stays its own.
Grade grade_one(Grader& grader, const Submission& submission) {
  try {
    return grader.grade(submission);
  } catch (const std::exception& error) {
    Grade grade;
    grade.hand_in = submission.name;
    grade.student = submission.student;
    grade.errors = {std::string("it could not be graded: ") + error.what()};
    return grade;
  }
}

}  // namespace

int grade(const Tree& tree, const std::vector<std::string>& hand_ins, const GradeSettings& settings) {
  const std::string format = settings.format.empty() ? "text" : settings.format;
  if (std::ranges::find(kFormats, format) == kFormats.end())
    throw LabError("--format " + format + ": expected text, gradescope, classroom or csv");
  const bool only_prepares = hand_ins.empty() && !settings.tasks.empty();
  if (hand_ins.empty() && !only_prepares)
    throw LabError("grade: expected hand-ins: .json files, folders or archives of them");
  GradeOptions options;
  options.salt = settings.salt;
  options.tasks = task_ids(tree, settings.tasks, options.bugs);
  if (settings.sandbox == "none")
    options.sandbox = Sandbox::none;
  else if (!settings.sandbox.empty() && settings.sandbox != "namespaces")
    throw LabError("--sandbox " + settings.sandbox + ": expected namespaces or none");
  const std::vector<Submission> submissions =
      only_prepares ? std::vector<Submission>() : read_submissions(hand_ins);
  const bool one_file = format == "text" || format == "csv" || submissions.size() <= 1;
  if (!one_file && settings.out.empty())
    throw LabError("--format " + format + " for several hand-ins: expected --out FOLDER");

  if (!settings.variants.empty() && settings.variants != "none")
    throw LabError("--variants " + settings.variants +
                   ": expected none, or nothing: those that the salt draws");
  options.with_variants = settings.variants.empty();
  if (settings.salt.empty())
    std::cerr << "lab: no --salt: the hidden tests' seeds are ones that every student can compute\n";
  Grader grader(tree, options);
  std::set<std::string> tasks(options.tasks.begin(), options.tasks.end());
  if (settings.tasks.empty())
    for (const Submission& submission : submissions)
      for (const auto& [id, texts] : read_hand_in(grader.tree(), submission.text, {}).texts) tasks.insert(id);
  grader.prepare({tasks.begin(), tasks.end()}, [](const std::string& what) {
    std::cerr << "lab: building and running " << what << std::endl;
  });
  if (only_prepares) return 0;

  std::vector<Grade> grades;
  std::set<std::string> names;
  for (const Submission& submission : submissions) {
    grades.push_back(grade_one(grader, submission));
    const Grade& grade = grades.back();
    std::cerr << "lab: " << grades.size() << " of " << submissions.size() << ": " << grade.student << ", "
              << points_text(grade.points()) << " of " << points_text(grade.of()) << std::endl;
    if (format == "csv") continue;
    const std::string text = report(grade, format);
    if (settings.out.empty()) {
      std::cout << text << std::flush;
      continue;
    }
    std::string name = file_name(grade.student);
    for (int count = 2; !names.insert(name).second; ++count)
      name = file_name(grade.student) + "-" + std::to_string(count);
    write_file(fs::path(settings.out) / (name + (format == "text" ? ".txt" : ".json")), text);
  }
  if (format == "csv" || !settings.out.empty()) {
    const std::string rows = csv_report(grades);
    if (settings.out.empty())
      std::cout << rows;
    else
      write_file(fs::path(settings.out) / "grades.csv", rows);
  }
  return std::ranges::any_of(grades, [](const Grade& grade) { return !grade.errors.empty(); }) ? 1 : 0;
}

}  // namespace lab
