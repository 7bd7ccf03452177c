// Task 6.8: texts that are made of calls and of what is none, cut anywhere, against what they were made of.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "step2_model/json.h"
#include "step6_engine/server/openai/tools/tool_call_parsers.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::Random;

struct Answer {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Answer&) const = default;
};

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << "content \"" << answer.content.substr(0, 2000) << "\"";
  for (const auto& [name, arguments] : answer.calls) *out << ", " << name << "(" << arguments << ")";
}

Answer parse(const std::string& parser_name, const std::vector<std::string>& pieces) {
  const auto parser = tool_call_parser_of(parser_name)();
  Answer answer;
  const auto take = [&](const ToolTextDelta& delta) {
    answer.content += delta.content;
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (!call.id.empty()) {
        EXPECT_EQ(call.index, std::ssize(answer.calls)) << "calls are numbered in their order";
        answer.calls.emplace_back(call.name, "");
      }
      if (static_cast<size_t>(call.index) < answer.calls.size())
        answer.calls[static_cast<size_t>(call.index)].second += call.arguments;
      else
        ADD_FAILURE() << "a piece of call " << call.index << " before its first one";
    }
  };
  for (const std::string& piece : pieces) take(parser->append(piece));
  take(parser->finish());
  return answer;
}

std::vector<std::string> random_pieces(Random& random, const std::string& text) {
  const int64_t longest = random.one_of<int64_t>({1, 3, 12, 60, 1000});
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    pieces.push_back(text.substr(at, static_cast<size_t>(random.integer(0, longest))));
    at += pieces.back().size();
  }
  return pieces;
}

std::string random_space(Random& random) {
  std::string space;
  for (int64_t i = random.integer(0, 3); i > 0; --i)
    space += random.one_of<std::string>({" ", "\n", "\t", "\r"});
  return space;
}

std::string random_string(Random& random) {
  static const std::vector<std::string> parts = {"a", "Z",  "ä", "€",  "<tool_call>",    "</tool_call>", "{",
                                                 "}", "\"", ";", "\\", "<|python_tag|>", "\n",           "7"};
  std::string text;
  for (int64_t i = random.integer(1, 5); i > 0; --i) text += random.one_of(parts);
  return text;
}

// A JSON text, with white space wherever it may stand, and numbers that no double holds.
std::string random_json(Random& random, int depth) {
  switch (random.integer(0, depth > 0 ? 5 : 3)) {
    case 0:
      return Json(random_string(random)).dump();
    case 1:
      return random.one_of<std::string>({"0", "-1", "1.50", "2e400", "12345678901234567890123", "-0.0e-7"});
    case 2:
      return random.one_of<std::string>({"true", "false", "null"});
    case 3:
      return random.one_of<std::string>({"{}", "[]", "[ ]"});
    case 4: {
      std::string list = "[" + random_json(random, depth - 1);
      for (int64_t i = random.integer(0, 2); i > 0; --i)
        list += "," + random_space(random) + random_json(random, depth - 1);
      return list + random_space(random) + "]";
    }
    default: {
      std::string object = "{" + random_space(random) + Json(random_string(random)).dump() + ":" +
                           random_json(random, depth - 1);
      for (int64_t i = random.integer(0, 2); i > 0; --i)
        object += ", " + Json(random_string(random)).dump() + random_space(random) + ":" +
                  random_json(random, depth - 1);
      return object + "}";
    }
  }
}

std::string random_object(Random& random) {
  std::string object;
  do object = random_json(random, 3);
  while (object[0] != '{');
  return object;
}

struct Call {
  std::string text;  // the object
  std::string name, arguments;
};

Call random_call(Random& random) {
  Call call{"", random_string(random), random_object(random)};
  const std::string name = "\"name\":" + random_space(random) + Json(call.name).dump();
  const std::string key = random.one_of<std::string>({"\"arguments\"", "\"parameters\""});
  const std::string arguments = key + random_space(random) + ":" +
                                (random.integer(0, 3) == 0 ? Json(call.arguments).dump() : call.arguments);
  const std::string more = random.integer(0, 2) == 0 ? ",\"x\":" + random_json(random, 2) : "";
  call.text =
      "{" + random_space(random) +
      (random.integer(0, 1) == 0 ? name + "," + arguments : arguments + random_space(random) + "," + name) +
      more + random_space(random) + "}";
  return call;
}

