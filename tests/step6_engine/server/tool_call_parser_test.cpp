// Task 6.8: tool calls in generated text: what is one, what is none, and that it makes no difference where the text was cut.
#include "step6_engine/server/openai/tools/tool_call_parsers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"

namespace ladder::testing {
namespace {

struct Call {
  std::string name, arguments;
  bool operator==(const Call&) const = default;
};

struct Parsed {
  std::string content;
  std::vector<Call> calls;
  bool operator==(const Parsed&) const = default;
};

void PrintTo(const Parsed& parsed, std::ostream* out) {
  *out << "content \"" << parsed.content << "\"";
  for (const Call& call : parsed.calls) *out << ", " << call.name << "(" << call.arguments << ")";
}

// What a client puts together from the deltas. Failure: an index or an id out of order.
Parsed parse_pieces(const std::string& parser_name, const std::vector<std::string>& pieces) {
  const auto parser = tool_call_parser_of(parser_name)();
  Parsed parsed;
  const auto take = [&](const ToolTextDelta& delta) {
    parsed.content += delta.content;
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (!call.id.empty()) {
        EXPECT_EQ(call.index, std::ssize(parsed.calls)) << "a call's first delta";
        EXPECT_FALSE(call.name.empty());
        parsed.calls.push_back({call.name, ""});
      }
      parsed.calls.at(static_cast<size_t>(call.index)).arguments += call.arguments;
    }
  };
  for (const std::string& piece : pieces) take(parser->append(piece));
  take(parser->finish());
  return parsed;
}

Parsed parse_text(const std::string& parser_name, const std::string& text) {
  return parse_pieces(parser_name, {text});
}

const std::vector<std::string> kMalformed = {
    R"({"name": "f"})",                            // no arguments
    R"({"arguments": {}})",                        // no name
    R"({"name": "", "arguments": {}})",            //
    R"({"name": 1, "arguments": {}})",             //
    R"({"name": "f", "arguments": 1})",            //
    R"({"name": "f", "arguments": [1]})",          //
    R"({"name": "f", "arguments": null})",         //
    R"({"name": "f", "arguments": "no object"})",  //
    R"({"name": "f", "arguments": "{} {}"})",      //
    R"({"name": "f", "arguments": {"a": }})",      //
    R"({"name": "f", "arguments": {"a": 01}})",    //
    R"({"name": "f", "arguments": {"a": NaN}})",   //
    R"({"name": "f", "arguments": {"a": 1,}})",    //
    R"({"name": "f", "arguments": {'a': 1}})",     //
    R"({"name": "f", "arguments": {"a": "\x"}})",  //
    R"({"name": "\ud800", "arguments": {}})",      // half a character
    R"({"a": {"name": "f", "arguments": {}}})",    // those of an object within
    "{\"name\": \"f\", \"arguments\": {\"a\": \"line\nend\"}}",
    "{}",
};

TEST(Task6_8_Hermes, ACallIsTakenOutOfTheText) {
  EXPECT_EQ(
      parse_text("hermes",
                 "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}}\n"
                 "</tool_call>\n"),
      (Parsed{"Let me see.\n", {{"weather", R"({"city": "Ulm"})"}}}));
}

TEST(Task6_8_Hermes, SeveralCallsHaveWhiteSpaceBetweenThem) {
  EXPECT_EQ(parse_text("hermes", R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>
 <tool_call>{"arguments": {"x": [1, {"y": null}]}, "name": "g"}</tool_call>
 and text)"),
            (Parsed{"\n and text", {{"f", "{}"}, {"g", R"({"x": [1, {"y": null}]})"}}}));
}

TEST(Task6_8_Hermes, ArgumentsAreTheModelsBytes) {
  const std::string arguments =
      R"({"big": 123456789012345678901234567890, "b": 1.50, "a": "</tool_call> \" } \\", "a": "\u00e4ä", "n": -0.5e+7, "t": [true, false, null]})";
  EXPECT_EQ(parse_text("hermes", R"(<tool_call>{"name": "f", "arguments": )" + arguments + "}</tool_call>"),
            (Parsed{"", {{"f", arguments}}}));
}

TEST(Task6_8_Hermes, ArgumentsMayBeAStringThatHoldsAnObject) {
  EXPECT_EQ(parse_text("hermes", R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>)"),
            (Parsed{"", {{"f", R"({"a": 1})"}}}));
}

