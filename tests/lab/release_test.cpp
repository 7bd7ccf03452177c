// A released repository has the stubs and what the tasks need, nothing of the reference, and opens with its keys alone.
#include "lab/release.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lab/files.h"
#include "lab/hand_in.h"
#include "lab/lab_error.h"
#include "lab/lane.h"
#include "lab/leaks.h"
#include "lab/salt.h"
#include "lab/unlock.h"
#include "lab/variants.h"
#include "tests/lab/small_tree.h"

namespace lab {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kSalt = "a salt of the spring course";
constexpr const char* kThrow = "  throw ladder::TaskNotImplemented(\"3.2\");";

// The small tree as a repository with two labs, "memory" (3.2) and "sharing" (3.3), and a release of it.
class Released : public ::testing::Test {
 protected:
  Released() {
    small.edit("lab/labs.json", R"(["3.1", "3.2", "3.3"]})",
               R"(["3.1", "3.2"]}, {"id": "sharing", "title": "s", "weeks": [3], "tasks": ["3.3"]})");
    small.write("lab/mutants.json", "[\"return take(free) - 1;\"]");
    small.write("lab/bugs.json",
                R"([{"id": "3.2#1", "task": "3.2", "file": "step3_small/pool.cpp", "find": "free - 1"},
               {"id": "3.3#1", "task": "3.3", "file": "step3_small/sharing.cpp", "find": "count + 1"}])");
    small.write("tests/hidden/step3/hidden_test.cpp", "secret");
    small.write("lab/README.md", "For all.\n<!-- instructor -->\nFor one.\n<!-- /instructor -->\nFor all.\n");
    small.git({"init", "-q"});
    commit();
  }

  void commit() const {
    small.git({"add", "-A"});
    small.git({"commit", "-q", "-m", "c"});
  }

  ReleaseOptions options() const {
    return {.course = "Engines 101", .salt = kSalt, .out = folder.path() / "a course", .labs = {}};
  }

  ReleaseInfo release(const ReleaseOptions& with) const { return make_release(small.tree(), with); }

  // The one line of an error; "" where there is none.
  std::string error_of(const ReleaseOptions& with) const {
    try {
      release(with);
    } catch (const LabError& error) {
      EXPECT_THAT(std::string(error.what()), Not(HasSubstr("\n")));
      return error.what();
    }
    return "";
  }

  std::string read(const std::string& path) const { return read_file(options().out / path); }
  void write(const std::string& path, const std::string& text) const {
    write_file(options().out / path, text);
  }
  Tree students() const { return Tree(options().out); }
  TaskState state(const std::string& id) const {
    const Tree tree = students();
    return tree.state(tree.course().task(id));
  }
  std::string key(const std::string& lab) const { return to_hex(derive(kSalt, "key/" + lab)); }
  std::string unlock_error(const std::string& lab, const std::string& with) const {
    try {
      unlock(students(), lab, with);
    } catch (const LabError& error) {
      EXPECT_THAT(std::string(error.what()), Not(HasSubstr("\n")));
      return error.what();
    }
    return "";
  }

  SmallTree small;
  ladder::testing::TemporaryFolder folder;
};

TEST_F(Released, HasStubsAndNothingThatIsNotForStudents) {
  release(options());
  for (const auto& [path, task] : {std::pair{kPool, "3.2"}, {kManager, "3.3"}, {kSharing, "3.3"}})
    EXPECT_THAT(read(path), HasSubstr("TaskNotImplemented(\"" + std::string(task) + "\")"));
  for (const char* path : {"lab/mutants.json", "lab/bugs.json", "tests/hidden", ".lab"})
    EXPECT_FALSE(fs::exists(options().out / path)) << path;
  EXPECT_EQ(read("lab/README.md"), "For all.\nFor all.\n");
  EXPECT_EQ(state("3.2").text, Text::stub);
  EXPECT_FALSE(state("3.2").builds_reference);
  EXPECT_TRUE(state("3.2").is_missing);
}

TEST_F(Released, HasOneCommitWithoutAnyLineOfTheReferenceOrTheSalt) {
  release(options());
  const std::string out = options().out.string();
  EXPECT_EQ(run({"git", "-C", out, "rev-list", "--all", "--count"}).output, "1\n");
  EXPECT_EQ(run({"git", "-C", out, "status", "--porcelain"}).output, "");
  const std::string objects = run({"git", "-C", out, "cat-file", "--batch", "--batch-all-objects"}).output;
  EXPECT_THAT(objects, HasSubstr("int take(int free)"));
  for (const std::string line : {"return free - 1;", "return take(free) - 1;", "return count + 1;", kSalt})
    EXPECT_THAT(objects, Not(HasSubstr(line)));
  for (const auto& [lab, digits] : lab_keys(small.tree().course(), kSalt))
    EXPECT_THAT(objects, Not(HasSubstr(digits)));
}

