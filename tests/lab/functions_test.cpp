#include "lab/functions.h"

#include <gmock/gmock.h>

#include "lab/lab_error.h"

namespace lab {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names(std::string_view source) {
  std::vector<std::string> found;
  for (const Function& function : find_functions(source)) found.push_back(function.name);
  return found;
}

std::vector<std::string> bodies(std::string_view source) {
  std::vector<std::string> found;
  for (const Function& function : find_functions(source))
    found.emplace_back(source.substr(function.open, function.close + 1 - function.open));
  return found;
}

std::string error_of(std::string_view source) {
  try {
    find_functions(source);
  } catch (const LabError& error) {
    return error.what();
  }
  return "";
}

TEST(Lab_Functions, FreeFunctionsMembersAndOperators) {
  EXPECT_THAT(
      names("int a(int x) { return x; }\n"
            "std::vector<std::pair<int, int>> B::c(const std::map<int, int>& m) const { return {}; }\n"
            "bool B::operator()(const B& a, const B& b) const { return a.x < b.x; }\n"
            "B& B::operator=(B&& other) { return *this; }\n"
            "bool operator<(const B& a, const B& b) { return true; }\n"
            "auto d(int x) -> std::optional<int> { return x; }\n"
            "[[nodiscard]] static inline int e() { return 1; }\n"),
      ElementsAre("a", "B::c", "B::operator()", "B::operator=", "operator<", "d", "e"));
}

TEST(Lab_Functions, ConstructorsWithMembersInBracesAndParentheses) {
  const char* source =
      "A::A(int n) : Base<int>{n}, a_{1}, b_(2), c_{{3, 4}} { run(); }\n"
      "A::A() : a_(0) {}\n"
      "A::~A() { stop(); }\n";
  EXPECT_THAT(names(source), ElementsAre("A::A", "A::A", "A::~A"));
  EXPECT_THAT(bodies(source), ElementsAre("{ run(); }", "{}", "{ stop(); }"));
}

TEST(Lab_Functions, BracesInTextCommentsAndRawStringsAreNone) {
  EXPECT_THAT(names("int a() {\n  // }\n  /* } */ char b = '}'; const char* c = \"}\\\"}\";\n"
                    "  auto d = R\"x(} )\" })x\"; int e = 1'000; return b + *c;\n}\nint f() { return 2; }\n"),
              ElementsAre("a", "f"));
}

TEST(Lab_Functions, ScopesAreEnteredValuesAreNot) {
  const char* source =
      "namespace x {\nnamespace {\nint a() { return 1; }\n}\n}\n"
      "struct S {\n public:\n  int b() const { return n; }\n  S(int k) : n{k} {}\n  int n = {3};\n"
      "  struct T { void c() {} };\n};\n"
      "enum class E { one, two };\nstatic const int kTable[] = {1, 2, 3};\n"
      "std::array<int, 2> kOther{1, 2};\nconst std::function<int(int)> kNone{};\n"
      "struct U { int k; } kU{4};\nextern \"C\" {\nint d() { return 5; }\n}\n";
  EXPECT_THAT(names(source), ElementsAre("a", "b", "S", "c", "d"));
}

TEST(Lab_Functions, TemplatesDefaultsAndRequirements) {
  EXPECT_THAT(
      names("template <class T, int N = (3 > 2)>\nrequires(sizeof(T) > 1)\nT a(T x = {}) { return x; }\n"
            "template <class F>\nvoid b(F f, std::vector<int> v = {1, 2}) { f(); }\n"
            "template <> int c<3>(int x) { return x; }\n"
            "A a2 = make();\nA::A(A&&) = default;\n"),
      ElementsAre("a", "b", "c<>"));
}

TEST(Lab_Functions, KernelsAreMarkedAndPreprocessorLinesAreSkipped) {
  const char* source =
      "#define BODY(x) \\\n  { x }\n#if 1\n__global__ void __launch_bounds__(256) a(int* p) { *p = 1; }\n#endif\n"
      "template <int N>\n__device__ __forceinline__ float b(float x) { return x; }\nvoid c() {}\n";
  const auto found = find_functions(source);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].name, "a");
  EXPECT_TRUE(found[0].on_gpu);
  EXPECT_FALSE(found[0].returns_value);
  EXPECT_TRUE(found[1].on_gpu);
  EXPECT_TRUE(found[1].returns_value);
  EXPECT_FALSE(found[2].on_gpu);
}

TEST(Lab_Functions, WhatCannotBeAStubIsNamedWithItsLine) {
  EXPECT_THAT(error_of("int a() { return 1; }\nconstexpr int b() { return 1; }\n"),
              ::testing::StartsWith("line 2: a constexpr"));
  EXPECT_THAT(error_of("auto b() { return 1; }\n"), ::testing::HasSubstr("deduced"));
  EXPECT_THAT(error_of("int b() noexcept { return 1; }\n"), ::testing::HasSubstr("noexcept"));
  EXPECT_THAT(error_of("const auto b = [](int x) { return x; };\n"), ::testing::HasSubstr("lambda"));
}

TEST(Lab_Functions, UnbalancedTextIsNamedWithItsLine) {
  EXPECT_THAT(error_of("int a() {\n  if (x) {\n}\n"),
              ::testing::StartsWith("line 1: a { that is not closed"));
  EXPECT_THAT(error_of("int a() {\n}\n}\n"), ::testing::StartsWith("line 3"));
  EXPECT_THAT(error_of("int a() { (] }"), ::testing::HasSubstr("expected )"));
  EXPECT_THAT(error_of("\nconst char* a = \"open;\n"), ::testing::StartsWith("line 2: a literal"));
  EXPECT_THAT(error_of("/* open"), ::testing::HasSubstr("comment"));
}

}  // namespace
}  // namespace lab
