// What parses as JSON and is refused all the same: at the very limits.
#include "step2_model/json.h"

#include <gtest/gtest.h>

#include <cmath>

#include "step1_layers/core/error.h"
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
