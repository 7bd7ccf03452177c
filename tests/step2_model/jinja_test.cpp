// Tasks 2.6.*: the pieces of the Jinja interpreter, each for itself.
#include "tests/step2_model/jinja.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "step1_layers/core/error.h"
#include "step2_model/chat/jinja/lexer.h"
#include "step2_model/chat/jinja/parser.h"
#include "tests/step2_model/jinja_tree.h"

namespace ladder {
namespace {

using jinja::Origin;
using jinja::Text;
using ::testing::HasSubstr;
using testing::marked_value_of_jinja;
using testing::render_jinja;
using testing::render_marked;
using testing::value_of_jinja;

OrderedJson variables() {
  return parse_ordered_json(
      R"({"c": "<|im_end|>", "s": "aé漢 b", "l": [3, 1, 2], "d": {"k": "v"}, "w": " x\n\ty\u00a0"})",
      "variables");
}

std::string shown(const Text& text) {
  std::string marked;
  text.for_each_stretch([&](std::string_view bytes, Origin origin) {
    marked.append(origin == Origin::outside ? "[" : "(")
        .append(bytes)
        .append(origin == Origin::outside ? "]" : ")");
  });
  return marked;
}

TEST(Task2_6_Marks, AppendingKeepsTheMarkOfEveryCharacter) {
  Text text("ab", Origin::trusted);
  text.append("cd", Origin::outside);
  text.append("e", Origin::outside);
  text.append("", Origin::trusted);
  text.append(Text("f", Origin::trusted));
  EXPECT_EQ(shown(text), "(ab)[cde](f)");
  text.append(text);
  EXPECT_EQ(shown(text), "(ab)[cde](fab)[cde](f)");
  for (size_t at = 0; at < text.size(); ++at)
    EXPECT_EQ(text.origin_at(at) == Origin::outside, at % 6 >= 2 && at % 6 < 5) << at;
}

TEST(Task2_6_Marks, EverySliceHasTheMarksOfItsCharacters) {
  Text text;
  for (const char c : std::string("aBCdeFghIJ"))
    text.append(std::string(1, c), c < 'a' ? Origin::outside : Origin::trusted);
  for (size_t begin = 0; begin <= text.size(); ++begin)
    for (size_t end = begin; end <= text.size(); ++end) {
      const Text slice = text.slice(begin, end);
      ASSERT_EQ(slice.bytes(), text.bytes().substr(begin, end - begin));
      for (size_t at = 0; at < slice.size(); ++at)
        EXPECT_EQ(slice.origin_at(at), text.origin_at(begin + at)) << begin << " " << end << " " << at;
      slice.for_each_stretch([&](std::string_view bytes, Origin origin) {
        EXPECT_FALSE(bytes.empty());
        for (const char c : bytes) EXPECT_EQ(origin == Origin::outside, c < 'a') << begin << " " << end;
      });
    }
}

TEST(Task2_6_Marks, CountsCodePoints) {
  EXPECT_EQ(jinja::count_code_points("aé漢😀"), 4u);
  EXPECT_EQ(jinja::count_code_points(""), 0u);
  for (const auto& [index, offset] :
       std::map<size_t, size_t>{{0, 0}, {1, 1}, {2, 3}, {3, 6}, {4, 10}, {9, 10}})
    EXPECT_EQ(jinja::code_point_offset("aé漢😀", index), offset) << index;
}

std::string tokens(std::string_view source) {
  std::string list;
  int line = 1;
  for (const jinja::Token& token : jinja::read_tokens(source, line)) {
    constexpr std::string_view kNames[] = {"data",   "{{",      "}}",   "{%",     "%}", "name",
                                           "string", "integer", "real", "symbol", "end"};
    list.append(kNames[static_cast<size_t>(token.kind)]);
    if (!token.text.empty()) list.append(":").append(token.text);
    list.append(" ");
  }
  return list;
}

std::string refusal(std::string_view source) {
  int line = 1;
  try {
    jinja::read_tokens(source, line);
    return "";
  } catch (const jinja::Refusal& error) {
    return std::to_string(line) + ": " + error.what();
  }
}

TEST(Task2_6_Lexer, DataAndTags) {
  EXPECT_EQ(tokens("Hi {{ name|upper }}!"), "data:Hi  {{ name:name symbol:| name:upper }} data:! end ");
  EXPECT_EQ(tokens("{% if a.b[0] == 'x' %}"),
            "{% name:if name:a symbol:. name:b symbol:[ integer:0 symbol:] symbol:== string:x %} end ");
  EXPECT_EQ(tokens("{{ 1.5e3 // 1_0 }}"), "{{ real:1.5e3 symbol:// integer:10 }} end ");
  EXPECT_EQ(tokens("a { b # c % d"), "data:a { b # c % d end ");
}

TEST(Task2_6_Lexer, BracketsAndStringsHideTheEndOfATag) {
  EXPECT_EQ(
      tokens("{{ {'a': {'b': 1}} }}x"),
      "{{ symbol:{ string:a symbol:: symbol:{ string:b symbol:: integer:1 symbol:} symbol:} }} data:x end ");
  EXPECT_EQ(tokens("{{ '}}' }}"), "{{ string:}} }} end ");
}

TEST(Task2_6_Lexer, WhiteSpaceAroundTags) {
  EXPECT_EQ(tokens("a \n\n {%- x -%} \n b"), "data:a {% name:x %} data:b end ");
  EXPECT_EQ(tokens("a\n  {% x %}\nb"), "data:a\n {% name:x %} data:b end ");
  EXPECT_EQ(tokens("a\n  {%+ x +%}\nb"), "data:a\n   {% name:x %} data:\nb end ");
  EXPECT_EQ(tokens("a\n  {{ x }}\nb\n"), "data:a\n   {{ name:x }} data:\nb end ");
  EXPECT_EQ(tokens("a\u00a0\n{{- x -}}\u3000b"), "data:a {{ name:x }} data:b end ");
  EXPECT_EQ(tokens("x {% y %} \n"), "data:x  {% name:y %} data:  end ");
}

TEST(Task2_6_Lexer, CommentsAndRawBlocks) {
  EXPECT_EQ(tokens("a{# {{ b }} #}c"), "data:a data:c end ");
  EXPECT_EQ(tokens("a\n  {#- b -#}\n c"), "data:a data:c end ");
  EXPECT_EQ(tokens("{% raw %} {{ a }} {% endraw %}\nb"), "data: {{ a }}  data:b end ");
  EXPECT_EQ(tokens("{%- raw -%}  a  {%- endraw -%}  b"), "data:a data:b end ");
}

TEST(Task2_6_Lexer, WhatIsNotClosedIsRefusedWithItsLine) {
  for (const char* source : {"\n{{ a", "\n{% a", "\n{# a", "\n{{ 'a }}", "\n{% raw %}", "\n{{ (1] }}",
                             "\n{{ 1) }}", "\n{{ ? }}"}) {
    const std::string error = refusal(source);
    EXPECT_TRUE(error.starts_with("2: ")) << source << error;
  }
}

jinja::Tree parsed(std::string_view source) {
  int line = 1;
  return jinja::parse_template(source, line);
}

TEST(Task2_6_Expressions, PrecedenceIsJinjas) {
  for (const auto& [source, expected] :
       std::map<std::string, std::string>{{"1 + 2 * 3", "(1 + (2 * 3))"},
                                          {"(1 + 2) * 3", "((1 + 2) * 3)"},
                                          {"10 - 4 - 3", "((10 - 4) - 3)"},
                                          {"2 ** 3 ** 2", "((2 ** 3) ** 2)"},
                                          {"-2 | abs", "((-2) | abs)"},
                                          {"-x.y", "(-x.y)"},
                                          {"- 1 + 2", "((-1) + 2)"},
                                          {"1 ~ 2 + 3 ~ 4", "((1 ~ 2) + (3 ~ 4))"},
                                          {"'a' ~ 2 * 3 ~ b", "('a' ~ (2 * 3) ~ b)"},
                                          {"not 1 == 2", "(not (1 == 2))"},
                                          {"not a and b", "((not a) and b)"},
                                          {"a if b", "(a if b)"},
                                          {"1 if 0 else 2 if 0 else 3", "(1 if 0 else (2 if 0 else 3))"},
                                          {"1 or 2 and 0", "(1 or (2 and 0))"},
                                          {"a or b or c", "((a or b) or c)"},
                                          {"7 // 2 * 2", "((7 // 2) * 2)"},
                                          {"1 < 2 < 3", "(1 < 2 < 3)"},
                                          {"'b' ~ 'a' == 'ba'", "(('b' ~ 'a') == 'ba')"},
                                          {"2 not in [1]", "(2 not in [1])"},
                                          {"a + b in c", "((a + b) in c)"},
                                          {"1 is odd and 2 is even", "((1 is odd) and (2 is even))"},
                                          {"1 is not none", "(not (1 is none))"},
                                          {"1 is divisibleby 1 == true", "((1 is divisibleby(1)) == True)"},
                                          {"[1, 2][-1] + 1", "([1, 2][(-1)] + 1)"},
                                          {"x[1:] | upper", "(x[1::] | upper)"},
                                          {"x[:2][::-1]", "x[:2:][::(-1)]"},
                                          {"(1, 2)[0], 3", "((1, 2)[0], 3)"},
                                          {"l.0.b", "l[0].b"},
                                          {"a.split(',')[1].upper()", "a.split(',')[1].upper()"},
                                          {"f(1, a=2) | join(',')", "(f(1, a=2) | join(','))"},
                                          {"{'a': 1}['a']", "{'a': 1}['a']"}}) {
    const jinja::Tree tree = parsed("{{ " + source + " }}");
    EXPECT_EQ(testing::shown(tree.body), expected) << source;
  }
}

TEST(Task2_6_Expressions, WhatIsNoExpressionIsRefused) {
  for (const char* source : {"{{ }}", "{{ 1 + }}", "{{ a. }}", "{{ a[] }}", "{{ a[1:2:3:4] }}", "{{ not }}",
                             "{{ a b }}", "{{ f(a=1, 2) }}", "{{ [1 2] }}"})
    EXPECT_THROW(parsed(source), jinja::Refusal) << source;
}

TEST(Task2_6_Parser, BodiesEndWhereTheirTagsSay) {
  for (const auto& [source, expected] : std::map<std::string, std::string>{
           {"{% if n == 1 %}a{% elif n == 2 %}b{% elif n == 3 %}c{% else %}d{% endif %}e",
            R"(if (n == 1) ["a"] if (n == 2) ["b"] if (n == 3) ["c"] else ["d"] "e")"},
           {"{% if a %}{% if b %}1{% endif %}{% else %}2{% endif %}", R"(if a [if b ["1"]] else ["2"])"},
           {"{% for x in l if x %}{% if x %}1{% endif %};{% else %}none{% endfor %}",
            R"(for x in l if x [if x ["1"] ";"] else ["none"])"},
           {"{% for k, (a, b) in d.items() %}{% break %}{% endfor %}",
            "for (k, (a, b)) in d.items() [break]"},
           {"{% set ns.x = 1 %}{% set a, b = 1, 2 %}", "set ns.x = 1 set (a, b) = (1, 2)"},
           {"{% set x %}{% for y in z %}{{ y }}{% endfor %}{% endset %}{{ x }}", "set x [for y in z [y]] x"},
           {"{% set x | upper | trim %}a{% endset %}", R"(set x ((_ | upper) | trim) ["a"])"},
           {"{% macro f(a, b='x') %}{{ a }}{% endmacro %}{{ f(1) }}", "macro f(a, b='x') [a] f(1)"},
           {"{% macro f() %}{{ caller(varargs) }}{% endmacro %}{% macro g() %}{{ kwargs }}{% endmacro %}",
            "macro f() varargs caller [caller(varargs)] macro g() kwargs [kwargs]"},
           {"{% call(n) f(1) %}{{ n }}{% endcall %}", "call(n) f(1) [n]"},
           {"{% call f() %}a{% endcall %}", R"(call() f() ["a"])"}}) {
    const jinja::Tree tree = parsed(source);
    EXPECT_EQ(testing::shown(tree.body), expected) << source;
  }
}

TEST(Task2_6_Parser, WhatDoesNotFitIsRefusedWhenItIsRead) {
  for (const char* source :
       {"{% if 1 %}", "{% for x in y %}{% endif %}", "{% for x %}{% endfor %}", "{% set 1 = 2 %}",
        "{% macro f(a=1, b) %}{% endmacro %}",
        "{% for x in [1] %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}",
        "{% for x in [1] %}{% else %}{% break %}{% endfor %}", "{% call x %}{% endcall %}", "{% set x %}",
        "{% if %}{% endif %}", "{% for x in y recursive %}{% endfor %}", "{% set true = 1 %}"})
    EXPECT_THROW(parsed(source), jinja::Refusal) << source;
}

TEST(Task2_6_Evaluate, OperatorsThatStopEarly) {
  EXPECT_EQ(value_of_jinja("[1 or u.x, 0 and u.x, 'a' if 1 else u.x, 2 < 1 < u.x]"), "[1, 0, 'a', False]");
  EXPECT_EQ(value_of_jinja("['' or 'b', 'a' and 'b', not 1, not '']"), "['b', 'b', False, True]");
  EXPECT_EQ(value_of_jinja("[1 < 3 < 2, 3 > 2 > 1, 1 == 1 != 2, 2 <= 2, 3 <= 2, 2 >= 2, 1 >= 2]"),
            "[False, True, True, True, False, True, False]");
}

TEST(Task2_6_Evaluate, CallsMethodsFunctionsAndAttributes) {
  EXPECT_EQ(value_of_jinja("[d.items() | list, d.k, d['k'], d.get('z', 1), range(2) | list]", variables()),
            "[[('k', 'v')], 'v', 'v', 1, [0, 1]]");
  EXPECT_EQ(value_of_jinja("[l | sort(reverse=true), 'ab'.center(width=4)]", variables()),
            "[[3, 2, 1], ' ab ']");
  for (const char* source :
       {"u.x", "u()", "u[0]", "d.k()", "l.append(1)", "'a'.nothing()", "range(stop_=1)", "l | join(1, 2, 3)"})
    EXPECT_THROW(value_of_jinja(source, variables()), Error) << source;
}

TEST(Task2_6_Evaluate, MarksGoThroughExpressions) {
  for (const auto& [source, expected] :
       std::map<std::string, std::string>{{"'a' ~ c[:5] ~ 'b'", "a⟦<|im_⟧b"},
                                          {"'<|im_end|>' if c == '<|im_end|>'", "<|im_end|>"},
                                          {"c + '!'", "⟦<|im_end|>⟧!"},
                                          {"[c, 'x']", "['⟦<|im_end|>⟧', 'x']"},
                                          {"[c] | tojson", "[⟦\"<|im_end|>\"⟧]"}})
    EXPECT_EQ(marked_value_of_jinja(source, variables()), expected) << source;
}

TEST(Task2_6_Filters, StripReplaceAndSplit) {
  for (const auto& [source, expected] :
       std::map<std::string, std::string>{{"w.strip()", "x\n\ty"},
                                          {"w.lstrip()", "x\n\ty\u00a0"},
                                          {"'xaxx'.rstrip('x')", "xa"},
                                          {"'aXbXc'.replace('X', '-')", "a-b-c"},
                                          {"'aXbXc'.replace('X', '', 1)", "abXc"},
                                          {"'é漢'.replace('', '.')", ".é.漢."},
                                          {"'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"},
                                          {"'a,b,c'.split(',', 1)", "['a', 'b,c']"},
                                          {"'aaa'.rsplit('aa')", "['a', '']"},
                                          {"'aaa'.split('aa')", "['', 'a']"},
                                          {"' a  b c '.split()", "['a', 'b', 'c']"},
                                          {"' a  b c '.split(none, 1)", "['a', 'b c ']"},
                                          {"' a  b c '.rsplit(none, 1)", "[' a  b', 'c']"},
                                          {"w.split()", "['x', 'y']"}})
    EXPECT_EQ(value_of_jinja(source, variables()), expected) << source;
  EXPECT_THROW(value_of_jinja("'a'.split('')"), Error);
}

TEST(Task2_6_Filters, MarksStayWithTheirCharacters) {
  for (const auto& [source, expected] :
       std::map<std::string, std::string>{{"('a<' ~ c ~ '>b').replace('im', 'om')", "a<⟦<|⟧om⟦_end|>⟧>b"},
                                          {"('x' ~ c).split('_')[0]", "x⟦<|im⟧"},
                                          {"(' ' ~ c ~ ' ') | trim", "⟦<|im_end|>⟧"},
                                          {"'|'.join(['a', c])", "a|⟦<|im_end|>⟧"},
                                          {"'A-B' | replace('-', c)", "A⟦<|im_end|>⟧B"}})
    EXPECT_EQ(marked_value_of_jinja(source, variables()), expected) << source;
}

// Some templates have branches for engines that know more than Jinja.
TEST(Task2_6_Statements, WhatIsNotKnownIsRefusedWhereItIsReached) {
  for (const char* source : {"\n{{ 1 | f }}", "\n{{ 1 is f }}", "{% if 0 %}{% endif %}\n{{ 1 | f }}",
                             "\n{% include 'a' %}", "\n{% block a %}{% endblock %}", "\n{% endfor %}"}) {
    int line = 1;
    EXPECT_THROW(jinja::parse_template(source, line), jinja::Refusal) << source;
    EXPECT_EQ(line, 2) << source;
  }
  for (const char* condition :
       {"{% if n %}\n{{ 1 | strange }}{% endif %}", "{% if n %}\n{{ 1 is strange }}{% endif %}",
        "{% if n %}\n{% for x in [1] %}{{ x | strange(1) }}{% endfor %}{% endif %}"}) {
    EXPECT_EQ(render_jinja(condition, {{"n", false}}), "");
    try {
      render_jinja(condition, {{"n", true}});
      ADD_FAILURE() << condition;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr("line 2"), HasSubstr("strange"))) << condition;
    }
  }
}

TEST(Task2_6_Statements, ScopesAndBlocks) {
  EXPECT_EQ(
      render_jinja(
          "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{% endfor %}{{ x }}{% if 1 %}{% set x = 2 %}{% endif %}{{ x }}"),
      "1112");
  EXPECT_EQ(render_jinja("{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{{ loop.length }} {% endfor %}",
                         variables()),
            "132 222 ");
  EXPECT_EQ(render_jinja("{% set x %}a{% endset %}{{ x }}{% filter upper %}b{{ x }}{% endfilter %}"), "aBA");
  EXPECT_EQ(render_marked("{% set x %}a{{ c }}{% endset %}{{ x }}", variables()), "a⟦<|im_end|>⟧");
}

}  // namespace
}  // namespace ladder
