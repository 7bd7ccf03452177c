#include "lab/grade.h"

#include <algorithm>
#include <future>
#include <sstream>

#include "lab/baseline.h"
#include "lab/bug_grade.h"
#include "lab/failure_text.h"
#include "lab/lab_error.h"
#include "lab/lane.h"
#include "lab/points.h"
#include "lab/rules.h"
#include "lab/stub.h"

namespace lab {
namespace {

namespace fs = std::filesystem;

// The errors among what the compiler or the linker says, as the student's file has them.
std::string compile_errors(const std::string& output, const std::string& root) {
  std::string errors;
  std::istringstream lines(output);
  int left = 30;
  bool in_error = false;
  for (std::string line; std::getline(lines, line) && left > 0;) {
    for (const char* mark :
         {"error:", "undefined reference", "multiple definition", "internal compiler error"})
      in_error |= line.find(mark) != std::string::npos;
    if (line.find("warning:") != std::string::npos || line.starts_with("[") || line.starts_with("ninja: "))
      in_error = false;
    if (in_error) errors += line.substr(0, 400) + "\n", --left;
  }
  return failure_text(errors.empty() ? output.substr(0, 3000) : errors, root, 30);
}

// What a student may read of a hidden test: everything but the seed that would repeat it.
std::string without_seeds(const std::string& text) {
  std::string kept;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("LADDER_TEST_SEED") != std::string::npos || line.find("seed ") != std::string::npos)
      continue;
    if (line.find("tests/hidden/") != std::string::npos) continue;
    if (line == "Google Test trace:") continue;
    kept += (kept.empty() ? "" : "\n") + line;
  }
  return kept;
}

std::string text_of(const TestResult& result, const GradedTest& test, const std::string& root) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(result.messages.size(), 3); ++i)
    text += (i == 0 ? "" : "\n") + failure_text(result.messages[i], root);
  if (result.messages.size() > 3) text += "\nand " + std::to_string(result.messages.size() - 3) + " more";
  if (result.verdict == Verdict::skipped) text = "skipped: " + text;
  return test.part == "hidden" ? without_seeds(text) : text;
}

}  // namespace

double Grade::points() const {
  double sum = 0;
  for (const Part& part : parts) sum += part.points;
  return sum;
}

double Grade::of() const {
  double sum = 0;
  for (const Part& part : parts) sum += part.of;
  return sum;
}

struct Grader::State {
  State(const Tree& instructors, GradeOptions from)
      : options(std::move(from)),
        graded(instructors, options.with_variants ? options.salt : "", options.sandbox),
        tree(graded.tree()),
        bugs(read_bugs(tree.root())) {}

  GradeOptions options;
  GradeTree graded;
  const Tree& tree;
  std::vector<Bug> bugs;
  std::map<std::string, Baseline> baselines;

  const Baseline& baseline(const Task& task) {
    const auto found = baselines.find(task.id);
    if (found != baselines.end()) return found->second;
    return baselines[task.id] = make_baseline(graded, task, options.salt, options.sandbox, options.machine);
  }

  Shares shares(const Task& task, const Baseline& of) const {
    HasParts has;
    has.hidden = std::ranges::any_of(of.tests, [](const GradedTest& test) { return test.part == "hidden"; });
    has.performance = !of.measuring.empty();
    has.bug = std::ranges::find(bugs, task.id, &Bug::task) != bugs.end();
    return shares_of(task.points, has);
  }

  // The parts of a task that brought nothing, for a reason that all of them share.
  void nothing(const Task& task, const Baseline& of, const std::string& why, Grade& grade) const {
    const Shares all = shares(task, of);
    if (all.published > 0) grade.parts.push_back({task.id, "public", "all tests", 0, all.published, why});
    if (all.hidden > 0) grade.parts.push_back({task.id, "hidden", "all tests", 0, all.hidden, why});
    if (all.performance > 0) grade.parts.push_back({task.id, "performance", "all", 0, all.performance, why});
  }

  // Each test that an empty text fails brings the same; one that it passes is no work, but costs where it fails.
  void tested(const Task& task, const Baseline& of, const std::vector<TestResult>& results,
              const std::string& part, double points, Grade& grade) const {
    int count = 0, guards = 0, broken = 0;
    for (const GradedTest& test : of.tests)
      if (test.part == part) ++(test.guard ? guards : count);
    const bool all_guards = count == 0;
    const double each = points / std::max(all_guards ? guards : count, 1);
    for (size_t i = 0; i < of.tests.size(); ++i) {
      const GradedTest& test = of.tests[i];
      if (test.part != part) continue;
      const bool passed = results[i].verdict == Verdict::passed;
      const double worth = test.guard && !all_guards ? 0 : each;
      Part said{task.id, part, test.name, passed ? worth : 0, worth, ""};
      if (!passed) said.text = text_of(results[i], test, graded.root().string());
      if (!passed && worth == 0) {
        ++broken;
        said.text = "(an unwritten task passes this test; where it fails, it takes points)\n" + said.text;
      }
      grade.parts.push_back(said);
    }
    double taken = each * broken;  // from what the others brought
    for (Part& one : grade.parts) {
      if (one.task != task.id || one.part != part || one.points <= 0 || taken <= 0) continue;
      const double less = std::min(taken, one.points);
      taken -= less;
      one.points -= less;
      one.text = "passed, but a test that an unwritten task passes fails: see below";
    }
  }

