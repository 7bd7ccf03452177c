#include "lab/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/tree.h"

namespace lab {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> findings(const std::string& text, const std::vector<std::string>& allows = {}) {
  return forbidden_in(text, allows);
}

TEST(LabRules, EveryReferenceRegionPasses) {
  const Tree tree(LAB_SOURCE_DIR);
  int regions = 0;
  for (const Task& task : tree.course().tasks)
    for (const std::string& path : task.regions) {
      ++regions;
      EXPECT_THAT(findings(tree.region(task, path).text, task.allows), IsEmpty())
          << task.id << " in " << path;
    }
  EXPECT_GT(regions, 70);
}

TEST(LabRules, InnocentNamesCommentsAndStringsPass) {
  for (
      const char* text :
      {"int file_index(int thread) { return thread; }  // never calls system(\"rm\") or fork()\n",
       "void f() { throw Error(\"system(1): the environment, #include <x>, asm\"); }\n",
       "/* getenv(\"HOME\"); extern */ int exit_code = 0, system_prompt = 1, forked = 2, asm_like = 3;\n",
       "void Scheduler::abort(int id) { scheduler.abort(id); abort(id); queue->exit(); }\n",
       "void f() { list.erase(std::remove(list.begin(), list.end(), 3), list.end()); table.open(); read(1); }\n",
       "int f(int a, int b) { return a % b > 2 ? a * (b) : (a) * b; }\n",
       "std::function<void(int*)> f = [](int*) {}; int g(const char*) noexcept; auto h = sizeof(int*) * 2;\n",
       "__device__ float f(float x) { return __expf(__ldg(&a) + __reduce_add_sync(m, 1) + __float2half_rn(x)); }\n",
       "#pragma omp parallel for num_threads(n) if (n > 1) reduction(+ : sum)  // not with system()\n",
       "namespace {\nint x;\n}  // namespace\n",
       "[[nodiscard]] int f([[maybe_unused]] int x) { return a[b[0]]; }\n",
       "void f() { const int64_t n = int64_t{1} * x; y = v[::ladder::k]; char c = '\\\\'; }\n"})
    EXPECT_THAT(findings(text), IsEmpty()) << text;
}

struct Cheat {
  const char* text;
  const char* said;
};

class LabRulesCheat : public ::testing::TestWithParam<Cheat> {};

TEST_P(LabRulesCheat, IsRefusedWithItsLine) {
  const std::vector<std::string> said = findings(std::string("int a;\n") + GetParam().text);
  ASSERT_FALSE(said.empty()) << GetParam().text;
  EXPECT_THAT(said[0], HasSubstr("line ")) << GetParam().text;
  EXPECT_THAT(said[0], HasSubstr(GetParam().said)) << GetParam().text;
}

const Cheat kCheats[] = {
    {"#include <unistd.h>\n", "#include"},
    {"  #  include <unistd.h>\n", "include"},
    {"/* x */ #include <unistd.h>\n", "include"},
    {"%:include <unistd.h>\n", "another spelling"},
    {"#define x y\n", "#define"},
    {"#if 0\n", "#if 0"},
    {"#pragma GCC optimize(\"O3\")\n", "#pragma GCC"},
    {"#line 3 \"x\"\n", "#line"},
    {"#pragma omp parallel for num_threads(system(\"ls\"))\n", "line 2: `system`"},
    {"#pragma omp parallel num_threads(({ asm(\"nop\"); 1; }))\n", "assembly"},
    {"#pragma unroll (getenv(\"HOME\") != nullptr)\n", "getenv"},
    {"#pragma GCC unroll (getenv(\"HOME\") != nullptr)\n", "getenv"},
    {"void f() { _Pragma(\"GCC poison x\") }\n", "_Pragma"},
    {"void f() { asm volatile(\"syscall\"); }\n", "asm"},
    {"void f() { __asm__(\"nop\"); }\n", "__asm__"},
    {"extern \"C\" int puts(const char*);\n", "extern"},
    {"void f() { ladder_emulator::grid().count(false); }\n", "the emulator"},
    {"void f() { system(\"ls\"); }\n", "system"},
    {"void f() { std::system(\"ls\"); }\n", "system"},
    {"void f() { ::system(\"ls\"); }\n", "system"},
    {"auto p = &system;\n", "system"},
    {"using std::system;\n", "system"},
    {"void f() { sys\\\ntem(\"ls\"); }\n", "backslash"},
    {"void f() { sys\\ \ntem(\"ls\"); }\n", "backslash"},
    {"// harmless \\\nint b;\n", "backslash"},
    {"void f() { s\\u0079stem(\"ls\"); }\n", "character"},
    {"void f() { std::getenv(\"HOME\"); }\n", "getenv"},
    {"char** e = environ;\n", "environ"},
    {"void f() { std::ofstream(\"x\") << 1; }\n", "ofstream"},
    {"void f() { fopen(\"x\", \"w\"); }\n", "fopen"},
    {"void f() { std::filesystem::remove(\"x\"); }\n", "filesystem"},
    {"void f() { ::open(\"x\", 0); }\n", "open"},
    {"int f() { return ::write(3, \"x\", 1); }\n", "write"},
    {"void f() { std::exit(0); }\n", "exit"},
    {"void f() { _Exit(0); }\n", "_Exit"},
    {"void f() { std::abort(); }\n", "abort"},
    {"void f() { quick_exit(0); }\n", "quick_exit"},
    {"void f() { dlopen(\"x\", 1); }\n", "dlopen"},
    {"void f() { std::thread t(g); }\n", "thread"},
    {"using std::thread;\n", "thread"},
    {"void f() { auto x = std::async(g); }\n", "async"},
    {"void f() { std::jthread t(g); }\n", "jthread"},
    {"using namespace std;\n", "using namespace"},
    {"namespace s = std;\n", "namespace"},
    {"namespace std {\nint x;\n}\n", "namespace"},
    {"void f() { fork(); }\n", "fork"},
    {"int s = socket(1, 2, 3);\n", "socket"},
    {"void f() { testing::UnitTest::GetInstance(); }\n", "testing"},
    {"void f() { GTEST_SKIP(); }\n", "GTEST_SKIP"},
    {"void f() { EXPECT_TRUE(true); }\n", "EXPECT_TRUE"},
    {"int main() { return 0; }\n", "main"},
    {"int* p = reinterpret_cast<int*>(4096);\n", "reinterpret_cast"},
    {"int* p = (int*)4096;\n", "cast to a pointer"},
    {"int* p = (int*)(x + 1);\n", "cast to a pointer"},
    {"int* p = (int *) x;\n", "cast to a pointer"},
    {"int f() { return *(int*)&x; }\n", "cast to a pointer"},
    {"auto p = std::bit_cast<int*>(x);\n", "bit_cast"},
    {"void* operator new(size_t n);\n", "operator new"},
    {"__attribute__((constructor)) void f() {}\n", "__attribute__"},
    {"[[gnu::constructor]] void f() {}\n", "gnu"},
    {"[[using gnu: constructor]] void f() {}\n", "using"},
    {"void f() { __builtin_trap(); }\n", "__builtin_trap"},
    {"void f() { __builtin_longjmp(x, 1); }\n", "__builtin_longjmp"},
    {"void f() { g(R\"(x)\"); }\n", "raw string"},
    {"}  // namespace ladder\nint x;\nnamespace ladder {\n", "without its other half"},
    {"%>\nint x;\n", "another spelling"},
    {"void f() <% %>\n", "another spelling"},
    {"void f() {\n", "without its other half"},
    {"/* and the rest\n", "comment"},
    {"const char* s = \"abc;\n", "literal"},
    {"// <<< task 5.2\n", "marker"},
    {"<<<<<<< mine\n=======\n>>>>>>> theirs\n", "merge conflict"},
    {"int x;\r#include <x>\n", "carriage return"},
};
INSTANTIATE_TEST_SUITE_P(Each, LabRulesCheat, ::testing::ValuesIn(kCheats));

TEST(LabRules, WhatTheTaskAllowsPasses) {
  EXPECT_THAT(findings("void f() { asm(\"nop\"); }\n", {"asm"}), IsEmpty());
  EXPECT_THAT(findings("std::thread t;\n", {"threads"}), IsEmpty());
  EXPECT_THAT(findings("int* p = reinterpret_cast<int*>(q);\n", {"casts"}), IsEmpty());
}

TEST(LabRules, BytesThatAreNoText) {
  EXPECT_THAT(findings(std::string("int a;\n\0", 8))[0], HasSubstr("NUL"));
  EXPECT_THAT(findings("// \xff\xfe\n")[0], HasSubstr("UTF-8"));
  EXPECT_THAT(findings("// \xe2\x82")[0], HasSubstr("UTF-8"));
  EXPECT_THAT(findings("// \xe2\x82\xac\n"), IsEmpty());
  EXPECT_THAT(findings(std::string(300000, ' '))[0], HasSubstr("bytes"));
}

// What ordinary C++ calls that opens no file and starts nothing: streams into strings, std::to_string(double), thrown
// numbers and texts, character classes.
TEST(LabRules, SymbolsOfTheLanguageAreHarmless) {
  Symbols object;
  object.undefined = {"_ZTTNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEE",
                      "_ZTVNSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEEE",
                      "_ZNSolsEi",
                      "_ZNSirsERi",
                      "_ZNSdD2Ev",
                      "_ZTIi",
                      "_ZTIPKc",
                      "vsnprintf",
                      "strtoul",
                      "__isoc23_strtol",
                      "isspace",
                      "isupper",
                      "ldexp",
                      "frexpf",
                      "llrintl",
                      "__truncsfhf2"};
  EXPECT_THAT(compare_symbols(object, {}, {}).forbidden, IsEmpty());
  for (const char* name :
       {"_ZTTSt14basic_ofstreamIcSt11char_traitsIcEE", "__isoc23_fscanf", "_ZTI4Mine", "getc",
        "_ZNSt13basic_filebufIcSt11char_traitsIcEEC1Ev", "usleep", "getenv", "signal"}) {
    object.undefined = {name};
    EXPECT_EQ(compare_symbols(object, {}, {}).forbidden.size(), 1u) << name;
  }
}

TEST(LabRules, SymbolsBeyondTheReferences) {
  Symbols reference, object;
  reference.undefined = {"memcpy", "GOMP_parallel"};
  reference.strong = {"_ZN6ladder1fEv"};
  object = reference;
  object.undefined.insert(
      {"memmove", "tanhf", "_ZSt20__throw_length_errorPKc", "_ZN6ladder1gEv", "read", "__tsan_read8",
       "_ZN15ladder_emulator7barrierEPKv",
       "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE"});
  object.strong.insert({"_ZN6ladder6helperEv", "_ZN6ladder5otherEv", "malloc_hook"});
  const SymbolFindings found = compare_symbols(object, reference, {"_ZN6ladder5otherEv"});
  EXPECT_EQ(found.unusual.size(), 1u);
  ASSERT_EQ(found.forbidden.size(), 4u);
  EXPECT_THAT(found.forbidden[0], HasSubstr("thread"));
  EXPECT_THAT(found.forbidden[1], HasSubstr("`read`"));
  EXPECT_THAT(found.forbidden[2], HasSubstr("other"));
  EXPECT_THAT(found.forbidden[3], HasSubstr("malloc_hook"));
}

}  // namespace
}  // namespace lab