TEST_F(Released, CutsTheLabsThatAreNamedAndGivesTheOthers) {
  ReleaseOptions only = options();
  only.labs = {"sharing"};
  EXPECT_THAT(release(only).cut, ElementsAre("sharing"));
  EXPECT_EQ(read(kPool), small.read(kPool));
  EXPECT_EQ(state("3.2").text, Text::reference);
  EXPECT_EQ(state("3.3").text, Text::stub);
  only.out = folder.path() / "other";
  only.labs = {"sharing", "kernels"};
  EXPECT_THAT(error_of(only), HasSubstr("no lab 'kernels'"));
}

TEST_F(Released, HandInsAreOfTheProjectsRelease) {
  release(options());
  Tree tree = students();
  EXPECT_TRUE(tree.start(tree.course().task("3.2")).empty()) << "the stub stands there";
  std::string text = read(kPool);
  write(kPool, text.replace(text.find(kThrow), std::string(kThrow).size(), "  return free - 1;"));
  tree = students();
  const Task& task = tree.course().task("3.2");
  EXPECT_EQ(tree.state(task).text, Text::mine) << "the reference's very text is the student's here";
  small.write("h.json", make_hand_in(tree, {&task}));
  EXPECT_EQ(check_hand_in(small.tree(), (small.root() / "h.json").string()), 1);
}

TEST_F(Released, UnlockingALabGivesItsReferenceAndTouchesNoText) {
  release(options());
  const std::string pool = read(kPool), manager = read(kManager);
  EXPECT_TRUE(unlock(students(), "memory", key("memory")));
  EXPECT_FALSE(unlock(students(), "memory", key("memory"))) << "again: nothing is new";
  EXPECT_EQ(read(kPool), pool);
  EXPECT_TRUE(state("3.2").builds_reference) << "nothing is written there";
  EXPECT_TRUE(state("3.3").is_missing);
  students().splice();
  EXPECT_THAT(read(".lab/spliced/" + std::string(kPool)), HasSubstr("return free - 1;"));
  EXPECT_THAT(read(".lab/bugs.json"), HasSubstr("3.2#1"));
  EXPECT_THAT(read(".lab/bugs.json"), Not(HasSubstr("3.3#1")));
  EXPECT_TRUE(unlock(students(), "sharing", key("sharing")));
  EXPECT_THAT(read(".lab/bugs.json"), testing::AllOf(HasSubstr("3.2#1"), HasSubstr("3.3#1")));
  EXPECT_EQ(read(kManager), manager);
  fs::remove_all(options().out / ".lab");
  EXPECT_TRUE(unlock(students(), "memory", key("memory"))) << "what was lost comes again";
}

TEST_F(Released, UnlockingSaysWhatIsWrong) {
  EXPECT_THAT([&] { unlock(small.tree(), "memory", key("memory")); }, testing::Throws<LabError>());
  release(options());
  EXPECT_THAT(unlock_error("memory", key("sharing")), HasSubstr("the key of lab sharing, not of lab memory"));
  EXPECT_THAT(unlock_error("memory", std::string(64, '0')), HasSubstr("not the key of lab memory"));
  EXPECT_THAT(unlock_error("memory", "1234"), HasSubstr("64 hexadecimal digits"));
  EXPECT_THAT(unlock_error("memory", ""), HasSubstr("64 hexadecimal digits"));
  EXPECT_THAT(unlock_error("5", key("memory")), HasSubstr("no lab '5'"));
  EXPECT_FALSE(fs::exists(options().out / ".lab" / "reference"));
  const std::string sealed = read("lab/sealed/memory.bin");
  for (const size_t at : {size_t{3}, size_t{9}, size_t{25}, size_t{40}, sealed.size() - 1}) {
    std::string damaged = sealed;
    damaged[at] ^= 1;
    write("lab/sealed/memory.bin", damaged);
    EXPECT_THAT(unlock_error("memory", key("memory")), HasSubstr("lab/sealed/memory.bin is damaged")) << at;
  }
  write("lab/sealed/memory.bin", read("lab/sealed/sharing.bin"));
  EXPECT_THAT(unlock_error("memory", key("memory")), HasSubstr("is damaged"));
  fs::remove(options().out / "lab/sealed/memory.bin");
  EXPECT_THAT(unlock_error("memory", key("memory")), HasSubstr("memory.bin is missing"));
}

