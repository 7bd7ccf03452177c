// Hand-ins as they should not be: each is one line of its own, and no other's trouble.
#include "lab/submissions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/archive.h"
#include "lab/lab_error.h"
#include "lab/points.h"
#include "lab/process.h"
#include "lab/report.h"
#include "lab/sha256.h"

namespace lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kFile = "step5_scheduler/schedule_continuous.cpp";

class LabSubmissions : public ::testing::Test {
 protected:
  LabSubmissions() : tree(LAB_SOURCE_DIR) {
    folder = fs::temp_directory_path() / ("ladder-class-" + std::to_string(::getpid()));
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  ~LabSubmissions() override { fs::remove_all(folder); }

  json region(const std::string& text, const std::string& task = "5.2", const std::string& file = kFile) {
    return {{"task", task}, {"file", file}, {"sha256", sha256(text)}, {"text", text}};
  }
  std::string hand_in(const std::vector<json>& regions) {
    return json{{"format", 1}, {"release", tree.release()}, {"commit", ""}, {"regions", regions}}.dump();
  }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary) << text;
  }
  std::vector<Submission> read() { return read_submissions({folder.string()}); }
  std::vector<std::string> errors(const std::string& text, const std::vector<std::string>& tasks = {}) {
    return read_hand_in(tree, text, tasks).errors;
  }
  bool sh(const std::string& script) {
    return run({"bash", "-c", "cd '" + folder.string() + "' && " + script}).ok();
  }

  Tree tree;
  fs::path folder;
};

TEST_F(LabSubmissions, AFolderOfFilesBySortedStudents) {
  write("bob.json", "{}");
  write("ann/hand-in-5.2.json", "[]");
  write("notes.txt", "not one");
  const auto all = read();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].student, "ann");
  EXPECT_EQ(all[1].student, "bob");
  EXPECT_EQ(all[1].text, "{}");
}

TEST_F(LabSubmissions, LinksAreNotFollowed) {
  write("ann.json", "{}");
  fs::create_symlink("/etc/passwd", folder / "eve.json");
  fs::create_directory_symlink("/etc", folder / "etc");
  const auto all = read();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].error, "");
  EXPECT_EQ(all[1].error, "a link, not a file");
  EXPECT_EQ(all[1].text, "");
}

TEST_F(LabSubmissions, HugeFilesAreNotRead) {
  write("eve.json", "");
  fs::resize_file(folder / "eve.json", int64_t{10} << 30);
  EXPECT_THAT(read()[0].error, HasSubstr("more than 8 MiB"));
}

TEST_F(LabSubmissions, TwiceAndTheSameAsAnothers) {
  write("a/ann.json", hand_in({region("x")}));
  write("b/ann.json", hand_in({region("y")}));
  write("bob.json", hand_in({region("x")}));
  write("c/ann.json", hand_in({region("x", "5.3", "step5_scheduler/preemption.cpp")}));
  const auto all = read();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_THAT(all[0].flags, ElementsAre(HasSubstr("5.2 2 times"), HasSubstr("bob")));
  EXPECT_THAT(all[1].flags, ElementsAre(HasSubstr("5.2 2 times")));
  EXPECT_THAT(all[2].flags, IsEmpty());  // another task
  EXPECT_THAT(all[3].flags, ElementsAre(HasSubstr("ann")));
}

TEST_F(LabSubmissions, NamesAndErrorsAreOneLineEachAndNotWithoutEnd) {
  write("new\nline\x1b[31m/eve\n  error: 20 of 20.json", "{}");
  const auto all = read();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].student, "eve   error: 20 of 20");
  EXPECT_EQ(all[0].name.find_first_of("\n\x1b"), std::string::npos);
  std::vector<json> regions;
  for (int i = 0; i < 5000; ++i) regions.push_back(region("x", "9." + std::to_string(i)));
  const std::vector<std::string> said = errors(hand_in(regions));
  EXPECT_EQ(said.size(), 21u);
  EXPECT_EQ(said.back(), "and more of this kind");
  const HandIn asked = read_hand_in(tree, hand_in(regions), {"5.2"});
  EXPECT_THAT(asked.why_not.at("5.2"), HasSubstr("nothing of task 5.2"));
}

