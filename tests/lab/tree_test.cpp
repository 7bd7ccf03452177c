// A student's text stays where it is, whatever the commands do, and is never lost.
#include "lab/tree.h"

#include <gmock/gmock.h>

#include "lab/lab_error.h"
#include "tests/lab/small_tree.h"

namespace lab {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kMine = "  return free * 100;";

// Writes an own text into the stub of a file.
void write_own(const SmallTree& small, const std::string& path, const std::string& task) {
  small.edit(path, "  throw ladder::TaskNotImplemented(\"" + task + "\");", kMine);
}

std::vector<std::string> start(const SmallTree& small, const std::string& id) {
  Tree tree = small.tree();
  return tree.start(tree.course().task(id));
}

void use(const SmallTree& small, const std::string& whose, const std::string& id) {
  Tree tree = small.tree();
  tree.use(tree.course().task(id), whose == "mine");
}

TEST(Lab_Tree, StartLeavesExactlyThatTaskAsStubs) {
  SmallTree small;
  const std::string pool = small.read(kPool);
  EXPECT_THAT(start(small, "3.3"), ElementsAre(kManager, kSharing));
  EXPECT_THAT(small.read(kManager), HasSubstr("TaskNotImplemented(\"3.3\")"));
  EXPECT_THAT(small.read(kSharing), HasSubstr("TaskNotImplemented(\"3.3\")"));
  EXPECT_EQ(small.read(kPool), pool);
  EXPECT_EQ(small.state("3.3").text, Text::stub);
  EXPECT_FALSE(small.state("3.3").builds_reference);
  EXPECT_EQ(small.state("3.2").text, Text::reference);
}

TEST(Lab_Tree, StartingAgainChangesNothing) {
  SmallTree small;
  start(small, "3.2");
  const std::string stub = small.read(kPool);
  EXPECT_THAT(start(small, "3.2"), IsEmpty());
  EXPECT_EQ(small.read(kPool), stub);
  write_own(small, kPool, "3.2");
  const std::string mine = small.read(kPool);
  EXPECT_THAT(start(small, "3.2"), IsEmpty());
  EXPECT_EQ(small.read(kPool), mine);
  EXPECT_EQ(small.state("3.2").text, Text::mine);
}

TEST(Lab_Tree, WhatWasWrittenMayBeTheReferencesVeryText) {
  SmallTree small;
  start(small, "3.3");
  write_own(small, kManager, "3.3");
  small.edit(kSharing, "  throw ladder::TaskNotImplemented(\"3.3\");", "  return count + 1;");
  const std::string manager = small.read(kManager), sharing = small.read(kSharing);
  EXPECT_THAT(start(small, "3.3"), IsEmpty());
  EXPECT_EQ(small.read(kSharing), sharing);
  EXPECT_FALSE(small.state("3.3").is_reference);

  small.edit(kManager, kMine, "  return take(free) - 1;");
  EXPECT_THAT(start(small, "3.3"), IsEmpty());
  start(small, "3.2");
  EXPECT_THAT(start(small, "3.3"), IsEmpty()) << "it is remembered beside the one started last";
  EXPECT_EQ(small.state("3.3").text, Text::mine);
  EXPECT_TRUE(small.state("3.3").is_reference);
  EXPECT_FALSE(small.state("3.3").builds_reference);
  small.edit(kManager, "  return take(free) - 1;", kMine);
  Tree tree = small.tree();
  EXPECT_THAT(tree.start(tree.course().task("3.3"), true), ElementsAre(kSharing));
  EXPECT_THAT(small.read(kManager), HasSubstr(kMine)) << "a text of one's own is never cut out";
}

TEST(Lab_Tree, AnInterruptedStartIsFinishedByTheNext) {
  SmallTree small;
  start(small, "3.3");
  const std::string stub = small.read(kSharing);
  small.edit(kSharing, "  throw ladder::TaskNotImplemented(\"3.3\");",
             "  return count + 1;");  // never got there, nor to its last act:
  std::filesystem::remove(small.root() / ".lab" / "choices");
  EXPECT_THAT(start(small, "3.3"), ElementsAre(kSharing));
  EXPECT_EQ(small.read(kSharing), stub);
}

TEST(Lab_Tree, WhatANeededTaskLacksIsTheReference) {
  SmallTree small;
  start(small, "3.2");
  start(small, "3.3");
  EXPECT_EQ(small.state("3.2").text, Text::stub);
  EXPECT_TRUE(small.state("3.2").builds_reference);
  EXPECT_THAT(small.spliced(kPool), HasSubstr("return free - 1;"));
  EXPECT_THAT(small.read(kPool), HasSubstr("TaskNotImplemented"));
  EXPECT_EQ(small.spliced(kManager), "");
}

TEST(Lab_Tree, WhatIsWrittenIsTakenAndUnfinishedTextIsNot) {
  SmallTree small;
  start(small, "3.3");
  write_own(small, kManager, "3.3");
  start(small, "3.2");
  EXPECT_TRUE(small.state("3.3").unfinished);  // share() still throws
  EXPECT_TRUE(small.state("3.3").builds_reference);
  write_own(small, kSharing, "3.3");
  EXPECT_FALSE(small.state("3.3").unfinished);
  EXPECT_FALSE(small.state("3.3").builds_reference);
  small.tree().splice();
  EXPECT_EQ(small.spliced(kManager), "");
}

TEST(Lab_Tree, UseSwapsWhatIsBuiltAndMovesNoText) {
  SmallTree small;
  start(small, "3.2");
  write_own(small, kPool, "3.2");
  const std::string mine = small.read(kPool);
  use(small, "reference", "3.2");
  EXPECT_EQ(small.read(kPool), mine);
  EXPECT_THAT(small.spliced(kPool), HasSubstr("return free - 1;"));
  EXPECT_THAT(small.spliced(kPool), Not(HasSubstr(kMine)));
  use(small, "mine", "3.2");
  EXPECT_EQ(small.read(kPool), mine);
  EXPECT_EQ(small.spliced(kPool), "");
}

TEST(Lab_Tree, EditsOutsideTheRegionAreInTheCopyToo) {
  SmallTree small;
  start(small, "3.2");
  small.edit(kPool, "#include \"step3_small/small.h\"",
             "#include <vector>\n#include \"step3_small/small.h\"");
  use(small, "reference", "3.2");
  EXPECT_THAT(small.spliced(kPool), HasSubstr("#include <vector>"));
  small.edit(kPool, "#include <vector>", "#include <deque>");
  small.tree().splice();
  EXPECT_THAT(small.spliced(kPool), HasSubstr("#include <deque>"));
}

TEST(Lab_Tree, UseMineNeedsATextOfOnesOwn) {
  SmallTree small;
  EXPECT_THROW(use(small, "mine", "3.2"), LabError);
}

TEST(Lab_Tree, TheReferenceIsKeptWithoutGit) {
  SmallTree small;
  start(small, "3.2");
  small.edit(kManager, "take(free) - 1", "take(free) - 2");  // edited without start, after the first one
  use(small, "reference", "3.3");
  EXPECT_THAT(small.spliced(kManager), HasSubstr("take(free) - 1"));
}

TEST(Lab_Tree, TheReferenceIsFoundInTheHistoryOfAClone) {
  SmallTree small;
  small.git({"init", "-q"});
  small.git({"add", "-A"});
  small.git({"commit", "-qm", "release"});
  start(small, "3.2");
  write_own(small, kPool, "3.2");
  small.git({"add", kPool});
  small.git({"commit", "-qm", "mine"});
  std::filesystem::remove_all(small.root() / ".lab");  // as after a clone elsewhere
  EXPECT_EQ(small.state("3.2").text, Text::mine);
  use(small, "reference", "3.2");
  EXPECT_THAT(small.spliced(kPool), HasSubstr("return free - 1;"));
}

TEST(Lab_Tree, AReferenceThatIsNowhereIsSaid) {
  SmallTree small;
  small.edit(kPool, "free - 1", "free - 9");
  try {
    use(small, "reference", "3.2");
    FAIL();
  } catch (const LabError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the reference of task 3.2 in step3_small/pool.cpp"));
  }
}

TEST(Lab_Tree, ANewReleaseIsTheReferenceAgain) {
  SmallTree small;
  start(small, "3.2");
  write_own(small, kPool, "3.2");
  const std::string before = small.tree().release();
  small.edit(kManager, "take(free) - 1",
             "take(free) - 1 + 0");  // git pull: region and regions.txt change together
  const std::string mine = small.read(kPool);
  small.write(kPool, mine.substr(0, mine.find("int take")) +
                         "int take(int free) {\n  return free - 1 + 0;\n}\n" +
                         mine.substr(mine.find("// <<<")));
  small.write_hashes();
  const std::string pool_now = small.read(kPool);
  small.write(kPool, mine);
  EXPECT_NE(small.tree().release(), before);
  EXPECT_EQ(small.state("3.3").text, Text::reference);
  EXPECT_EQ(small.state("3.2").text, Text::mine);
  EXPECT_THROW(use(small, "reference", "3.2"), LabError);  // the new text was never here
  small.write(kPool, pool_now);
  use(small, "reference", "3.2");
}

TEST(Lab_Tree, WindowsLineEndsAreNoChange) {
  SmallTree small;
  std::string text = small.read(kPool);
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) text.replace(at, 1, "\r\n");
  small.write(kPool, text);
  EXPECT_EQ(small.state("3.2").text, Text::reference);
}

TEST(Lab_Tree, TracedCopiesOfOnesOwnTextGoAway) {
  SmallTree small;
  start(small, "3.2");
  small.tree().splice(true);
  EXPECT_THAT(small.spliced(kPool), HasSubstr("return free - 1;"));  // a demo runs, whatever is not written
  write_own(small, kPool, "3.2");
  small.tree().splice(true);
  EXPECT_THAT(small.spliced(kPool), HasSubstr("LADDER_LAB_RAN(\"3.2\", \"take\")"));
  small.tree().splice();
  EXPECT_EQ(small.spliced(kPool), "");
}

}  // namespace
}  // namespace lab
