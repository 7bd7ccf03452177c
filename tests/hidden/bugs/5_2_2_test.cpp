// Bug 5.2#2: what is long is decided by the prompt alone, not by all tokens that are to be computed again.
#include <gtest/gtest.h>

#include "step5_scheduler/waiting_queue.h"

namespace ladder {
namespace {

TEST(Bug5_2_2, ASequenceThatComesBackWithALongAnswerIsLong) {
  Sequence back;
  back.num_prompt_tokens = 4;
  back.output_token_ids.assign(20, 7);
  WaitingQueue waiting(SchedulingPolicy::fcfs, 10);
  waiting.insert(&back);
  EXPECT_EQ(waiting.next(nullptr, true), &back);
  EXPECT_EQ(waiting.next(nullptr, false), nullptr);
}

}  // namespace
}  // namespace ladder