TEST_F(Released, WithoutTheReferenceThereIsNothingToUnlock) {
  ReleaseOptions bare = options();
  bare.with_reference = false;
  release(bare);
  EXPECT_FALSE(fs::exists(options().out / "lab" / "sealed"));
  EXPECT_THAT(unlock_error("memory", key("memory")), HasSubstr("came without the reference"));
  Tree tree = students();
  EXPECT_THROW(tree.use(tree.course().task("3.2"), false), LabError);
}

TEST_F(Released, IsMadeOfAProjectsCommittedTextOnly) {
  small.edit(kPool, "#include", "// changed\n#include");
  EXPECT_THAT(error_of(options()), HasSubstr("not committed"));
  small.git({"checkout", "-q", "."});
  small.edit(kPool, "return free - 1;", "return free + 1;");
  commit();
  EXPECT_THAT(error_of(options()), HasSubstr("task 3.2 in step3_small/pool.cpp is not the reference"));
  EXPECT_TRUE(fs::is_empty(folder.path())) << "nothing is left of it";
}

TEST_F(Released, GoesToANewFolderOutsideTheCheckoutOnly) {
  fs::create_directories(options().out);
  EXPECT_THAT(error_of(options()), HasSubstr("is there already"));
  fs::remove(options().out);
  ReleaseOptions inside = options();
  inside.out = small.root() / "course";
  EXPECT_THAT(error_of(inside), HasSubstr("lies in this checkout"));
  ReleaseOptions guessed = options();
  guessed.salt = "cs101";
  EXPECT_THAT(error_of(guessed), HasSubstr("16 characters"));
  release(options());
  ReleaseOptions again = options();
  again.out = folder.path() / "again";
  EXPECT_THROW(make_release(students(), again), LabError) << "a release of a release";
}

TEST_F(Released, NoPageMayQuoteTheReference) {
  ReleaseOptions quoted = options();
  small.write("step3_small/README.md", "Write\n\n    return take(free) - 1;\n");
  commit();
  EXPECT_THAT(error_of(quoted), HasSubstr("step3_small/README.md holds a line of the reference"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST_F(Released, TheInstructorHasTheProjectsTreeAndTheSaltBeside) {
  release(options());
  const fs::path beside = options().out.string() + "-instructor";
  EXPECT_EQ(read_file(beside / "salt"), std::string(kSalt) + "\n");
  EXPECT_EQ(fs::status(beside / "salt").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(Tree(beside / "ladder").release(), students().release());
}

TEST(Gradescope, GradesOneHandInAndSaysWhenThereAreNoneOrSeveral) {
  const ladder::testing::TemporaryFolder folder;
  const fs::path root = folder.path() / "auto grader", results = root / "results" / "results.json";
  write_file(root / "source" / "salt", "a salt\n");
  write_file(root / "source" / "ladder" / "ladder", "#!/bin/sh\necho \"$@\"\n");
  fs::permissions(root / "source" / "ladder" / "ladder", fs::perms::owner_all);
  fs::create_directories(root / "results");
  const auto grade = [&] {
    run({"bash", LAB_SOURCE_DIR "/lab/release/gradescope/run_autograder"}, std::chrono::seconds(60),
        {{"AUTOGRADER", root.string()}});
    return read_file(results);
  };
  EXPECT_THAT(nlohmann::json::parse(grade()).at("output").get<std::string>(), HasSubstr("0 hand-ins"));
  write_file(root / "submission" / "h.json", "{}");
  EXPECT_THAT(grade(), HasSubstr("lab grade " + (root / "submission/h.json").string() + " --salt-file " +
                                 (root / "source/salt").string() + " --sandbox none --format gradescope"));
  write_file(root / "source" / "tasks", "5.2, 5.3#1\n");
  EXPECT_THAT(grade(), HasSubstr("h.json --tasks 5.2,5.3#1 --salt-file "));
  write_file(root / "submission" / "h2.json", "{}");
  EXPECT_THAT(nlohmann::json::parse(grade()).at("output").get<std::string>(), HasSubstr("2 hand-ins"));
  fs::remove(root / "submission" / "h2.json");
  write_file(root / "source" / "ladder" / "ladder", "#!/bin/sh\nexit 2\n");
  EXPECT_EQ(nlohmann::json::parse(grade()).at("score"), 0) << "what fails leaves a result too";
}

// 3.2 gives back one block, or two.
constexpr const char* kVariants =
    R"([{"name": "step", "title": "t", "tasks": ["3.2"], "choices": [{"name": "one", "edits": []},
  {"name": "two", "edits": [
    {"file": "step3_small/small.h", "find": "int take(int free);", "replace": "int take(int free);  // two"},
    {"file": "step3_small/pool.cpp", "find": "return free - 1;", "replace": "return free - 1 - 1;"}]}]}])";

