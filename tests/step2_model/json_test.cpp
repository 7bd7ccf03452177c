// What parses as JSON and is refused all the same: at the very limits.
#include "step2_model/json.h"

#include <gtest/gtest.h>

#include <cmath>

#include "step1_layers/core/error.h"
#include "step2_model/json_packed_ids.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

TEST(Json, MayBeAsDeepAsTheLimitAndNoDeeper) {
  EXPECT_NO_THROW(parse_json(nested(3), "text", 3));
  EXPECT_THROW(parse_json(nested(4), "text", 3), Error);
  EXPECT_NO_THROW(parse_json(R"([{"a":[]}, [[1]]])", "text", 3));
  EXPECT_THROW(parse_json(R"([{"a":[{}]}])", "text", 3), Error);
}

TEST(Json, AFileMayBeAsLargeAsTheLimitAndNoLarger) {
  const testing::TemporaryFolder folder;
  testing::write_file(folder / "file", "12345");
  EXPECT_EQ(read_text_file(folder / "file", 5), "12345");
  EXPECT_THROW(read_text_file(folder / "file", 4), Error);
  EXPECT_THROW(read_text_file(folder.path()), Error);
}

// A list of `count` numbers, of which that at `place` is another value.
std::string list_with(size_t count, size_t place, const std::string& other) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) text += (i > 0 ? "," : "") + (i == place ? other : std::to_string(i));
  return text + "]";
}

TEST(Json, ALongListOfIdsIsPackedAndHasThemAll) {
  const std::string list = list_with(kPackedFrom, 7, "2147483647");
  const Json packed = parse_json_with_packed_ids(R"({"a":[)" + list + ",3," + list + R"(],"b":1})", "text");
  const Json plain = parse_json(R"({"a":[)" + list + ",3," + list + R"(],"b":1})", "text");
  EXPECT_EQ(packed["b"], 1);
  ASSERT_EQ(packed["a"].size(), 3u);
  EXPECT_EQ(packed["a"][1], 3);
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(packed_ids(packed["a"][i]), plain["a"][i].get<std::vector<int32_t>>());
    EXPECT_EQ(json_brief(packed["a"][i]), json_brief(plain["a"][i]));
    EXPECT_FALSE(packed_ids(plain["a"][i]).has_value());
  }
}

TEST(Json, EveryOtherListIsAsItWas) {
  const size_t n = kPackedFrom + 1;
  std::vector<std::string> texts = {"[]", "[1]", "7", list_with(kPackedFrom - 1, n, "")};
  for (const size_t place : {size_t{0}, n / 2, n - 1})
    for (const char* other : {"-1", "2147483648", "1e3", "2.0", "null", "\"5\"", "[]", "[1,2]", "{\"k\":[1]}",
                              "99999999999999999999", "true"})
      texts.push_back(list_with(n, place, other));
  for (const std::string& text : texts) {
    EXPECT_EQ(parse_json_with_packed_ids(text, "text"), parse_json(text, "text")) << text;
    EXPECT_EQ(parse_json_with_packed_ids("{\"a\":[" + text + "," + text + "]}", "text"),
              parse_json("{\"a\":[" + text + "," + text + "]}", "text"))
        << text;
  }
  EXPECT_TRUE(parse_json_with_packed_ids("[1,2]", "text")[0].is_number_unsigned());
  EXPECT_THROW(parse_json_with_packed_ids(list_with(n, n - 1, "1,"), "text"), Error);
  EXPECT_THROW(parse_json_with_packed_ids(list_with(n, n - 1, "[[1]]"), "text", 2), Error);
}

// With its packed lists as arrays again.
Json unpacked(const Json& value) {
  if (const auto ids = packed_ids(value)) return *ids;
  Json all = value;
  if (value.is_structured())
    for (auto& member : all) member = unpacked(member);
  return all;
}

// Numbers, brackets and quotes in strings are no lists, and what is wrong is named where it stands.
TEST(Json, ListsInStringsStayAndErrorsAreWhereTheyWere) {
  const std::string list = list_with(kPackedFrom, 7, "0");
  const std::string text =
      R"({"[": "[1,2,)" + list + R"(\"[", "\\": )" + list + R"(, "b": [[" ]", 1], )" + list + "]}";
  const Json packed = parse_json_with_packed_ids(text, "text"), plain = parse_json(text, "text");
  EXPECT_EQ(packed["["], plain["["]);
  EXPECT_EQ(packed["b"][0], plain["b"][0]);
  EXPECT_EQ(packed_ids(packed["\\"]), plain["\\"].get<std::vector<int32_t>>());
  EXPECT_EQ(packed_ids(packed["b"][1]), plain["b"][1].get<std::vector<int32_t>>());

  // Whatever is cut off, doubled or put in anywhere: both say the same of it.
  const auto said = [](auto parse, const std::string& broken) -> std::string {
    try {
      return "valid: " + unpacked(parse(broken, "text", 64)).dump();
    } catch (const Error& error) {
      return error.what();
    }
  };
  for (const std::string_view with : {"", ",", "]", "[", "\"", "\\", "0", "x", " ", "\n", "{", "}"})
    for (size_t at = 0; at <= text.size(); at += at % 97 < 24 ? 1 : 11) {
      std::string broken = text;
      with.empty() ? broken.erase(at) : broken.insert(at, with);
      ASSERT_EQ(said(parse_json_with_packed_ids, broken), said(parse_json, broken)) << at << " " << with;
    }
}

TEST(Json, IntegersAreThoseThatFit) {
  EXPECT_EQ(json_int(parse_json("-3", "text"), "text", -3, 3), -3);
  EXPECT_EQ(json_int(parse_json("3", "text"), "text", -3, 3), 3);
  EXPECT_EQ(json_int(parse_json("9223372036854775807", "text"), "text"), INT64_MAX);
  for (const char* text : {"-4", "4", "1.0", "1e0", "\"1\"", "true", "null"})
    EXPECT_THROW(json_int(parse_json(text, "text"), "text", -3, 3), Error) << text;
  // Their bits are those of -1 and of the smallest integer.
  for (const char* text : {"18446744073709551615", "9223372036854775808"})
    EXPECT_THROW(json_int(parse_json(text, "text"), "text"), Error) << text;
}

TEST(Json, NumbersAreFinite) {
  EXPECT_EQ(json_number(parse_json("1e3", "text"), "text"), 1000.0);
  EXPECT_THROW(json_number(Json(INFINITY), "text"), Error);
  EXPECT_THROW(json_number(Json(NAN), "text"), Error);
  EXPECT_THROW(parse_json("1e999", "text"), Error);
}

TEST(Json, AMemberThatIsNullIsAbsent) {
  const Json object = parse_json(R"({"a": null, "b": 1})", "text");
  EXPECT_EQ(json_find(object, "a", "text"), nullptr);
  EXPECT_EQ(json_find(object, "c", "text"), nullptr);
  EXPECT_EQ(json_at(object, "b", "text"), 1);
  EXPECT_THROW(json_at(object, "a", "text"), Error);
  EXPECT_THROW(json_find(parse_json("[]", "text"), "a", "text"), Error);
}

}  // namespace
}  // namespace ladder