TEST(Task6_8_Hermes, WhatIsNoCallIsText) {
  for (const std::string& object : kMalformed) {
    const std::string text = "a <tool_call> " + object + " </tool_call> b";
    EXPECT_EQ(parse_text("hermes", text), (Parsed{text, {}}));
  }
}

TEST(Task6_8_Hermes, WhatTheEndCutsOffIsText) {
  const std::string whole = R"(<tool_call>{"name": "f", "arguments": {"a": "b"}})";
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_EQ(parse_text("hermes", whole.substr(0, length)), (Parsed{whole.substr(0, length), {}}));
  const Parsed call{"", {{"f", R"({"a": "b"})"}}};
  EXPECT_EQ(parse_text("hermes", whole), call) << "it only lacks its end tag";
  EXPECT_EQ(parse_text("hermes", whole + " \n"), call);
  EXPECT_EQ(parse_text("hermes", whole + "</tool"), (Parsed{whole + "</tool", {}}));
}

TEST(Task6_8_Hermes, ACallMayFollowOneThatIsNone) {
  const std::string good = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  for (const std::string bad :
       {"<tool_call>", "<tool_call>oops", "<tool_call>{\"name\": ", "<", "<tool_", "<tool_call>{\"a\": 1}",
        "<tool_call>{\"name\": \"g\", \"arguments\": {}} <", "{\"name\": \"g\", \"arguments\": {}}"})
    EXPECT_EQ(parse_text("hermes", bad + good), (Parsed{bad, {{"f", "{}"}}})) << bad;
}

TEST(Task6_8_Llama3, TheTextIsACall) {
  const Parsed call{"", {{"f", R"({"a": 1})"}}};
  for (const std::string before : {"", " \n", "<|python_tag|>", "\n<|python_tag|> "})
    for (const std::string text : {R"({"name": "f", "parameters": {"a": 1}})",
                                   R"({"type": "function", "name": "f", "arguments": {"a": 1}} )"})
      EXPECT_EQ(parse_text("llama3_json", before + text), call) << before + text;
}

TEST(Task6_8_Llama3, SeveralCallsHaveASemicolonBetweenThem) {
  EXPECT_EQ(
      parse_text(
          "llama3_json",
          R"({"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": {}}};{"name": "h", "parameters": {}})"),
      (Parsed{"", {{"f", "{}"}, {"g", R"({"a": {}})"}, {"h", "{}"}}}));
}

TEST(Task6_8_Llama3, OtherTextStaysText) {
  for (const std::string text :
       {"Hello.", "  ", "", " a {\"name\": \"f\", \"parameters\": {}}", R"({"answer": 42})", "[1, 2]",
        "<|python_tag|>print(1)", "{\"name\": \"f\", \"parameters\": {}"})
    EXPECT_EQ(parse_text("llama3_json", text), (Parsed{text, {}}));
  for (const std::string& object : kMalformed)
    EXPECT_EQ(parse_text("llama3_json", object), (Parsed{object, {}}));
}

TEST(Task6_8_Llama3, TextAfterACallStaysText) {
  const std::string call = R"({"name": "f", "parameters": {}})";
  for (const std::string rest :
       {" so be it", "; so be it", ";; ", "; {\"a\": 1}", " {\"name\": \"g\", \"parameters\": {}}"})
    EXPECT_EQ(parse_text("llama3_json", call + rest).calls, (std::vector<Call>{{"f", "{}"}}));
  EXPECT_EQ(parse_text("llama3_json", call + " ; so be it").content, " ; so be it");
  EXPECT_EQ(parse_text("llama3_json", call + "; {\"a\": 1}").content, "; {\"a\": 1}");
  EXPECT_EQ(parse_text("llama3_json", call + " and <|python_tag|>" + call).calls.size(), 2u);
}

