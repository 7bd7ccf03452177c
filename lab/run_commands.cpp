#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <sstream>

#include "lab/commands.h"
#include "lab/failure_text.h"
#include "lab/files.h"
#include "lab/functions.h"
#include "lab/hand_in.h"
#include "lab/lab_error.h"
#include "lab/lane.h"
#include "lab/process.h"
#include "lab/test_run.h"

// The commands that build and run the checkout.

namespace lab {
namespace {

namespace fs = std::filesystem;

void print_indented(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) std::cout << "        " << line << "\n";
}

// Whether it compiles; if not, what the compiler says about it. Until it is built nobody else changes the copies.
bool build_or_say(const Tree& tree, bool gpu, const std::string& target, bool traced = false) {
  const FileLock lock(lock_of(tree.root()));
  tree.splice(traced);
  const bool first = !fs::exists(build_folder(tree.root(), gpu) / "build.ninja");
  std::cout << "building " << target << (first ? ", which takes minutes the first time" : "") << std::endl;
  const std::string output = build(tree.root(), gpu, target);
  if (traced) tree.splice();
  if (output.empty()) return true;
  if (output.find("unknown target '" + target) != std::string::npos) {
    std::cout << "this build has no " << target
              << ": the emulator takes g++ and libboost-context-dev; install it, remove "
              << build_folder(tree.root(), gpu).string() << "/CMakeCache.txt and try again\n";
    return false;
  }
  std::cout << errors_of(output) << "it does not compile\n";
  return false;
}

std::string counts(const std::map<Verdict, int>& of) {
  const auto count = [&](Verdict verdict) { return of.contains(verdict) ? of.at(verdict) : 0; };
  std::string text = std::to_string(count(Verdict::passed)) + " passed, ";
  if (count(Verdict::failed) > 0) text += std::to_string(count(Verdict::failed)) + " failed, ";
  if (count(Verdict::not_written) > 0) text += std::to_string(count(Verdict::not_written)) + " not written, ";
  return text + std::to_string(count(Verdict::skipped)) + " skipped";
}

void print(const TestResult& result, const std::string& root) {
  static const std::map<Verdict, const char*> names = {{Verdict::passed, "passed       "},
                                                       {Verdict::failed, "FAILED       "},
                                                       {Verdict::not_written, "not written  "},
                                                       {Verdict::skipped, "skipped      "}};
  std::cout << names.at(result.verdict) << result.name << "\n";
  const size_t shown = result.verdict == Verdict::failed ? std::min<size_t>(result.messages.size(), 3)
                                                         : std::min<size_t>(result.messages.size(), 1);
  for (size_t i = 0; i < shown; ++i)
    print_indented(failure_text(result.messages[i], root, result.verdict == Verdict::failed ? 16 : 3));
  if (shown < result.messages.size() && result.verdict == Verdict::failed)
    print_indented("and " + std::to_string(result.messages.size() - shown) + " more");
}

int test_task(const Tree& tree, const Task& task, const std::string& rung, bool emulated) {
  const std::vector<const Task*> needs = tree.course().all_needs(task);
  tree.check({&task});
  tree.check(needs);
  const TaskState state = tree.state(task);
  std::cout << "task " << task.id << ": " << task.title << "\n";
  if (state.builds_reference) std::cout << "  this is the reference, not your text\n";
  std::string mine, swappable;
  for (const Task* need : needs)
    if (const TaskState of = tree.state(*need); !of.builds_reference && !of.is_missing) {
      mine += (mine.empty() ? "" : ", ") + need->id;
      if (tree.has_reference(*need)) swappable += (swappable.empty() ? "" : ", ") + need->id;
    }
  if (!mine.empty()) std::cout << "  with your own " << mine << "\n";
  std::cout << missing_needs(tree, task) << left_behind(tree, {&task});
  const bool gpu = task.gpu && !emulated;
  const std::string target = emulated ? kEmulatorTarget : task.target;
  if (!build_or_say(tree, gpu, target)) return 1;
  const fs::path binary = build_folder(tree.root(), gpu) / "tests" / target;
  std::map<Verdict, int> all;
  std::map<std::string, std::map<Verdict, int>> of_rung;
  std::set<std::string> unwritten;
  const auto take = [&](const TestResult& result) {
    print(result, tree.root().string());
    ++all[result.verdict];
    if (!rung_of(result.name).empty()) ++of_rung[rung_of(result.name)][result.verdict];
    for (const Task* need : needs)
      for (const std::string& message : result.messages)
        if (message.find("task " + need->id + " is not implemented") != std::string::npos)
          unwritten.insert(need->id);
  };
  run_tests(plainly(binary), list_tests(binary, task.filter, rung), take,
            [](const std::string& name) { std::cout << "still running " << name << std::endl; });
  for (const auto& [name, of] : of_rung) std::cout << "rung " << name << ": " << counts(of) << "\n";
  for (const std::string& id : unwritten)
    std::cout << "task " << id << ", which " << task.id << " needs, is not written"
              << (tree.state(tree.course().task(id)).is_missing ? " here and not unlocked"
                                                                : ": ./ladder lab use reference " + id)
              << "\n";
  const bool done = all[Verdict::failed] + all[Verdict::not_written] + all[Verdict::skipped] == 0;
  std::cout << task.id << ": " << counts(all) << "\n";
  if (!done && !swappable.empty())
    std::cout << "  to see whether the cause is in one of your others: ./ladder lab use reference "
              << swappable.substr(0, swappable.find(','))
              << (swappable.find(',') == std::string::npos
                      ? ""
                      : " (or" + swappable.substr(swappable.find(',') + 1) + ")")
              << "\n";
  if (all[Verdict::skipped] > 0 && all[Verdict::failed] + all[Verdict::not_written] == 0)
    std::cout << "  a skipped test proves nothing: the milestone is "
              << all[Verdict::passed] + all[Verdict::skipped] << " passed, 0 skipped\n";
  if (all[Verdict::skipped] > 0 && !emulated && task.lane == "emulator")
    std::cout << "  without a GPU: ./ladder lab test " << task.id << " --lane emulator\n";
  if (emulated) draw_accesses(tree, task, rung);
  const bool unfinished = state.unfinished && !state.builds_reference;
  if (done && unfinished)
    std::cout
        << "  but part of your text is still a stub: look for TaskNotImplemented and LADDER_UNWRITTEN\n";
  const std::string refused = state.builds_reference ? "" : refused_in(tree, task);
  if (!refused.empty()) std::cout << "  but your text would not be graded:\n" << refused;
  return done && !unfinished && refused.empty() ? 0 : 1;
}

}  // namespace