TEST_F(LabSubmissions, AnEmptyFolderAndAMissingOneAreTheInstructorsMistakes) {
  EXPECT_THROW(read(), LabError);
  EXPECT_THROW(read_submissions({(folder / "none").string()}), LabError);
}

TEST_F(LabSubmissions, WhatIsNoHandInForThisCourse) {
  EXPECT_THAT(errors("PK\x03\x04"), ElementsAre(HasSubstr("no hand-in")));
  EXPECT_THAT(errors("{\"format\": 1}"), ElementsAre(HasSubstr("no hand-in")));
  EXPECT_THAT(errors("{\"format\": 2}"), ElementsAre(HasSubstr("format")));
  EXPECT_THAT(errors(std::string(100000, '[')), ElementsAre(HasSubstr("no hand-in")));
  EXPECT_THAT(errors("{\"format\": 1, \"release\": \"0123\", \"regions\": []}"),
              ElementsAre(HasSubstr("of release 0123")));
  EXPECT_THAT(errors("{\"format\": 1, \"release\": \"\xff\xfe\"}"), ElementsAre(HasSubstr("no hand-in")));
}

TEST_F(LabSubmissions, RegionsThatAreNotGraded) {
  EXPECT_THAT(errors(hand_in({region("int x;\n")})), IsEmpty());
  EXPECT_THAT(errors(hand_in({region("x", "5.2", "../../etc/passwd")})),
              ElementsAre(HasSubstr("no region in '../../etc/passwd'")));
  EXPECT_THAT(errors(hand_in({region("x", "5.2", "/etc/passwd")})), ElementsAre(HasSubstr("no region in")));
  EXPECT_THAT(errors(hand_in({region("x", "5.2", "lab/grade.cpp")})), ElementsAre(HasSubstr("no region in")));
  EXPECT_THAT(errors(hand_in({region("x", "9.9")})), ElementsAre(HasSubstr("task '9.9'")));
  EXPECT_THAT(errors(hand_in({region("x", "5.4", "step5_scheduler/policy.cpp")})),
              ElementsAre(HasSubstr("given")));
  const std::string on_a_gpu =
      hand_in({region("x", "1.4.cuda.mma", "step1_layers/linear/matmul_tensor_core_cuda.cu")});
  for (const std::vector<std::string>& ids : {std::vector<std::string>{}, {"1.4.cuda"}})
    EXPECT_EQ(
        read_hand_in(tree, on_a_gpu, ids, {}).errors.at(0),
        "task 1.4.cuda.mma is graded on a GPU only, and this machine has no GPU: its region is left out");
  EXPECT_EQ(read_hand_in(tree, on_a_gpu, {}, {true, "nvcc", ""}).texts.size(), 1u);
  EXPECT_THAT(errors(hand_in({region("x", "1.4.cuda", "step1_layers/linear/matmul_cuda.cu")})), IsEmpty());
  EXPECT_THAT(errors(hand_in({region("x"), region("y")})), ElementsAre(HasSubstr("two texts")));
  EXPECT_THAT(errors(hand_in({region("x", "3.1", "step3_sequence/sequence.cpp")})),
              ElementsAre(HasSubstr("no text for")));
  json other = region("x");
  other["text"] = "y";
  EXPECT_THAT(errors(hand_in({other})), ElementsAre(HasSubstr("hash")));
  const HandIn of_two = read_hand_in(
      tree, hand_in({region("x"), region("y", "5.3", "step5_scheduler/preemption.cpp")}), {"5.2"});
  EXPECT_THAT(of_two.errors, ElementsAre(HasSubstr("task 5.3, which is not graded")));
  EXPECT_EQ(of_two.texts.size(), 1u);
  EXPECT_THAT(errors(hand_in(json::array()), {"5.2"}), ElementsAre(HasSubstr("nothing of task 5.2")));
  // Each task's own line, where several are missing.
  const HandIn of_none = read_hand_in(tree, hand_in(json::array()), {"5.2", "5.3"});
  EXPECT_THAT(of_none.why_not.at("5.2"), HasSubstr("nothing of task 5.2"));
  EXPECT_THAT(of_none.why_not.at("5.3"), HasSubstr("nothing of task 5.3"));
}