// Texts of all kinds of parts, for both parsers.
std::string random_text(Random& random) {
  static const std::vector<std::string> parts = {
      "<tool_call>",
      "</tool_call>",
      "<|python_tag|>",
      "{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}",
      "{\"name\": \"g\", \"parameters\": {}}",
      "<tool_call>{\"name\": \"h\", \"arguments\": {}}</tool_call>",
      " ",
      "\n",
      ";",
      "<",
      "{",
      "}",
      "\"",
      "ä€",
      "text",
      "<tool_call>\n{\"name\": \"ö\", \"arguments\": {\"ä\": \"€\"}}\n</tool_call>",
      "\\",
      ",",
      ":",
      "1"};
  std::string text;
  for (int64_t i = random.integer(0, 12); i > 0; --i)
    text += random.integer(0, 9) == 0
                ? kMalformed[static_cast<size_t>(random.integer(0, std::ssize(kMalformed) - 1))]
                : parts[static_cast<size_t>(random.integer(0, std::ssize(parts) - 1))];
  return text;
}

TEST(Task6_8_Cuts, EveryCutGivesWhatTheWholeGives) {
  const std::string text =
      "Hm. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"<tool_call>\"}}\n</tool_call>\n<tool_call> no"
      "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call> end";
  const Parsed whole = parse_text("hermes", text);
  ASSERT_EQ(whole.calls.size(), 2u);
  for (size_t a = 0; a <= text.size(); ++a)
    for (size_t b = a; b <= text.size(); ++b)
      ASSERT_EQ(parse_pieces("hermes", {text.substr(0, a), text.substr(a, b - a), text.substr(b)}), whole)
          << "cut at " << a << " and " << b;
}

TEST(Task6_8_Cuts, RandomTextsInRandomPieces) {
  Random random(68);
  int num_calls = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::string text = random_text(random);
    for (const std::string parser : {"hermes", "llama3_json"}) {
      const Parsed whole = parse_text(parser, text);
      num_calls += static_cast<int>(whole.calls.size());
      if (whole.calls.empty()) {
        ASSERT_EQ(whole.content, text) << "no call, so all of it is text";
      }
      std::vector<std::string> bytes, pieces;
      for (const char c : text) bytes.emplace_back(1, c);
      for (size_t at = 0; at < text.size();) {
        const size_t length = static_cast<size_t>(random.integer(0, 20));
        pieces.push_back(text.substr(at, length));
        at += length;
      }
      ASSERT_EQ(parse_pieces(parser, bytes), whole) << text;
      ASSERT_EQ(parse_pieces(parser, pieces), whole) << text;
    }
  }
  EXPECT_GT(num_calls, 2000);
}

TEST(Task6_8_Cuts, TextComesOutAtOnceAndCallsOnlyWhenTheyAreWhole) {
  const auto parser = tool_call_parser_of("hermes")();
  EXPECT_EQ(parser->append("Hello wörld ").content, "Hello wörld ");
  EXPECT_EQ(parser->append("1 <").content, "1 ");
  EXPECT_EQ(parser->append(" 2<tool").content, "< 2");
  EXPECT_EQ(parser->append("_call>{\"name\": \"f\", \"arguments\": {}}</tool_call").content, "");
  const ToolTextDelta delta = parser->append(">");
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].name, "f");
}

TEST(Task6_8_Calls, IdsAreRandom) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) {
    const auto parser = tool_call_parser_of("hermes")();
    const ToolTextDelta delta = parser->append(
        R"(<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>)");
    for (const ToolCallDelta& call : delta.tool_calls) {
      EXPECT_TRUE(std::regex_match(call.id, std::regex("call_[0-9a-f]{24}"))) << call.id;
      ids.insert(call.id);
    }
  }
  EXPECT_EQ(ids.size(), 200u);
}

// Megabytes that might all become calls: text again, in time linear in the length.
TEST(Task6_8_Calls, AnAnswerWithoutAnEndIsTextAndTakesLinearTime) {
  std::vector<std::string> texts(7);
  while (texts[0].size() < (1 << 20)) texts[0] += "<tool_call>";
  texts[1] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"" + std::string(1 << 20, 'x');
  texts[2] = std::string(1 << 20, '<');
  texts[3] = "<tool_call>" + std::string(1 << 20, ' ');
  while (texts[4].size() < (1 << 20)) texts[4] += "<tool_call>{\"a\":";
  texts[5] = "{\"a\": " + std::string(1 << 20, '[');
  texts[6] = "{\"a\": \"" + std::string(1 << 20, '\\');
  for (const std::string& text : texts)
    for (const std::string parser : {"hermes", "llama3_json"}) {
      const auto begin = std::chrono::steady_clock::now();
      const Parsed parsed = parse_text(parser, text);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      EXPECT_TRUE(parsed.content == text) << text.substr(0, 40);
      EXPECT_LT(seconds.count(), 2.0) << text.substr(0, 40);
    }
}

