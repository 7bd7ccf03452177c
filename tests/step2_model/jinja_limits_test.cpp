// Tasks 2.6.*: no template hangs, fills the memory or overflows the stack.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step2_model/chat/chat_template.h"
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
