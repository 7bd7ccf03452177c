// Task 6.2: stop strings.
#include "step6_engine/text/stop_strings.h"

#include <gtest/gtest.h>

#include "tests/step6_engine/cut_at_stop.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::cut_at_stop;
using testing::CutText;

TEST(Task6_2_StopStrings, TextBeforeTheMatchIsLetOutAndTheStopStringIsNot) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.append("one two END three"), "one two ");
  EXPECT_TRUE(stops.matched());
  EXPECT_EQ(stops.append("more"), "");
  EXPECT_EQ(stops.finish(), "");
}

TEST(Task6_2_StopStrings, HoldsBackWhatMayBecomeAStopString) {
  StopStrings stops({"\n\nQ"});
  EXPECT_EQ(stops.append("yes."), "yes.");
  EXPECT_EQ(stops.append("\n"), "");
  EXPECT_EQ(stops.append("\nA"), "\n\nA");
  EXPECT_EQ(stops.append("\n\n"), "");
  EXPECT_EQ(stops.append("\n"), "\n");  // the first of three newlines cannot begin the stop string any more
  EXPECT_EQ(stops.append("Q"), "");
  EXPECT_TRUE(stops.matched());
}

TEST(Task6_2_StopStrings, WhatWasHeldBackComesOutAtTheEnd) {
  StopStrings stops({"stop"});
  EXPECT_EQ(stops.append("do not st"), "do not ");
  EXPECT_EQ(stops.finish(), "st");
  EXPECT_FALSE(stops.matched());
}

TEST(Task6_2_StopStrings, WithoutStopStringsNothingIsHeldBack) {
  StopStrings stops({});
  EXPECT_EQ(stops.append("abc"), "abc");
  EXPECT_EQ(stops.finish(), "");
}

TEST(Task6_2_StopStrings, OfMatchesThatEndTogetherTheLongestCounts) {
  StopStrings stops({"b", "ab", "xab"});
  EXPECT_EQ(stops.append("xa"), "");
  EXPECT_EQ(stops.append("b"), "");
  EXPECT_TRUE(stops.matched());
}

// A two-letter alphabet makes borders and overlaps common.
TEST(Task6_2_StopStrings, ResultDoesNotDependOnHowTheTextIsCut) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  int64_t matches = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops(static_cast<size_t>(random.integer(0, 3)));
    for (std::string& stop : stops)
      for (int64_t i = random.integer(1, 6); i > 0; --i) stop += random.integer(0, 1) ? 'a' : 'b';
    std::string text;
    for (int64_t i = random.integer(0, 24); i > 0; --i) text += random.integer(0, 1) ? 'a' : 'b';

    StopStrings stream(stops);
    std::string out;
    for (size_t at = 0; at < text.size() && !stream.matched();) {
      const size_t length = static_cast<size_t>(random.integer(1, 4));
      out += stream.append(std::string_view(text).substr(at, length));
      ASSERT_TRUE(cut_at_stop(text, stops).text.starts_with(out)) << "let out too early";
      at += length;
    }
    out += stream.finish();
    matches += stream.matched();
    ASSERT_EQ((CutText{out, stream.matched()}), cut_at_stop(text, stops)) << "text " << text;
  }
  EXPECT_GT(matches, 200);
}

TEST(Task6_2_StopStrings, HoldsBackNoMoreThanItMust) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 500; ++round) {
    std::string stop, text;
    for (int64_t i = random.integer(1, 6); i > 0; --i) stop += random.integer(0, 1) ? 'a' : 'b';
    for (int64_t i = random.integer(1, 12); i > 0; --i) text += random.integer(0, 1) ? 'a' : 'b';
    if (cut_at_stop(text, {stop}).matched) continue;
    size_t keep = std::min(stop.size() - 1, text.size());
    while (!text.ends_with(stop.substr(0, keep))) --keep;
    EXPECT_EQ(StopStrings({stop}).append(text), text.substr(0, text.size() - keep)) << text << " / " << stop;
  }
}

}  // namespace
}  // namespace ladder
