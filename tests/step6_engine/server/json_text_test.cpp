#include "step6_engine/server/openai/json_text.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "step2_model/json.h"

namespace ladder {
namespace {

std::string written(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

std::string as_nlohmann(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

TEST(Task6_7_JsonText, EveryByteIsWrittenAsNlohmannDoes) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = {'a', static_cast<char>(byte), 'b'};
    EXPECT_EQ(written(text), as_nlohmann(text)) << byte;
  }
}

TEST(Task6_7_JsonText, RandomTextsAreWrittenAsNlohmannDoes) {
  std::mt19937 random(7);
  const std::string pieces[] = {"a",        "\"",       "\\",       "\n", "\x01", "é",    "\u2028",   "😀",
                                "\xf0\x9f", "\xe2\x82", "\x80\xff", "\t", "\x7f", "{}[]", "</script>"};
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (uint32_t n = random() % 12; n > 0; --n) text += pieces[random() % std::size(pieces)];
    EXPECT_EQ(written(text), as_nlohmann(text)) << i;
    EXPECT_TRUE(Json::accept(written(text)));
  }
}

TEST(Task6_7_JsonText, ALogProbabilityIsANumberWhateverItIs) {
  const auto number = [](float value) {
    std::string out;
    append_json_logprob(out, value);
    return out;
  };
  EXPECT_EQ(Json::parse(number(-1.1f)).get<float>(), -1.1f);
  EXPECT_EQ(Json::parse(number(0.0f)).get<float>(), 0.0f);
  EXPECT_EQ(Json::parse(number(-std::numeric_limits<float>::infinity())).get<float>(), -9999.0f);
}

}  // namespace
}  // namespace ladder