TEST_F(Released, HasTheVariantThatTheSaltDraws) {
  small.write("lab/variants.json", kVariants);
  commit();
  std::set<std::string> drawn;
  for (const char* salt : {"spring of the course", "autumn of the course", "winter of the course",
                           "summer of the course", "the next of the course"}) {
    ReleaseOptions with = options();
    with.salt = salt;
    with.out = folder.path() / std::to_string(drawn.size()) / salt;
    const ReleaseInfo info = release(with);
    if (!drawn.insert(info.variants.at("step")).second) continue;
    const bool two = info.variants.at("step") == "two";
    const std::string text = two ? "return free - 1 - 1;" : "return free - 1;";
    EXPECT_EQ(info.release == small.tree().release(), !two) << "another release, with hand-ins of its own";
    EXPECT_EQ(read_file(with.out / "step3_small/small.h").find("// two") != std::string::npos, two);
    EXPECT_FALSE(fs::exists(with.out / "lab/variants.json"));
    const Tree graded(with.out.string() + "-instructor/ladder");
    EXPECT_EQ(graded.release(), info.release) << "hand-ins are graded where the same was drawn";
    EXPECT_THAT(graded.reference(graded.course().task("3.2"), kPool), HasSubstr(text));
    EXPECT_TRUE(graded.changed_outside(graded.course().task("3.2")).empty());
    unlock(Tree(with.out), "memory", to_hex(derive(salt, "key/memory")));
    const Tree tree(with.out);
    EXPECT_THAT(tree.reference(tree.course().task("3.2"), kPool), HasSubstr(text));
  }
  EXPECT_EQ(drawn.size(), 2u);
  ReleaseOptions none = options();
  none.with_variants = false;
  EXPECT_EQ(release(none).variants.at("step"), "one");
}

TEST_F(Released, AnEditWithoutItsOnePlaceMakesNoRelease) {
  std::string variants = kVariants;
  for (size_t at; (at = variants.find("return free - 1;")) != std::string::npos;)
    variants.replace(at, 16, "return nothing;");
  small.write("lab/variants.json", variants);
  commit();
  EXPECT_THROW(apply_variants(small.root(), {{"step", "two"}}), LabError);
  EXPECT_THROW(apply_variants(small.root(), {{"step", "three"}}), LabError);
  EXPECT_THROW(apply_variants(small.root(), {{"other", "two"}}), LabError);
}

TEST_F(Released, CommandsSayWhatIsNotUnlocked) {
  release(options());
  const auto lab = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {LAB_BINARY, "--root", options().out.string()});
    return run(arguments);
  };
  EXPECT_THAT(lab({"start", "3.3"}).output,
              HasSubstr("needs 3.2, which is not written here and not unlocked"));
  EXPECT_EQ(lab({"use", "reference", "3.2"}).exit_code, 2);
  EXPECT_EQ(lab({"unlock", "memory", "--key", key("sharing")}).exit_code, 2);
  EXPECT_EQ(lab({"unlock", "memory", "--key", key("memory")}).exit_code, 0);
  EXPECT_THAT(lab({"unlock", "memory", "--key", key("memory")}).output, HasSubstr("unlocked before"));
  EXPECT_THAT(lab({"start", "3.3"}).output, Not(HasSubstr("not unlocked")));
  EXPECT_EQ(lab({"use", "reference", "3.2"}).exit_code, 0);
  EXPECT_EQ(lab({"list"}).exit_code, 0);
  EXPECT_THAT(small.lab({"release", "--keys", "--salt", kSalt}).output, HasSubstr(key("memory")));
}

// The project itself, as it stands in the folder, committed or not.
class ProjectsRelease : public ::testing::Test {
 protected:
  ProjectsRelease() {
    const std::string source = LAB_SOURCE_DIR;
    std::istringstream names(
        run({"git", "-C", source, "ls-files", "-co", "--exclude-standard", "-z"}).output);
    for (std::string name; std::getline(names, name, '\0');) {
      if (!fs::exists(fs::path(source) / name)) continue;
      fs::create_directories((root / name).parent_path());
      fs::copy(fs::path(source) / name, root / name, fs::copy_options::copy_symlinks);
    }
    for (const std::vector<std::string>& words : {std::vector<std::string>{"init", "-q"},
                                                  {"add", "-A", "-f"},
                                                  {"-c", "user.name=a", "-c", "user.email=a@b", "-c",
                                                   "commit.gpgsign=false", "commit", "-q", "-m", "c"}}) {
      std::vector<std::string> command = {"git", "-C", root.string()};
      command.insert(command.end(), words.begin(), words.end());
      EXPECT_TRUE(run(command).ok());
    }
  }