TEST_F(LabSubmissions, TestsOfSeededDefects) {
  const auto with = [&](const json& tests) {
    json all = json::parse(hand_in(json::array()));
    all["bugs"] = tests;
    return all.dump();
  };
  const auto test = [](const std::string& bug, const std::string& text) {
    return json{{"bug", bug}, {"sha256", sha256(text)}, {"text", text}};
  };
  const HandIn all = read_hand_in(tree, with({test("5.2#1", "x"), test("3.4#1", "y")}), {});
  EXPECT_THAT(all.errors, ElementsAre());
  ASSERT_EQ(all.bugs.size(), 2u);
  EXPECT_EQ(all.bugs[1].bug + all.bugs[1].text, "3.4#1y");
  const HandIn one = read_hand_in(tree, with({test("5.2#1", "x"), test("3.4#1", "y")}), {"3.4#1"});
  EXPECT_THAT(one.errors, ElementsAre(HasSubstr("bug 5.2#1, which is not graded")));
  ASSERT_EQ(one.bugs.size(), 1u);
  EXPECT_EQ(one.bugs[0].bug, "3.4#1");
  EXPECT_THAT(errors(with(json::array({test("9.9#1", "x")}))),
              ElementsAre(HasSubstr("'9.9#1', which the course has not")));
  EXPECT_THAT(errors(with(json::array({test("5.2#1", "x")})), {"5.2#2"}),
              ElementsAre(HasSubstr("bug 5.2#1"), HasSubstr("nothing of bug 5.2#2")));
  json other = test("5.2#1", "x");
  other["text"] = "y";
  EXPECT_THAT(errors(with(json::array({other}))), ElementsAre(HasSubstr("hash")));
  const std::string twice = with({test("5.2#1", "x"), test("5.2#1", "y")});
  EXPECT_THAT(errors(twice), ElementsAre(HasSubstr("two tests")));
  EXPECT_EQ(read_hand_in(tree, twice, {}).bugs.size(), 0u) << "neither is taken";
}

#ifdef LAB_HAS_LIBARCHIVE
TEST_F(LabSubmissions, ArchivesOfAClass) {
  write("in/ann.json", "{}");
  write("in/bob/hand-in-5.2.json", "[]");
  ASSERT_TRUE(sh("tar czf class.tar.gz -C in . && rm -r in"));
  const auto all = read();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].student, "ann");
  EXPECT_EQ(all[0].text, "{}");
  EXPECT_EQ(all[1].student, "bob");
}

TEST_F(LabSubmissions, PathsAndLinksInArchives) {
  write("in/x/ann.json", "{}");
  ASSERT_TRUE(sh(
      "cd in && ln -s /etc/passwd eve.json && ln x/ann.json x/hard.json && cp x/ann.json ../up.json && "
      "tar cPf ../class.tar x/ann.json eve.json ../up.json x/hard.json \"$PWD/x/ann.json\" && cd .. && rm -r in up.json"));
  const auto all = read();
  ASSERT_EQ(all.size(), 5u);
  int good = 0;
  for (const Submission& one : all) good += one.error.empty();
  EXPECT_EQ(good, 1);
  std::string said;
  for (const Submission& one : all) said += one.error + "\n";
  EXPECT_THAT(said, HasSubstr("leaves its folder"));
  EXPECT_THAT(said, HasSubstr("absolute path"));
  EXPECT_THAT(said, HasSubstr("a link"));
  EXPECT_FALSE(fs::exists(folder.parent_path() / "up.json"));
}

TEST_F(LabSubmissions, AnArchiveThatUnpacksToTenGigabytesIsOneLineAndTheOthersAreRead) {
  write("ann.json", "{}");
  ASSERT_TRUE(sh(
      "head -c 300000000 /dev/zero > bomb.json && tar cf - bomb.json | gzip -1 > eve.tar.gz && rm bomb.json"));
  const auto all = read();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].text, "{}");
  EXPECT_THAT(all.back().error, HasSubstr("more than"));
  EXPECT_EQ(all.back().student, "eve");
}

