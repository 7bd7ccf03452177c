// What a checkout does where a task of the course is not written yet.
#include "step1_layers/core/task_not_implemented.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/core/variants.h"
#include "tests/support/rungs.h"

namespace ladder {

LADDER_UNWRITTEN("half_written", "fast")
LADDER_UNWRITTEN("half_written", "fastest")

namespace {

struct NoArgs {};

constexpr Variant<NoArgs> kTable[] = {
    {.name = "loop", .idea = "", .run = [](const OpContext&, const NoArgs&) {}},
    {.name = "middle", .idea = "", .run = [](const OpContext&, const NoArgs&) {}},
    {.name = "fast",
     .idea = "",
     .run = [](const OpContext&, const NoArgs&) { throw TaskNotImplemented("1.3.simd"); }},
    {.name = "fastest",
     .idea = "",
     .run = [](const OpContext&, const NoArgs&) { throw TaskNotImplemented("1.3.simd"); }},
};

std::string_view chosen(std::string_view op, std::string_view measured = {}) {
  return select_variant<NoArgs>(op, kTable, OpContext{}, {}, measured).name;
}

TEST(Task1_1_NotImplemented, SaysWhichTaskAndIsNoErrorThatATestMayExpect) {
  EXPECT_THAT(TaskNotImplemented("5.2").what(),
              ::testing::StartsWith("task 5.2 is not implemented (task_not_implemented_test.cpp:"));
  EXPECT_FALSE((std::is_base_of_v<Error, TaskNotImplemented>));
}

TEST(Task1_1_NotImplemented, AnUnwrittenRungIsNotChosen) {
  EXPECT_EQ(chosen("half_written"), "middle");
  EXPECT_EQ(chosen("half_written", "fast"), "middle");  // nor because it was measured to be the fastest
  EXPECT_EQ(chosen("half_written", "loop"), "loop");
  EXPECT_EQ(chosen("all_written"), "fastest");  // another operator's rung of that name is
}

TEST(Task1_1_NotImplemented, AnUnwrittenRungThatIsForcedThrows) {
  OpContext ctx;
  ctx.kernels["half_written"] = "fast";
  EXPECT_THROW(run_variant<NoArgs>("half_written", kTable, ctx, {}), TaskNotImplemented);
}

// A kernel is called by the threads of its driver.
TEST(Task1_1_NotImplemented, AnExceptionOfAnyThreadReachesTheCaller) {
  for (int threads : {1, 3})
    testing::with_threads(threads, [&] {
      for (int64_t failing : {0, 1, 2}) {
        int64_t reached = 0;
        EXPECT_THROW(parallel_for(3, 1,
                                  [&](int64_t begin, int64_t end) {
                                    if (begin <= failing && failing < end) {
                                      reached = failing + 1;
                                      throw TaskNotImplemented("1.3.simd");
                                    }
                                  }),
                     TaskNotImplemented);
        EXPECT_EQ(reached, failing + 1);
      }
    });
}

}  // namespace
}  // namespace ladder
