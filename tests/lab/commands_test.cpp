// The program as a student calls it; above all what it says when something is wrong: one line, code 2, no change.
#include <gmock/gmock.h>

#include "lab/files.h"
#include "tests/lab/small_tree.h"

namespace lab {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Runs a command that must fail: one line that names `named`, exit code 2, and every file as before.
void expect_refused(const SmallTree& small, const std::vector<std::string>& arguments,
                    const std::string& named) {
  const std::string pool = small.read(kPool), manager = small.read(kManager), sharing = small.read(kSharing);
  const Outcome refused = small.lab(arguments);
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr(named));
  EXPECT_EQ(std::ranges::count(refused.output, '\n'), 1) << refused.output;
  EXPECT_EQ(small.read(kPool), pool);
  EXPECT_EQ(small.read(kManager), manager);
  EXPECT_EQ(small.read(kSharing), sharing);
  EXPECT_EQ(small.spliced(kPool) + small.spliced(kManager), "");
}

TEST(Lab_Commands, StartSaysWhatToDo) {
  SmallTree small;
  const Outcome started = small.lab({"start", "3.3"});
  EXPECT_EQ(started.exit_code, 0);
  for (const char* said : {"task 3.3: the manager (3 hours, 30 points)", "step3_small/manager.cpp:6-8",
                           "step3_small/sharing.cpp:6-8", "3.2                 the reference",
                           "./ladder lab test 3.3", "Task3_3_*", "step3_small/README.md#task-3-3"})
    EXPECT_THAT(started.output, HasSubstr(said));
  EXPECT_THAT(small.lab({"start", "3.3"}).output, HasSubstr("nothing was changed"));
}

TEST(Lab_Commands, ListAndStatusNameTheStates) {
  SmallTree small;
  small.lab({"start", "3.3"});
  EXPECT_THAT(small.lab({"list"}).output, HasSubstr("memory: memory (week 1 to 2, 6 hours)"));
  small.lab({"start", "3.2"});
  const std::string status = small.lab({"status"}).output;
  EXPECT_THAT(status, HasSubstr("3.2                 stub              the pool"));
  EXPECT_THAT(status, HasSubstr("3.3                 stub              the build takes the reference"));
}

// 3.2 has the emulator lane, 3.3 needs a real GPU.
TEST(Lab_Commands, StartAndListSayWhereACudaTaskIsTested) {
  SmallTree small;
  small.edit("lab/labs.json", R"("filter": "Task3_2_*"}, "gpu": false)",
             R"("filter": "Task3_2_*"}, "lane": "emulator", "gpu": true)");
  small.edit("lab/labs.json", R"("filter": "Task3_3_*"}, "gpu": false)",
             R"("filter": "Task3_3_*"}, "gpu": true)");
  const std::string list = small.lab({"list"}).output;
  EXPECT_THAT(list, HasSubstr("2 hours: the pool, needs a GPU or --lane emulator\n"));
  EXPECT_THAT(list, HasSubstr("3 hours: the manager, needs a GPU, needs 3.2\n"));
  EXPECT_THAT(small.lab({"start", "3.2"}).output,
              HasSubstr("         ./ladder lab test 3.2 --lane emulator, without a GPU\n"));
  EXPECT_THAT(small.lab({"start", "3.3"}).output, Not(HasSubstr("--lane")));
}

TEST(Lab_Commands, OneAfterTheOtherChangesChoicesAndCopies) {
  SmallTree small;
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"start", "3.2"}, {"status"}, {"use", "reference", "3.3"}, {"test", "3.3"}}) {
    std::vector<std::string> command = {LAB_BINARY, "--root", small.root().string()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const FileLock other(lock_of(small.root()));
    EXPECT_TRUE(run(command, std::chrono::seconds(1)).timed_out) << arguments[0];
  }
  EXPECT_EQ(small.state("3.2").text, Text::reference);
  EXPECT_EQ(small.lab({"start", "3.2"}).exit_code, 0);
}

TEST(Lab_Commands, AnUnknownTaskLabOrCommand) {
  SmallTree small;
  expect_refused(small, {"start", "9.9"}, "no task '9.9'");
  expect_refused(small, {"test", "nothing"}, "no task 'nothing'");
  expect_refused(small, {"use", "mine", "3"}, "there are 3.1, 3.2, 3.3");
  expect_refused(small, {"begin"}, "no command 'begin'");
  expect_refused(small, {"start"}, "start ID");
  expect_refused(small, {"use", "theirs", "3.2"}, "expected mine or reference");
  expect_refused(small, {"start", "3.1"}, "given");
  expect_refused(small, {"use", "mine", "3.2"}, "no text of yours");
}