TEST_F(LabSubmissions, ADamagedArchive) {
  write("eve.zip", "PK\x03\x04 and then nothing");
  write("bob.tar.gz", "\x1f\x8b\x08 no");
  const auto all = read();
  ASSERT_EQ(all.size(), 2u);
  for (const Submission& one : all) EXPECT_NE(one.error, "");
}
#endif

TEST(LabPoints, WhatATaskHasNotIsGivenToItsPublicTests) {
  const Shares all = shares_of(40, {true, true, true});
  EXPECT_DOUBLE_EQ(all.published, 20);
  EXPECT_DOUBLE_EQ(all.hidden, 8);
  EXPECT_DOUBLE_EQ(all.performance, 8);
  EXPECT_DOUBLE_EQ(all.bug, 4);
  EXPECT_DOUBLE_EQ(shares_of(40, {}).published, 40);
  EXPECT_DOUBLE_EQ(shares_of(40, {true, false, false}).published, 32);
}

Grade sample() {
  Grade grade;
  grade.hand_in = "class/ann.json";
  grade.student = "ann, \"A\"";
  grade.tasks = {"5.2"};
  grade.parts = {{"5.2", "public", "Task5_2_A.B", 16, 16, ""},
                 {"5.2", "public", "Task5_2_A.C", 0, 16, "  seen 1\n  expected 2"},
                 {"5.2", "hidden", "Hidden5_2_A.D", 8, 8, ""},
                 {"5.2", "public", "Task5_2_A.E", 0, 0, "an unwritten task passes this"},
                 {"5.2", "performance", "mixed steps", 4, 4, "10, the reference 10"}};
  grade.flags = {"a flag"};
  return grade;
}

TEST(LabReport, TextNamesWhatFailed) {
  const std::string text = text_report(sample());
  EXPECT_THAT(text, HasSubstr("28 of 44 points"));
  EXPECT_THAT(text, HasSubstr("public 16/32, hidden 8/8, performance 4/4; 3 of 5 passed"));
  EXPECT_THAT(text, HasSubstr("0/16  Task5_2_A.C\n          seen 1"));

  Grade escapes = sample();
  escapes.parts[1].text = "threw: \x1b[2J\xe2\x82\xac\tred\r";
  EXPECT_THAT(text_report(escapes), HasSubstr("threw: ?[2J\xe2\x82\xac\tred?\n"));
}

TEST(LabReport, GradescopeShowsHiddenTestsLaterAndFlagsToNoStudent) {
  const json all = json::parse(gradescope_report(sample()));
  EXPECT_EQ(all.at("score"), 28);
  EXPECT_EQ(all.at("tests").size(), 5u);
  EXPECT_EQ(all.at("tests")[1].at("max_score"), 16);
  EXPECT_EQ(all.at("tests")[1].at("status"), "failed");
  EXPECT_EQ(all.at("tests")[2].at("visibility"), "after_published");
  EXPECT_EQ(all.at("tests")[3].at("status"), "failed");
  EXPECT_EQ(all.at("tests")[4].at("status"), "passed");
  EXPECT_EQ(all.at("output"), "");
}

TEST(LabReport, ClassroomSumsUpToThePoints) {
  const json all = json::parse(classroom_report(sample()));
  EXPECT_EQ(all.at("version"), 1);
  EXPECT_EQ(all.at("max_score"), 44);
  EXPECT_EQ(all.at("status"), "fail");
  double sum = 0;
  for (const json& test : all.at("tests")) sum += test.at("score").get<double>();
  EXPECT_EQ(sum, 28);

  Grade right = sample();
  std::erase_if(right.parts, [](const Part& part) { return part.points < part.of || part.of == 0; });
  EXPECT_EQ(json::parse(classroom_report(right)).at("status"), "pass");
}

TEST(LabReport, CsvQuotesWhatStudentsChoose) {
  const std::string rows = csv_report({sample()});
  EXPECT_THAT(rows, HasSubstr("\"ann, \"\"A\"\"\",class/ann.json,5.2,28,44,16,32,8,8,4,4,"));
  Grade formula = sample();
  formula.student = "=1+2";
  EXPECT_THAT(csv_report({formula}), HasSubstr("\"'=1+2\",class/ann.json"));
}

}  // namespace
}  // namespace lab
