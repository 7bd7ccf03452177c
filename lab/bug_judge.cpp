#include "lab/bug_judge.h"

#include <string.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lab/files.h"
#include "lab/tokens.h"

namespace lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kRuns = 3;

std::string listed(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string indented(const std::string& text) {
  std::string lines = "\n  ";
  for (const char c : text.substr(0, text.find_last_not_of('\n') + 1))
    lines += c == '\n' ? "\n  " : std::string(1, c);
  return lines;
}

}  // namespace

BugRun read_bug_run(const Outcome& ended, const std::string& report) {
  BugRun run;
  if (ended.timed_out)
    run.broke = "did not end in time";
  else if (ended.signal != 0)
    run.broke = std::string("crashed (") + ::strsignal(ended.signal) + ")";
  try {
    const json all = report.empty() ? json() : json::parse(report);
    if (!report.empty() && run.broke.empty())
      for (const json& suite : all.at("testsuites"))
        for (const json& test : suite.at("testsuite")) {
          const std::string name =
              suite.at("name").get<std::string>() + "." + test.at("name").get<std::string>();
          const json failures = test.value("failures", json::array());
          if (failures.empty() && test.value("result", "") == "COMPLETED") run.passed.insert(name);
          for (const json& failure : failures) {
            const std::string message = failure.at("failure");
            if (message.find("C++ exception") != std::string::npos) {
              run.broke = "let an exception out of " + name + indented(message);
              break;
            }
            run.failed.insert(name);
            if (run.message.empty()) run.message = message;
          }
        }
  } catch (const json::exception&) {
    run.broke = "ended while it wrote its report";
  }
  if (run.broke.empty() && (report.empty() || ended.exit_code != (run.failed.empty() ? 0 : 1)))
    run.broke = "ended before its tests did, with code " + std::to_string(ended.exit_code);
  return run;
}

std::string bug_target(const Bug& bug) {
  return "bug_" + bug.name();
}

std::string not_written_yet(const Bug& bug, const std::string& text) {
  const auto words = [](const std::string& of) {
    std::string all;
    for (const Token& token : tokenize(of)) all += std::string(token.text) + " ";
    return all;
  };
  return words(text) == words(bug_template(bug)) ? bug.test_path() + " is still the empty test" : "";
}

BugVerdict judge_bug(const fs::path& build_folder, const Bug& bug, const RunBug& run) {
  const fs::path place = build_folder / "tests" / "bug_run" / "test";
  fs::create_directories(place.parent_path());
  std::set<std::string> passed;  // on the reference
  BugVerdict verdict;
  for (const std::string kind : {"reference", "defect"}) {
    const bool defect = kind == "defect";
    for (const std::string level : {"O2", "O1"}) {
      const std::string where = defect ? "on the defect" : "on the reference";
      fs::copy_file(build_folder / "tests" / (bug_target(bug) + "_" + kind + "_" + level), place,
                    fs::copy_options::overwrite_existing);
      std::set<std::string> failed;
      for (int i = 0; i < kRuns; ++i) {
        BugRun now = run(place);
        if (!now.broke.empty()) {
          verdict.why = where + " it " + now.broke +
                        (defect ? "\nA defect is found by a check that fails: EXPECT_... or ASSERT_..." : "");
          return verdict;
        }
        if (!defect && !now.failed.empty()) {
          verdict.why =
              "it fails on the reference, where it must pass: " + listed(now.failed) + indented(now.message);
          return verdict;
        }
        if (!defect && now.passed.empty()) {
          verdict.why = "it has no test that passes on the reference";
          return verdict;
        }
        if (!defect && passed.empty()) passed = now.passed;
        if (i > 0 && now.failed != failed) {
          verdict.why =
              where + " it does not fail each time: " + listed(now.failed.empty() ? failed : now.failed);
          return verdict;
        }
        failed = now.failed;
        if (defect &&
            std::ranges::none_of(failed, [&](const std::string& name) { return passed.contains(name); })) {
          verdict.why = failed.empty()
                            ? "it passes on the defect, where it must fail: what was reported happens there, "
                              "and no check sees it"
                            : "what fails on the defect does not pass on the reference: " + listed(failed);
          if (level == "O1")
            verdict.why += "\n(with the file compiled in another way; the answer must not depend on it)";
          return verdict;
        }
        if (verdict.message.empty()) verdict.message = now.message;
      }
    }
  }
  verdict.found = true;
  return verdict;
}

}  // namespace lab
