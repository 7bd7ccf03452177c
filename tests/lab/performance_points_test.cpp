// The published tables: what a count or a time brings.
#include "lab/performance_points.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "lab/course.h"
#include "lab/performance.h"

namespace lab {
namespace {

TEST(Lab_PerformancePoints, ACountNearTheReferencesBringsAll) {
  const Counted steps{.problem = "p", .count = "steps"};
  EXPECT_EQ(counted_share(steps, 100, 100), 1.0);
  EXPECT_EQ(counted_share(steps, 107, 100), 1.0);
  EXPECT_EQ(counted_share(steps, 50, 100), 1.0);
  EXPECT_LT(counted_share(steps, 108, 100), 1.0);
  EXPECT_DOUBLE_EQ(counted_share(steps, 214, 100), 0.5);
  EXPECT_DOUBLE_EQ(counted_share(steps, 8000, 0), 2.0 / 8000);
  EXPECT_EQ(counted_share(steps, -1, 100), 0.0) << "no count is negative";
}

TEST(Lab_PerformancePoints, MoreTokensHitAreBetter) {
  const Counted hits{.problem = "p", .count = "tokens_hit", .more_is_better = true};
  EXPECT_EQ(counted_share(hits, 1000, 1000), 1.0);
  EXPECT_EQ(counted_share(hits, 2000, 1000), 1.0);
  EXPECT_LT(counted_share(hits, 900, 1000), 1.0);
  EXPECT_LT(counted_share(hits, 0, 1000), 0.01);
}

TEST(Lab_PerformancePoints, ARaceBringsAllWithinAFifth) {
  EXPECT_EQ(raced_share(0.5, 0.1), 1.0);
  EXPECT_EQ(raced_share(1.2, 0.1), 1.0);
  EXPECT_DOUBLE_EQ(raced_share(2.4, 0.1), 0.5);
  EXPECT_DOUBLE_EQ(raced_share(12, 0.1), 0.1);
  EXPECT_EQ(raced_share(12, 0.26), 0.4) << "steps at shares of the roofline";
  EXPECT_EQ(raced_share(12, 0.5), 0.7);
  EXPECT_EQ(raced_share(1.5, 0.8), 0.9);
  EXPECT_EQ(raced_share(1.25, 0.3), 1.2 / 1.25);
}

TEST(Lab_PerformancePoints, EveryProblemOfATaskIsCounted) {
  const Course course = read_course(std::filesystem::path(LAB_SOURCE_DIR) / "lab" / "labs.json");
  int measured = 0;
  for (const Task& task : course.tasks) {
    for (const std::string& problem : task.counts)
      EXPECT_FALSE(counted_in(problem).empty()) << task.id << " names the problem " << problem;
    measured += has_performance(task);
  }
  EXPECT_GE(measured, 20);
}

TEST(Lab_PerformancePoints, KernelsOfLibrariesAreFoundByName) {
  Symbols object;
  object.undefined = {"memcpy", "cblas_sgemm", "_ZN6ladder13matmul_onednnE", "_ZN6ladder6avx5124loadE"};
  EXPECT_EQ(library_calls(object), (std::vector<std::string>{"_ZN6ladder13matmul_onednnE", "cblas_sgemm"}));
}

}  // namespace
}  // namespace lab