TEST(Lab_Commands, MarkersThatWereRemovedOrDoubled) {
  for (const char* command : {"start", "test", "hand-in"}) {
    {
      SmallTree small;
      small.edit(kPool, "// <<< task 3.2\n", "");
      expect_refused(small, {command, "3.2"},
                     "step3_small/pool.cpp, line 5: the region of task 3.2 has no end");
    }
    {
      SmallTree small;
      small.edit(kPool, "// >>> task 3.2: a function\n", "");
      expect_refused(small, {command, "3.2"},
                     "step3_small/pool.cpp, line 8: the region of task 3.2 ends here");
    }
    {
      SmallTree small;
      small.edit(kPool, "// <<< task 3.2\n", "// <<< task 3.2\n// >>> task 3.2: again\n// <<< task 3.2\n");
      expect_refused(small, {command, "3.2"}, "begins a second time");
    }
    {
      SmallTree small;
      small.edit(kPool, "// >>> task 3.2: a function\n", "");
      small.edit(kPool, "// <<< task 3.2\n", "");
      expect_refused(small, {command, "3.2"}, "the region of task 3.2 is missing");
    }
    {
      SmallTree small;
      std::filesystem::remove(small.root() / kPool);
      const Outcome refused = small.lab({command, "3.2"});
      EXPECT_EQ(refused.exit_code, 2);
      EXPECT_THAT(refused.output, HasSubstr("pool.cpp"));
    }
  }
}

TEST(Lab_Commands, ABrokenRegionOfWhatATaskNeeds) {
  SmallTree small;
  small.edit(kPool, "// <<< task 3.2\n", "");
  expect_refused(small, {"start", "3.3"}, "pool.cpp");
  SmallTree other;
  other.edit(kSharing, "// <<< task 3.3\n", "");  // of another task: no matter
  EXPECT_EQ(other.lab({"start", "3.2"}).exit_code, 0);
}

TEST(Lab_Commands, AMergeConflictInARegion) {
  SmallTree small;
  small.edit(kPool, "  return free - 1;\n",
             "<<<<<<< HEAD\n  return free - 1;\n=======\n  return free - 2;\n>>>>>>> upstream\n");
  expect_refused(small, {"start", "3.2"}, "step3_small/pool.cpp, line 7: a merge conflict");
  expect_refused(small, {"use", "reference", "3.2"}, "merge conflict");
}

TEST(Lab_Commands, DamagedLabsJson) {
  SmallTree small;
  small.write("lab/labs.json", "{\"labs\": []");
  expect_refused(small, {"list"}, "labs.json");
  small.write("lab/labs.json", "{\"labs\": [], \"tasks\": [{\"id\": \"3.2\"}]}");
  expect_refused(small, {"list"}, "title");
}

TEST(Lab_HandIn, HoldsTheTextsOfRegionsAndWhereTheyCameFrom) {
  SmallTree small;
  const std::string out = (small.root() / "out.json").string();
  expect_refused(small, {"hand-in", "3.2", "--out", out}, "its regions are the reference");
  small.lab({"start", "3.2"});
  expect_refused(small, {"hand-in", "3.2", "--out", out}, "its regions are stubs");
  EXPECT_FALSE(std::filesystem::exists(out));
  small.edit(kPool, "  throw ladder::TaskNotImplemented(\"3.2\");", "  return free * 7;");
  EXPECT_EQ(small.lab({"hand-in", "3.2", "--out", out}).exit_code, 0);
  EXPECT_THAT(small.read("out.json"), HasSubstr("int take(int free) {\\n  return free * 7;\\n}\\n"));
  EXPECT_THAT(small.read("out.json"), Not(HasSubstr("namespace")));
  EXPECT_EQ(small.lab({"hand-in", "--check", out}).exit_code, 0);
}

TEST(Lab_HandIn, OfATextThatIsTheReferences) {
  SmallTree small;
  const std::string out = (small.root() / "out.json").string();
  small.lab({"start", "3.2"});
  small.edit(kPool, "  throw ladder::TaskNotImplemented(\"3.2\");", "  return free - 1;");
  EXPECT_THAT(small.lab({"start", "3.2"}).output, HasSubstr("./ladder lab start 3.2 --anew"));
  EXPECT_THAT(small.lab({"status"}).output, HasSubstr("the reference's very text"));
  const Outcome handed_in = small.lab({"hand-in", "3.2", "--out", out});
  EXPECT_EQ(handed_in.exit_code, 0);
  EXPECT_THAT(handed_in.output, HasSubstr("out.json: 1 region of release"));
  EXPECT_EQ(small.lab({"start", "3.2", "--anew"}).exit_code, 0);
  EXPECT_THAT(small.read(kPool), HasSubstr("TaskNotImplemented"));
}