// An object that calls nothing, or is none.
std::string random_no_call(Random& random) {
  return random.one_of<std::string>({
      R"({"name": "f"})",
      R"({"name": 7, "arguments": {}})",
      R"({"name": "", "arguments": {}})",
      R"({"arguments": {}})",
      R"({"name": "f", "arguments": [{}]})",
      R"({"name": "f", "arguments": "{"})",
      R"({"name": "f", "arguments": {}]})",
      R"({"name": "f", "arguments": {"a" 1}})",
      R"({"a": {"name": "f"}})",
      R"({"name": "f", "arguments": {"a": 1.}})",
      R"({"name": "f", "arguments": tru})",
      R"([1])",
      R"("f")",
      "",
  });
}

// Text that begins with no mark and no white space.
std::string random_words(Random& random) {
  std::string text = random.one_of<std::string>({"Let", "1.", "ä", "}"});
  for (int64_t i = random.integer(0, 6); i > 0; --i)
    text += random.one_of<std::string>({" ", "it", "\n", "< ", "<tool ", "€", "</tool_call>", ";", "{}"});
  return text + "x";
}

// `gap`: white space that stands since the last call. It is content where neither a call nor the end follows it.
TEST(Hidden6_8_Hermes, CallsAndTextsInAnyOrderAndCut) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 1500; ++round) {
    std::string text, gap;
    Answer expected;
    const auto say = [&](const std::string& words) {
      expected.content += gap + words;
      gap.clear();
      text += words;
    };
    bool cut_off = false;
    for (int64_t i = random.integer(0, 8); i > 0; --i) {
      const int64_t kind = random.integer(0, 4);
      cut_off = kind == 4;
      switch (kind) {
        case 0:
        case 1: {
          const Call call = random_call(random);
          text += "<tool_call>" + random_space(random) + call.text + random_space(random) + "</tool_call>";
          expected.calls.emplace_back(call.name, call.arguments);
          const std::string space = random_space(random);
          text += space;
          gap = space;
          break;
        }
        case 2:
          say(random_words(random));
          break;
        case 3:
          say("<tool_call>" + random_no_call(random) + "</tool_call>");
          break;
        default:  // a call that does not end, and another mark at once
          say("<tool_call>" + random_call(random).text +
              random.one_of<std::string>({"", " ", "</", "</tool_call", "!"}));
      }
    }
    // A whole call that the end alone cuts off is one: something follows it here.
    if (cut_off || random.integer(0, 1) == 0) say("|");
    ASSERT_EQ(parse("hermes", {text}), expected) << text;
    ASSERT_EQ(parse("hermes", random_pieces(random, text)), expected) << text;
  }
}

TEST(Hidden6_8_Llama3, CallsInARowAndWhatFollowsThem) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 1500; ++round) {
    std::string text =
        random_space(random) + (random.integer(0, 2) == 0 ? "<|python_tag|>" + random_space(random) : "");
    Answer expected;
    for (int64_t i = random.integer(1, 4), last = i; i > 0; --i) {
      if (i != last) text += random_space(random) + ";" + random_space(random);
      const Call call = random_call(random);
      text += call.text;
      expected.calls.emplace_back(call.name, call.arguments);
    }
    switch (random.integer(0, 3)) {
      case 0:  // the end, and what is left out before it
        text += random_space(random) + random.one_of<std::string>({"", ";"}) + random_space(random);
        break;
      case 1:  // no semicolon: text
        expected.content = random_space(random) + random_call(random).text;
        text += expected.content;
        break;
      case 2:  // an object that calls nothing
        do expected.content = random_no_call(random);
        while (expected.content.empty());
        expected.content = random_space(random) + ";" + expected.content;
        text += expected.content;
        break;
      default:
        expected.content = random_space(random) + random_words(random);
        text += expected.content;
    }
    ASSERT_EQ(parse("llama3_json", {text}), expected) << text;
    ASSERT_EQ(parse("llama3_json", random_pieces(random, text)), expected) << text;
  }
}

TEST(Hidden6_8_Bounds, ACallThatGrowsTooLongIsTextFromThereOn) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const std::string name : {"hermes", "llama3_json"}) {
    const auto parser = tool_call_parser_of(name)();
    const std::string mark = name == "hermes" ? "<tool_call>" + random_space(random) : "";
    const std::string begin = mark + R"({"name": "f", "arguments": {"a": ")";
    const size_t room = kMaxCallBytes - begin.size(), first = static_cast<size_t>(random.integer(1, 200'000));
    std::string content = parser->append(begin).content;
    content += parser->append(std::string(first, 'x')).content;
    content += parser->append(std::string(room - first, 'y')).content;
    EXPECT_EQ(content, "") << name << ": given back before it must be";
    content += parser->append("z").content;
    EXPECT_TRUE(content == begin + std::string(first, 'x') + std::string(room - first, 'y') + "z") << name;
    EXPECT_EQ(parser->append("\"}}</tool_call>").content, "\"}}</tool_call>") << name << ": it is text now";
    EXPECT_EQ(parser->append("<tool_call>").content, name == "hermes" ? "" : "<tool_call>") << name;
  }
}

}  // namespace
}  // namespace ladder