TEST(Task6_8_Calls, NoMoreThanTheLimitIsHeldBack) {
  const auto parser = tool_call_parser_of("hermes")();
  const std::string begin = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"";
  EXPECT_EQ(parser->append(begin).content, "");
  EXPECT_EQ(parser->append(std::string(kMaxCallBytes - begin.size(), 'x')).content, "");
  EXPECT_EQ(parser->append("y").content.size(), kMaxCallBytes + 1);
  EXPECT_EQ(parser->append("z").content, "z");
}

TEST(Task6_8_Calls, AGapIsHeldBackToFourKilobytes) {
  const auto parser = tool_call_parser_of("hermes")();
  EXPECT_EQ(parser->append("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>").tool_calls.size(),
            1u);
  EXPECT_EQ(parser->append(std::string(4096, ' ')).content, "");
  EXPECT_EQ(parser->append(" ").content.size(), 4097u);
  EXPECT_EQ(parser->append(" ").content, " ") << "the gap is over: this is text";
}

TEST(JsonScanner, TakesWhatAJsonParserTakes) {
  Random random(8);
  const std::vector<std::string> parts = {
      "{",  "}",  "[",         "]",    ",",    ":",     "\"a\"", "\"\\u00e4\\n\"", "1",  "-",
      "0",  ".5", "e+3",       "true", "null", "false", " ",     "\"b\":",         "\"", "\\",
      "12", "E",  "{\"a\":1}", "[]",   "tru"};
  int num_complete = 0;
  for (int round = 0; round < 200000; ++round) {
    std::string text = "{\"k\":";
    for (int64_t i = random.integer(0, 6); i > 0; --i)
      text += parts[static_cast<size_t>(random.integer(0, std::ssize(parts) - 1))];
    text += "}";
    JsonScanner scanner;
    JsonScanner::State state = JsonScanner::State::more;
    size_t end = 0;
    while (end < text.size() && state == JsonScanner::State::more) state = scanner.feed(text[end++]);
    const bool whole = state == JsonScanner::State::complete && end == text.size();
    num_complete += whole;
    const bool accepted = nlohmann::json::accept(text);
    // To nlohmann/json a number beyond double's range is malformed; in JSON it is a number.
    if (whole && !accepted && std::regex_search(text, std::regex(R"([eE]\+?\d{3})"))) continue;
    ASSERT_EQ(whole, accepted) << text;
    if (state == JsonScanner::State::complete && end < text.size()) {
      ASSERT_TRUE(nlohmann::json::accept(text.substr(0, end))) << text;
    }
  }
  EXPECT_GT(num_complete, 1000);
}

// Deeper than kMaxDepth is text; a number of any size is the client's to read.
TEST(Task6_8_Calls, DepthIsBoundedAndNumbersAreNot) {
  const auto call = [](const std::string& value) {
    return R"(<tool_call>{"name": "f", "arguments": {"a": )" + value + "}}</tool_call>";
  };
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  const size_t room = JsonScanner::kMaxDepth - 2;
  for (const std::string& value : {nested(room), std::string("1e400"), "-" + std::string(5000, '9')})
    EXPECT_EQ(parse_text("hermes", call(value)), (Parsed{"", {{"f", "{\"a\": " + value + "}"}}}));
  for (const std::string& value :
       {nested(room + 1), nested(100'000), std::string("+1"), std::string("Infinity")})
    EXPECT_EQ(parse_text("hermes", call(value)), (Parsed{call(value), {}})) << value.substr(0, 20);
}

TEST(ToolCallParser, OfSeveralCallsTheFirstOnly) {
  const auto parser = first_call_only(tool_call_parser_of("hermes"))();
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  EXPECT_EQ(parser->append("a" + call).tool_calls.size(), 1u);
  const ToolTextDelta delta = parser->append(call + " b");
  EXPECT_TRUE(delta.tool_calls.empty());
  EXPECT_EQ(delta.content + parser->finish().content, " b");
}

TEST(ToolCallParser, AnUnknownNameIsAnError) {
  EXPECT_THROW(tool_call_parser_of("mistral"), Error);
  EXPECT_THROW(tool_call_parser_of(""), Error);
}

}  // namespace
}  // namespace ladder::testing