  // What passes on a GPU by luck is no work: with a finding of memcheck or racecheck no test brings anything.
  void looked_at(const Task& task, const Baseline& of, const std::vector<TestResult>& results,
                 Grade& grade) const {
    const auto brought = [&](const Part& one) { return one.task == task.id && one.points > 0; };
    if (std::ranges::none_of(grade.parts, brought)) return;
    std::vector<bool> passed;
    for (const TestResult& result : results) passed.push_back(result.verdict == Verdict::passed);
    const std::string found = found_in_tests(graded, of, passed, options.machine, options.sandbox);
    if (found.empty()) return;
    grade.errors.push_back("task " + task.id + ": " + found);
    std::map<std::string, Part> taken;
    for (const Part& one : grade.parts)
      if (brought(one)) {
        Part& all = taken[one.part];
        all = {task.id, one.part, "the tests that pass", 0, all.of + one.of, "not scored: " + found};
      }
    std::erase_if(grade.parts, brought);
    for (const char* part : {"public", "hidden"})
      if (taken.contains(part)) grade.parts.push_back(taken[part]);
  }

  // Counted and timed.
  void measured(const Task& task, const Baseline& of, double points, Grade& grade) const {
    if (of.measuring.empty()) return;
    Measuring with;
    with.student = measured_build(graded.build_folder(measured_in(task)));
    with.pristine = of.pristine;
    with.salt = options.salt;
    with.points = points;
    with.sanitizer = options.machine.sanitizer;
    with.sandbox = options.sandbox;
    try {
      for (auto parts : {counted_parts(task, with, grade.flags), raced_parts(task, with, grade.flags)})
        for (Part& part : parts) grade.parts.push_back(std::move(part));
    } catch (const LabError& error) {
      grade.flags.push_back("task " + task.id + ": not measured: " + error.what());
      grade.parts.push_back(
          {task.id, "performance", "all", 0, points, std::string("not measured: ") + error.what()});
    }
  }

  // The bugs of a task divide its share among them.
  void grade_bugs(const std::vector<BugTest>& tests, Grade& grade) {
    graded.restore();
    BugGrading with{tree, bugs, graded.build_folder(Build::release),
                    [&](const std::string& target) { return graded.build_hand_in(Build::release, {target}); },
                    options.sandbox};
    std::vector<std::string> asked = options.bugs;
    if (asked.empty())
      for (const BugTest& test : tests) asked.push_back(test.bug);
    std::map<std::string, std::vector<std::string>> of_task;
    for (const std::string& id : asked) of_task[std::ranges::find(bugs, id, &Bug::id)->task].push_back(id);
    for (const auto& [id, its] : of_task) {
      const Task& task = tree.course().task(id);
      const double each = shares_of(task.points, {.bug = true}).bug / static_cast<double>(its.size());
      if (std::ranges::find(grade.tasks, id) == grade.tasks.end()) grade.tasks.push_back(id);
      graded.build_reference(Build::release, {task.target});  // so that only the test is built in the sandbox
      for (const std::string& bug : its) {
        const auto test = std::ranges::find(tests, bug, &BugTest::bug);
        if (test == tests.end())
          grade.parts.push_back({id, "bug", bug, 0, each, "not in the hand-in"});
        else
          for (Part& part : bug_parts(with, {*test}, each)) grade.parts.push_back(std::move(part));
      }
    }
  }