TEST(Lab_HandIn, SaysWhatItDoesNotHold) {
  SmallTree small;
  small.lab({"start", "3.3"});
  small.edit(kManager, "  throw ladder::TaskNotImplemented(\"3.3\");", "  return twice(free);");
  small.edit(kSharing, "  throw ladder::TaskNotImplemented(\"3.3\");", "  return 2 * count;");
  const std::string out = (small.root() / "out.json").string();
  EXPECT_THAT(small.lab({"hand-in", "3.3", "--out", out}).output, Not(HasSubstr("changed outside")));
  small.edit(kManager, "// >>> task 3.3", "int twice(int count) { return 2 * count; }\n// >>> task 3.3");
  const Outcome handed_in = small.lab({"hand-in", "3.3", "--out", out});
  EXPECT_EQ(handed_in.exit_code, 0);
  EXPECT_THAT(handed_in.output, HasSubstr(std::string(kManager) + " was changed outside its regions"));
  EXPECT_THAT(handed_in.output, Not(HasSubstr(kSharing)));
  EXPECT_THAT(small.read("out.json"), Not(HasSubstr("int twice")));
}

TEST(Lab_HandIn, SaysThatPartOfATaskIsStillAStub) {
  SmallTree small;
  small.lab({"start", "3.3"});
  small.edit(kManager, "  throw ladder::TaskNotImplemented(\"3.3\");", "  return free - 2;");
  const std::string out = (small.root() / "out.json").string();
  const std::string line =
      "  part of task 3.3 is still a stub: look for TaskNotImplemented and LADDER_UNWRITTEN\n";
  const Outcome half = small.lab({"hand-in", "3.3", "--out", out});
  EXPECT_EQ(half.exit_code, 0);
  EXPECT_THAT(half.output, HasSubstr(line));
  small.edit(kSharing, "  throw ladder::TaskNotImplemented(\"3.3\");",
             "  LADDER_UNWRITTEN(\"op\", \"rung\")\n  return 2;");
  EXPECT_THAT(small.lab({"hand-in", "3.3", "--out", out}).output, HasSubstr(line));
  small.edit(kSharing, "  LADDER_UNWRITTEN(\"op\", \"rung\")\n", "");
  EXPECT_THAT(small.lab({"hand-in", "3.3", "--out", out}).output, Not(HasSubstr("stub")));
}

TEST(Lab_HandIn, HoldsNothingThatAGraderRefuses) {
  SmallTree small;
  small.lab({"start", "3.2"});
  small.edit(kPool, "  throw ladder::TaskNotImplemented(\"3.2\");",
             "#define ONE 1\n  return free - ONE * *(int*)&one;");
  const std::string out = (small.root() / "out.json").string();
  const Outcome refused = small.lab({"hand-in", "3.2", "--out", out});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("task 3.2 would not be graded"));
  EXPECT_THAT(refused.output, HasSubstr(std::string(kPool) + ", line 7: `#define ONE 1`"));
  EXPECT_THAT(refused.output, HasSubstr("(and 1 more)"));
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(Lab_HandIn, OneOfAnotherReleaseOrDamaged) {
  SmallTree small;
  small.lab({"start", "3.2"});
  small.edit(kPool, "  throw ladder::TaskNotImplemented(\"3.2\");", "  return free * 7;");
  const std::string out = (small.root() / "out.json").string();
  small.lab({"hand-in", "3.2", "--out", out});
  const std::string good = small.read("out.json");
  small.edit("out.json", "free * 7", "free * 8");
  expect_refused(small, {"hand-in", "--check", out}, "not the one that was handed in");
  small.write("out.json", good.substr(0, good.size() / 2));
  expect_refused(small, {"hand-in", "--check", out}, "no hand-in");
  small.write("out.json", good);
  small.write("lab/labs.json", small.read("lab/labs.json") + "\n");
  expect_refused(small, {"hand-in", "--check", out}, "a hand-in of release");
  const std::string absent = (small.root() / "absent").string();
  expect_refused(small, {"hand-in", "--check", absent}, "cannot be read");
  EXPECT_EQ(small.lab({"hand-in", "--check", absent}).output, "lab: " + absent + ": cannot be read\n");
}

}  // namespace
}  // namespace lab
