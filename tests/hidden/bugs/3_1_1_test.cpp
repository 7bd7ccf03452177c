// Bug 3.1#1: the keys do not know how long the prompt is, so every completion names the prompt's blocks for itself.
#include <gtest/gtest.h>

#include "step3_sequence/sequence.h"

namespace ladder {
namespace {

TEST(Bug3_1_1, TheKeysOfARequestKnowTheLengthOfThePromptTheyShare) {
  SamplingParams sampling;
  sampling.n = 3;
  sampling.seed = 1;
  sampling.max_tokens = 4;
  for (const auto& sequence : make_sequences({1, 2, 3, 4, 5}, sampling, 10))
    EXPECT_EQ(sequence->prefix.num_prompt_tokens, 5) << "completion " << sequence->completion_index;
}

}  // namespace
}  // namespace ladder
