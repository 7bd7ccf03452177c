// Tasks 2.6.*: no template hangs, fills the memory or overflows the stack.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step2_model/chat/chat_template.h"
#include "step2_model/chat/jinja/print.h"
#include "tests/step2_model/jinja.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::render_jinja;

constexpr jinja::Limits kFewSteps{.steps = 200'000};
constexpr jinja::Limits kLittleMemory{.memory = 1 << 20, .output = 1 << 18};

std::string refusal_of(const std::string& source, const jinja::Limits& limits) {
  try {
    render_jinja(source, OrderedJson::object(), limits);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string looped(const std::string& body) {
  return "{% for i in range(99999) %}" + body + "{% endfor %}";
}

TEST(Task2_6_Limits, StepsAreCounted) {
  std::string names;
  for (int i = 0; i < 3000; ++i) names += "{% set n" + std::to_string(i) + " = 1 %}";
  for (const std::string& source :
       {looped(looped("")), looped("{{ i }}"), looped("{% set x = 'x' * 99999 %}"),
        looped("{% if 'ab' in 'b' * 99999 %}{% endif %}"), looped("{% set x = range(999) | list %}"),
        looped("{% for a in [1] if a > 1 %}{% endfor %}"), looped(names),
        looped("{% set x = (range(999) | list) == (range(999) | list) %}")})
    EXPECT_THAT(refusal_of(source, kFewSteps), HasSubstr("200000 steps")) << source.substr(0, 60);
}

TEST(Task2_6_Limits, NothingIsMadeThatIsTooLarge) {
  for (
      const char* source :
      {"{{ 'x' * 10 ** 12 }}", "{{ ([0] * 10 ** 9) | length }}", "{{ 'x'.ljust(10 ** 15) }}",
       "{{ 'x'.zfill(10 ** 12) }}", "{{ 'a' | indent(10 ** 12) }}",
       "{{ 'aaaa' | replace('', 'x' * 500000) }}", "{{ (['x' * 999999] * 100) | join }}",
       "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
       "{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = ns.l + ['x' * 9999] %}{% endfor %}"})
    EXPECT_THAT(refusal_of(source, kLittleMemory), HasSubstr("1048576 bytes")) << source;
  EXPECT_THAT(refusal_of("{% for i in range(999) %}{{ 'x' * 999 }}{% endfor %}", kLittleMemory),
              HasSubstr("262144 bytes"));
  EXPECT_THAT(refusal_of("{{ range(10 ** 9) | length }}", {}), HasSubstr("100000 numbers"));
  EXPECT_THAT(refusal_of("{{ '%99999999999d' % 1 }}", kLittleMemory), HasSubstr("1048576"));
  EXPECT_THAT(refusal_of("{{ 2 ** 64 }}", kLittleMemory), HasSubstr("64 bits"));
  EXPECT_THAT(refusal_of("{{ 9223372036854775807 + 1 }}", kLittleMemory), HasSubstr("64 bits"));
}

// Each of these is a step or two of the tree, on a text of a megabyte or a list of 99999 numbers.
TEST(Task2_6_Limits, WorkOnLongTextsAndListsIsCounted) {
  constexpr jinja::Limits limits{.steps = 1'000'000};
  const std::string values =
      "{% set k = ('x' * 1000) * 1000 %}{% set u = ('é' * 1000) * 500 %}{% set d = {k ~ 'a': 1} %}"
      "{% set other = k ~ 'b' %}{% set l = range(99999) | list %}{% set t = (1,) * 99999 %}"
      "{% set ns = namespace(d) %}";
  for (const char* expression : {"k | wordcount",
                                 "k.strip('x')",
                                 "k.removeprefix(k)",
                                 "k | int",
                                 "k | float",
                                 "'%.1s' % k",
                                 "'a'.split(k)",
                                 "'a'.rfind(k)",
                                 "'a' | indent(k)",
                                 "'a' | indent(1000000)",
                                 "[] | tojson(separators=(k, k))",
                                 "[] | tojson(indent=k)",
                                 "d[other]",
                                 "other in d",
                                 "ns[other]",
                                 "namespace(d)",
                                 "u.startswith('a', 1)",
                                 "u.count('a', 9)",
                                 "l | sum",
                                 "l | first",
                                 "{}.get(t)",
                                 "[1] | map(attribute=k) | list"})
    EXPECT_THAT(
        refusal_of(values + "{% for i in range(100) %}{% set y = " + expression + " %}{% endfor %}", limits),
        HasSubstr("1000000 steps"))
        << expression;
  EXPECT_EQ(refusal_of(values + "{% for i in range(100) %}{% set y = k %}{% endfor %}", limits), "");
  EXPECT_EQ(render_jinja("{{ ('a' * 2000000).strip('b' * 2000000 ~ 'a') }}"), "");
  // A tuple of two of itself, 60 times: as a key it would be looked at 2^60 times.
  EXPECT_THAT(refusal_of("{% set ns = namespace(t=(1,)) %}{% for i in range(60) %}"
                         "{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {}.get(ns.t) }}",
                         kFewSteps),
              HasSubstr("200000 steps"));
}

TEST(Task2_6_Limits, WhatIsHeldAndWhatIsBeingMadeIsCounted) {
  EXPECT_THAT(
      refusal_of(
          "{% set k = 'x' * 9999 %}{% for i in range(999) %}{% set n = namespace({k: 1}) %}{% endfor %}",
          kLittleMemory),
      HasSubstr("1048576 bytes"));
  EXPECT_THAT(refusal_of("{{ range(9999) | sort(attribute='a,' * 9999) }}", kLittleMemory),
              HasSubstr("1048576 bytes"));
  std::string names;
  for (int i = 0; i < 25; ++i) names += "{% set n" + std::to_string(i) + " = 1 %}";
  EXPECT_THAT(refusal_of("{% for i in range(9999) %}{% macro m() %}{% endmacro %}" + names + "{% endfor %}",
                         {.memory = 4 << 20}),
              HasSubstr("4194304 bytes"));
  jinja::Budget budget({.memory = 1000});
  {
    jinja::TextBuilder outer(budget), inner(budget);
    outer.append(std::string(600, 'x'));
    EXPECT_THROW(inner.append(std::string(600, 'x')), jinja::Refusal);
  }
  EXPECT_EQ(budget.held(), 0);
  // A text whose marks change at every character takes nine times its bytes.
  jinja::Text marked;
  for (int i = 0; i < 100; ++i)
    marked.append("x", i % 2 == 0 ? jinja::Origin::trusted : jinja::Origin::outside);
  jinja::TextBuilder builder(budget);
  builder.append(marked);
  EXPECT_THROW(builder.append(marked), jinja::Refusal);
}

TEST(Task2_6_Limits, NamesAreShort) {
  EXPECT_THAT(refusal_of("{{ 1 }}\n{{ " + std::string(1001, 'n') + " }}", {}),
              ::testing::AllOf(HasSubstr("line 2"), HasSubstr("1000 bytes")));
  EXPECT_EQ(refusal_of("{{ " + std::string(1000, 'n') + " }}", {}), "");
  // Of a key that is not there, messages show the beginning, which ends where a character does.
  const std::string key = 'x' + std::string(99, 'y') + "é";
  EXPECT_EQ(jinja::Value::undefined(key).undefined_name(), key.substr(0, 100));
  EXPECT_EQ(jinja::Value::undefined(key.substr(1)).undefined_name(), key.substr(1, 99));
}

TEST(Task2_6_Limits, IntegersAtTheirBorders) {
  EXPECT_THAT(refusal_of("{{ 9223372036854775807 | round(-19) }}", {}), HasSubstr("64 bits"));
  EXPECT_EQ(render_jinja("{{ 1250 | round(-2) }} {{ 9223372036854775807 | round(2) }}"),
            "1200 9223372036854775807");
  EXPECT_EQ(
      render_jinja(
          "{% set least = -9223372036854775807 - 1 %}{{ 'a'.zfill(least) }}{{ 'b'.center(least) }}"
          "{{ 'c'.ljust(least) }}{{ 'aa'.replace('a', 'd', least) }}{{ 'a' | replace('a', 'e', least) }}"),
      "abcdde");
}

TEST(Task2_6_Limits, DepthIsBounded) {
  EXPECT_THAT(refusal_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", {}), HasSubstr("400"));
  EXPECT_THAT(
      refusal_of("{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}",
                 {}),
      HasSubstr("100 lists and dicts"));
  for (const auto& [open, close] : {std::pair("(", ")"), {"[", "]"}, {"-", ""}, {"not ", ""}}) {
    std::string source = "{{ ", end;
    for (int i = 0; i < 300; ++i) {
      source += open;
      end += close;
    }
    EXPECT_THAT(refusal_of(source + "1" + end + " }}", {}), HasSubstr("200")) << open;
  }
  std::string ifs;
  for (int i = 0; i < 300; ++i) ifs += "{% if 1 %}";
  EXPECT_THAT(refusal_of(ifs, {}), HasSubstr("200"));
}

// Long chains of namespaces, which hold each other, are freed without recursion.
TEST(Task2_6_Limits, ChainsOfNamespacesAreFreed) {
  EXPECT_EQ(
      render_jinja(
          "{% set ns = namespace(x=0) %}{% for i in range(50000) %}{% set ns.x = namespace(x=ns.x, y=ns) %}{% endfor %}done"),
      "done");
}

// A loop holds its list, whose elements may hold loops; and it remembers what loop.changed saw.
TEST(Task2_6_Limits, LoopsWithinLoopsAreRefused) {
  EXPECT_THAT(refusal_of("{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% for y in ns.l %}"
                         "{% set ns.l = [loop] %}{% endfor %}{% endfor %}",
                         {}),
              HasSubstr("100 lists and dicts"));
  for (const char* value : {"loop", "[loop]", "{'a': (1, loop)}", "[loop.cycle]"})
    EXPECT_THAT(
        refusal_of("{% for x in [1] %}{{ loop.changed(" + std::string(value) + ") }}{% endfor %}", {}),
        HasSubstr("plain values"))
        << value;
}

// The limits that every chat template runs with: the error names file and line.
TEST(Task2_6_Limits, ARequestIsBounded) {
  const ChatMessage user[] = {{"user", "x"}};
  for (const char* source :
       {"\n{% for a in range(9999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}\n{{ 'x' * 9999999 }}{% endfor %}"}) {
    std::string error;
    try {
      ChatTemplate::parse(source, {}, "the-file").render(user);
    } catch (const Error& refused) {
      error = refused.what();
    }
    EXPECT_THAT(error, ::testing::AllOf(HasSubstr("the-file"), HasSubstr("line 2"), HasSubstr("more than")));
  }
}

}  // namespace
}  // namespace ladder