  void grade_task(const Task& task, const std::map<std::string, std::string>& texts, Grade& grade) {
    const Baseline& of = baseline(task);
    grade.tasks.push_back(task.id);
    std::vector<std::string> refused;
    bool same = true;
    for (const auto& [path, text] : texts) {
      for (const std::string& line : forbidden_in(text, task.allows)) refused.push_back(path + ", " + line);
      same &= text == tree.reference(task, path);
      if (is_unfinished(text))
        grade.flags.push_back("task " + task.id + ": " + path + " still holds a stub's lines");
    }
    if (same) grade.flags.push_back("task " + task.id + ": the reference's very text");
    if (!refused.empty()) {
      const size_t more = refused.size() - 1;
      grade.errors.push_back("task " + task.id + ": " + refused[0] +
                             (more > 0 ? " (and " + std::to_string(more) + " more)" : ""));
      return nothing(task, of, "not graded: " + refused[0], grade);
    }
    graded.put(task, texts);
    std::future<std::string> asan;
    if (of.builds.contains(Build::asan))
      asan = std::async(std::launch::async, [&] { return graded.build_hand_in(Build::asan, of.targets); });
    std::map<Build, std::vector<std::string>> targets = {{of.build(), of.targets}};
    std::vector<std::string>& measuring = targets[measured_in(task)];
    measuring.insert(measuring.end(), of.measuring.begin(), of.measuring.end());
    std::string said;
    for (const auto& [build, names] : targets)
      if (said.empty() && !names.empty()) said = graded.build_hand_in(build, names);
    if (asan.valid())
      if (const std::string with_asan = asan.get(); said.empty()) said = with_asan;
    if (!said.empty()) {
      grade.errors.push_back("task " + task.id + ": it does not compile");
      return nothing(task, of, "it does not compile:\n" + compile_errors(said, graded.root().string()),
                     grade);
    }
    for (const auto& [path, text] : texts) {
      Symbols symbols;
      for (const fs::path& object : graded.objects(of.build(), path)) {
        const Symbols one = symbols_of(object);
        symbols.undefined.insert(one.undefined.begin(), one.undefined.end());
        symbols.strong.insert(one.strong.begin(), one.strong.end());
        symbols.weak.insert(one.weak.begin(), one.weak.end());
      }
      const SymbolFindings found = compare_symbols(symbols, of.symbols.at(path), of.elsewhere);
      for (const std::string& line : found.unusual)
        grade.flags.push_back("task " + task.id + ": " + path + " " + line);
      for (const std::string& line : found.forbidden) refused.push_back(path + " " + line);
      if (!task.race_ops.empty())
        for (const std::string& name : library_calls(symbols))
          refused.push_back(path + " calls " + name + " of a library");
    }
    if (!refused.empty()) {
      grade.errors.push_back("task " + task.id + ": " + refused[0]);
      return nothing(task, of, "not graded: " + refused[0], grade);
    }
    const std::vector<TestResult> results = run_graded_tests(graded, of, options.sandbox);
    const Shares all = shares(task, of);
    tested(task, of, results, "public", all.published, grade);
    tested(task, of, results, "hidden", all.hidden, grade);
    looked_at(task, of, results, grade);
    if (!task.sanitized.empty() && options.machine.sanitizer.empty())
      grade.flags.push_back("task " + task.id +
                            ": not looked at by memcheck and racecheck, which take the CUDA toolkit's "
                            "compute-sanitizer");
    measured(task, of, all.performance, grade);
    for (const std::string& name : of.skipped)
      grade.flags.push_back("task " + task.id + ": not tested on this machine: " + name);
  }
};

Grader::Grader(const Tree& tree, GradeOptions options) {
  for (const std::string& id : options.tasks) {
    const std::string why = why_not_graded(tree.course().task(id), options.machine);
    if (!why.empty()) throw LabError(why);
  }
  check_sandbox(options.sandbox);
  state_ = std::make_unique<State>(tree, std::move(options));
}

Grader::~Grader() = default;

const Tree& Grader::tree() const {
  return state_->tree;
}

void Grader::prepare(const std::vector<std::string>& tasks,
                     const std::function<void(const std::string&)>& say) {
  for (const std::string& id : tasks) {
    say("the reference of task " + id);
    state_->baseline(state_->tree.course().task(id));
  }
}

Grade Grader::grade(const Submission& submission) {
  Grade grade;
  grade.hand_in = submission.name;
  grade.student = submission.student;
  grade.flags = submission.flags;
  if (!submission.error.empty()) {
    grade.errors.push_back(submission.error);
    for (const std::string& id : state_->options.tasks) {
      const Task& task = state_->tree.course().task(id);
      grade.tasks.push_back(id);
      state_->nothing(task, state_->baseline(task), submission.error, grade);
    }
    state_->grade_bugs({}, grade);
    return grade;
  }
  std::vector<std::string> ids = state_->options.tasks;
  ids.insert(ids.end(), state_->options.bugs.begin(), state_->options.bugs.end());
  const HandIn hand_in = read_hand_in(state_->tree, submission.text, ids, state_->options.machine);
  grade.errors = hand_in.errors;
  for (const auto& [id, texts] : hand_in.texts)
    state_->grade_task(state_->tree.course().task(id), texts, grade);
  for (const std::string& id : state_->options.tasks)
    if (!hand_in.texts.contains(id)) {
      const Task& task = state_->tree.course().task(id);
      grade.tasks.push_back(id);
      const auto own = hand_in.why_not.find(id);  // else nothing of the hand-in could be read
      const std::string why = own != hand_in.why_not.end() ? own->second
                              : hand_in.errors.empty()     ? ""
                                                           : hand_in.errors[0];
      state_->nothing(task, state_->baseline(task), "not graded: " + why, grade);
    }
  state_->grade_bugs(hand_in.bugs, grade);
  state_->graded.restore();
  return grade;
}

}  // namespace lab