int test(const Tree& tree, const std::string& id, const std::string& rung, bool emulated) {
  const std::vector<const Task*> tasks = tree.course().tasks_of(id);
  int code = 0;
  for (const Task* task : tasks) {
    const std::string refused = emulated ? why_not_emulated(tree, *task) : "";
    if (!refused.empty() && tasks.size() == 1) throw LabError(refused);
    if (!refused.empty())
      std::cout << refused << "\n";
    else
      code = std::max(code, test_task(tree, *task, rung, emulated));
  }
  return code;
}

int demo(const Tree& tree, const std::vector<std::string>& arguments) {
  std::vector<const Task*> mine;
  for (const Task& task : tree.course().tasks) {
    const TaskState state = tree.state(task);
    if (state.text == Text::broken) throw LabError(state.problem);
    if (state.builds_reference) continue;
    if (state.text == Text::mine && !state.unfinished)
      mine.push_back(&task);
    else
      std::cout << "task " << task.id << " is not written"
                << (state.is_missing ? " here and not unlocked" : ": the reference runs instead") << "\n";
  }
  const fs::path ran = tree.root() / ".lab" / "ran.txt";
  fs::remove(ran);
  const bool gpu = std::any_of(mine.begin(), mine.end(), [](const Task* task) { return task->gpu; });
  int code = build_or_say(tree, gpu, "ladder", true) ? 0 : 1;
  if (code == 0) {
    std::vector<std::string> command = {(build_folder(tree.root(), gpu) / "ladder").string(), "demo",
                                        "--model", (tree.root() / "models" / "tinyworld").string()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    code = run_visibly(command, {{"LADDER_LAB_RAN", ran.string()}}).exit_code;
  }
  if (code != 0) return code;
  std::map<std::string, std::set<std::string>> functions;
  if (fs::exists(ran)) {
    std::istringstream lines(read_file(ran));
    for (std::string task, function; lines >> task && std::getline(lines >> std::ws, function);)
      functions[task].insert(function);
  }
  if (mine.empty()) std::cout << "all of it was the reference: no region holds text of yours\n";
  bool all_ran = true;
  for (const Task* task : mine) {
    std::set<std::string> ran_here = functions[task->id], all;
    for (const std::string& path : task->regions) try {
        for (const Function& function : find_functions(tree.region(*task, path).text))
          if (!function.on_gpu) all.insert(function.name);
      } catch (const LabError&) {
        std::cout << "task " << task->id << ": " << path << " could not be watched\n";
      }
    std::cout << "task " << task->id << ", yours: " << ran_here.size() << " of " << all.size()
              << " functions ran";
    for (const std::string& name : ran_here) all.erase(name);
    for (const std::string& name : all) std::cout << (name == *all.begin() ? "; not " : ", ") << name;
    std::cout << "\n";
    all_ran &= all.empty();
  }
  if (!all_ran && arguments.empty())
    std::cout << "  a small cache makes blocks scarce: ./ladder lab demo --num-kv-blocks 40\n";
  return code;
}

}  // namespace lab
