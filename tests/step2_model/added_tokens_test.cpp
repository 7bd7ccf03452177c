// The added tokens of a tokenizer, found in a text by themselves (tokenizer_test.cpp has whole tokenizers).
#include "step2_model/tokenizer/added_tokens.h"

#include <gtest/gtest.h>

namespace ladder {
namespace {

// The parts of a text, added tokens in brackets: "a|[<b>]|c".
std::string parts_of(const std::vector<AddedToken>& tokens, std::string_view text,
                     std::vector<TextStretch> stretches = {}, std::vector<int32_t> control_ids = {}) {
  if (stretches.empty()) stretches.push_back({static_cast<int64_t>(text.size()), true});
  std::string result;
  int64_t end = 0;
  for (const TextPart& part : AddedTokenFinder(tokens).split(text, stretches, control_ids)) {
    EXPECT_EQ(part.begin, end) << "a gap";
    end = part.end;
    const std::string piece(
        text.substr(static_cast<size_t>(part.begin), static_cast<size_t>(end - part.begin)));
    result += (result.empty() ? "" : "|") + (part.token != nullptr ? "[" + piece + "]" : piece);
  }
  EXPECT_EQ(end, static_cast<int64_t>(text.size()));
  return result;
}

AddedToken token(std::string content, int32_t id = 0) {
  AddedToken result;
  result.content = std::move(content);
  result.id = id;
  return result;
}

TEST(Task2_5_AddedTokens, AreTheLongestAtTheLeftmostPlace) {
  EXPECT_EQ(parts_of({}, "plain"), "plain");
  EXPECT_EQ(parts_of({token("<a>")}, ""), "");
  EXPECT_EQ(parts_of({token("<a>")}, "x<a><a>y"), "x|[<a>]|[<a>]|y");
  EXPECT_EQ(parts_of({token("<a"), token("<a>b"), token("<a>")}, "<a>b<a>c<ad"), "[<a>b]|[<a>]|c|[<a]|d");
  // The leftmost one wins also where the longer one begins inside of it.
  EXPECT_EQ(parts_of({token("ab"), token("bcdef")}, "abcdef"), "[ab]|cdef");
  EXPECT_EQ(parts_of({token("abc")}, "ababc"), "ab|[abc]");
}

TEST(Task2_5_AddedTokens, SingleWordsHaveNoWordCharacterBesideThem) {
  AddedToken word = token("the");
  word.single_word = true;
  EXPECT_EQ(parts_of({word}, "the other the. bathe then the"), "[the]| other |[the]|. bathe then |[the]");
  EXPECT_EQ(parts_of({word}, "\u00e9the the\u00e9 -the-"), "\u00e9the the\u00e9 -|[the]|-");
}

TEST(Task2_5_AddedTokens, StripTakesTheSpacesBeside) {
  AddedToken left = token("<l>"), right = token("<r>");
  left.lstrip = right.rstrip = true;
  EXPECT_EQ(parts_of({left}, "a \t <l> b"), "a|[ \t <l>]| b");
  EXPECT_EQ(parts_of({right}, "a <r> \u3000 b"), "a |[<r> \u3000 ]|b");
  // Spaces between two tokens belong to the first that takes them, and to one only.
  EXPECT_EQ(parts_of({left, right}, "<r>  <l>"), "[<r>  ]|[<l>]");
  EXPECT_EQ(parts_of({right, token(" x")}, "<r> x x"), "[<r> ]|[x]|[ x]");
  EXPECT_EQ(parts_of({left}, "  <l>"), "[  <l>]");
  EXPECT_EQ(parts_of({right}, "<r>  "), "[<r>  ]");
}

TEST(Task2_5_AddedTokens, ControlTokensAreTextWhereItIsNotTrusted) {
  AddedToken control = token("<end>", 5);
  control.special = true;
  const AddedToken plain = token("<p>", 6);
  const std::vector<AddedToken> both = {control, plain};
  EXPECT_EQ(parts_of(both, "<end><end><p>", {{5, true}, {13, false}}), "[<end>]|<end>|[<p>]");
  // A token that is named counts as a control token, special or not.
  EXPECT_EQ(parts_of(both, "<p><p>", {{3, true}, {6, false}}, {6}), "[<p>]|<p>");
  // It does not reach across the end of a stretch, of either kind; another one may.
  EXPECT_EQ(parts_of(both, "<end>", {{3, true}, {5, false}}), "<end>");
  EXPECT_EQ(parts_of(both, "<end>", {{3, false}, {5, true}}), "<end>");
  EXPECT_EQ(parts_of(both, "<p>", {{1, true}, {3, false}}), "[<p>]");
  // Nothing is sought inside of one that stays text, but a shorter token that fits is found.
  EXPECT_EQ(parts_of({control, token("nd>", 7)}, "<end>", {{5, false}}), "<end>");
  EXPECT_EQ(parts_of({control, token("<en", 7)}, "<end>", {{3, true}, {5, false}}), "[<en]|d>");
}

}  // namespace
}  // namespace ladder