  ladder::testing::TemporaryFolder folder;
  fs::path root = folder.path() / "the project", out = folder.path() / "a course";
};

TEST_F(ProjectsRelease, IsWholeAndGivesNothingAway) {
  const Tree project(root);
  const ReleaseInfo info =
      make_release(project, {.course = "C", .salt = kSalt, .out = out, .labs = {}, .with_variants = false});
  const Tree students(out);
  EXPECT_EQ(students.release(), project.release());
  RemovedLines removed;
  for (const Task& task : students.course().tasks) {
    const TaskState state = students.state(task);
    const bool cut = task.core && !task.given;
    EXPECT_EQ(state.text, cut ? Text::stub : Text::reference) << task.id << " " << state.problem;
    EXPECT_EQ(state.is_missing, cut) << task.id;
    EXPECT_TRUE(students.changed_outside(task).empty()) << task.id;
    for (const std::string& path : task.regions)
      if (cut) removed.add(project.region(task, path).text, project.stub(task, path));
  }
  // Of the commit's objects, those of code may have a line of it by chance; the same six in a row never.
  const std::string git_dir = (out / ".git").string();
  std::istringstream tracked(run({"git", "--git-dir", git_dir, "ls-files"}).output);
  for (std::string name; std::getline(tracked, name);) {
    const std::string ending = fs::path(name).extension();
    if (ending == ".cpp" || ending == ".h" || ending == ".cu" || ending == ".cuh") {
      EXPECT_EQ(removed.give(read_file(out / name)), "") << name;
    }
  }
  ASSERT_FALSE(removed.empty());
  const std::string objects =
      run({"git", "--git-dir", git_dir, "cat-file", "--batch", "--batch-all-objects"}).output;
  EXPECT_GT(objects.size(), 10'000'000u);
  EXPECT_EQ(removed.find_in(objects), "");
  EXPECT_EQ(objects.find(kSalt), std::string::npos);
  EXPECT_EQ(run({"git", "--git-dir", git_dir, "rev-list", "--all", "--count"}).output, "1\n");

  const std::string workflow = read_file(out / ".github" / "workflows" / "classroom.yml");
  for (const Task& task : students.course().tasks)
    EXPECT_EQ(workflow.find("./ladder lab test " + task.id + "\n") != std::string::npos,
              task.core && why_not_graded(task, {}).empty())
        << task.id;
  EXPECT_TRUE(nlohmann::json::accept(read_file(out / ".devcontainer" / "devcontainer.json")));
  EXPECT_THAT(read_file(out / "lab" / "README.md"), Not(HasSubstr("--salt")));
  for (const char* path :
       {"lab/mutants.json", "lab/variants.json", "lab/reports", "lab/release", "tests/hidden", "tests/lab"})
    EXPECT_FALSE(fs::exists(out / path)) << path;
  for (const std::string& lab : info.cut)
    EXPECT_TRUE(unlock(students, lab, to_hex(derive(kSalt, "key/" + lab)))) << lab;
  for (const Task& task : students.course().tasks) EXPECT_FALSE(students.state(task).is_missing) << task.id;
}

TEST(RemovedLines, AreFoundInTextInJsonAndSixInARowInCode) {
  const std::string body =
      "  int64_t total_of_all = sum(x);\n  std::string s = \"a quoted word\";\n  x += 1;\n  y = x * x;\n"
      "  z = y - 1;\n  return z;\n";
  RemovedLines removed;
  removed.add("int f() {\n" + body + "}\n", "int f() {\n}\n");
  EXPECT_EQ(removed.find_in("as in `int64_t total_of_all = sum(x);`"), "int64_t total_of_all = sum(x);");
  EXPECT_NE(removed.find_in(R"({"find": "std::string s = \"a quoted word\";"})"), "");
  EXPECT_EQ(removed.find_in("int64_t total_of_all"), "");
  EXPECT_EQ(removed.find_in("x += 1;"), "") << "short lines stand everywhere";
  EXPECT_EQ(removed.give("    int64_t total_of_all = sum(x);\n"), "") << "one line in given code is chance";
  EXPECT_EQ(removed.find_in("int64_t total_of_all = sum(x);"), "");
  EXPECT_EQ(removed.give(body), "int64_t total_of_all = sum(x);") << "six are not";
}

}  // namespace
}  // namespace lab
