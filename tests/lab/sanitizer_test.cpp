// What a run under compute-sanitizer is held to have said.
#include "lab/sanitizer.h"

#include <gmock/gmock.h>

namespace lab {
namespace {

using ::testing::ElementsAre;

constexpr const char* kBanner = "========= COMPUTE-SANITIZER\n[  PASSED  ] 1 test.\n";

std::string found(const std::string& tool, int exit_code, const std::string& output) {
  return found_by_sanitizer("sanitizer", tool, {"program"}, [&](const std::vector<std::string>&) {
    Outcome ran;
    ran.exit_code = exit_code;
    ran.output = kBanner + output;
    return ran;
  });
}

TEST(Lab_Sanitizer, AsksTheToolForACodeOfItsOwn) {
  std::vector<std::string> memcheck, racecheck;
  const auto keep = [](std::vector<std::string>& words) {
    return [&words](const std::vector<std::string>& command) { return words = command, Outcome(); };
  };
  EXPECT_EQ(found_by_sanitizer("/cuda/sanitizer", "memcheck", {"test", "--filter"}, keep(memcheck)), "");
  EXPECT_EQ(found_by_sanitizer("/cuda/sanitizer", "racecheck", {"test"}, keep(racecheck)), "");
  EXPECT_THAT(memcheck, ElementsAre("/cuda/sanitizer", "--tool", "memcheck", "--error-exitcode", "9",
                                    "--padding", "65536", "test", "--filter"));
  EXPECT_THAT(racecheck,
              ElementsAre("/cuda/sanitizer", "--tool", "racecheck", "--error-exitcode", "9", "test"));
}

TEST(Lab_Sanitizer, NamesTheToolAndItsFirstFinding) {
  EXPECT_EQ(found("racecheck", 9,
                  "========= Error: Race reported between Write access at f()+0x10\n"
                  "=========     and Read access at f()+0x20 [4 hazards]\n"
                  "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"),
            "racecheck: Error: Race reported between Write access at f()+0x10");
  // A read out of bounds ends the kernel, so the program fails too, and its code may be the one that is told.
  EXPECT_EQ(found("memcheck", 1,
                  "========= Invalid __global__ read of size 2 bytes\n"
                  "========= Target application returned an error\n========= ERROR SUMMARY: 1 error\n"),
            "memcheck: Invalid __global__ read of size 2 bytes");
}

TEST(Lab_Sanitizer, ARunThatFailsWithoutAFindingIsNotClean) {
  const std::string unclean = "memcheck: the program did not come to a clean end";
  EXPECT_EQ(found("memcheck", 1,
                  "========= Target application returned an error\n========= ERROR SUMMARY: 0 errors\n"),
            unclean);
  EXPECT_EQ(found("memcheck", 137, ""), unclean);
  EXPECT_EQ(found("memcheck", 0, "========= ERROR SUMMARY: 0 errors\n"), "");
}

}  // namespace
}  // namespace lab
