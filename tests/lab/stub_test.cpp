#include "lab/stub.h"

#include <gtest/gtest.h>

#include "lab/lab_error.h"
#include "lab/region.h"
#include "lab/sha256.h"

namespace lab {
namespace {

TEST(Lab_Stub, BodiesThrowAndTheRestStays) {
  EXPECT_EQ(
      make_stub(
          "// Says why.\nconstexpr int kSize = 3;\nstruct S {\n  int n = 0;\n  int get() const { return n; }\n};\n\n"
          "void run(int count) {\n  auto f = [] { return 1; };\n  f();\n}\n",
          "5.2", {}),
      "// Says why.\nconstexpr int kSize = 3;\nstruct S {\n  int n = 0;\n  int get() const {\n"
      "    throw ladder::TaskNotImplemented(\"5.2\");\n  }\n};\n\n"
      "void run(int count) {\n  throw ladder::TaskNotImplemented(\"5.2\");\n}\n");
}

TEST(Lab_Stub, KernelsDoNothing) {
  EXPECT_EQ(make_stub("__global__ void a(int* p) {\n  *p = 1;\n}\n__device__ float b() {\n  return 1;\n}\n",
                      "1.3.cuda", {}),
            "__global__ void a(int* p) {}\n__device__ float b() {\n  return {};\n}\n");
}

TEST(Lab_Stub, ARungIsLeftOutOfTheChoice) {
  const std::vector<Rung> rungs = {{"matmul", {"avx2", "avx512"}}};
  const std::string stub = make_stub("int a() {\n  return 1;\n}\n", "1.4.simd", rungs);
  EXPECT_NE(stub.find("LADDER_UNWRITTEN(\"matmul\", \"avx2\")\n"), std::string::npos);
  EXPECT_NE(stub.find("LADDER_UNWRITTEN(\"matmul\", \"avx512\")\n"), std::string::npos);
  EXPECT_EQ(make_stub(stub, "1.4.simd", rungs), stub);
  EXPECT_TRUE(is_stub(stub, "1.4.simd", rungs));
  EXPECT_TRUE(is_unfinished("int a() {\n  return 2;\n}\nLADDER_UNWRITTEN(\"matmul\", \"avx2\")\n"));
}

TEST(Lab_Stub, OneWrittenFunctionMakesItNoStub) {
  const std::string stub = make_stub("int a() {\n  return 1;\n}\nint b() {\n  return 2;\n}\n", "5.2", {});
  EXPECT_TRUE(is_stub(stub, "5.2", {}));
  const std::string begun = "int a() {\n  return 1;\n}\n" + stub.substr(stub.find("int b"));
  EXPECT_FALSE(is_stub(begun, "5.2", {}));
  EXPECT_TRUE(is_unfinished(begun));
  EXPECT_FALSE(is_unfinished("int a() {\n  return 1;  // no TaskNotImplemented\n}\n"));
  EXPECT_FALSE(is_stub("int a() {{ not C++", "5.2", {}));
}

TEST(Lab_Stub, ARegionWithoutAFunctionIsRefused) {
  EXPECT_THROW(make_stub("constexpr int kSize = 3;\n", "5.2", {}), LabError);
}

TEST(Lab_Stub, TracedFunctionsSayThatTheyRan) {
  EXPECT_EQ(make_traced("int A::b() {\n  return 1;\n}\n", "5.2"),
            "int A::b() { LADDER_LAB_RAN(\"5.2\", \"A::b\")\n  return 1;\n}\n");
}

std::string error_of(const std::string& file) {
  try {
    find_regions(file);
  } catch (const LabError& error) {
    return error.what();
  }
  return "";
}

TEST(Lab_Region, TextAndLinesOfEach) {
  const auto regions = find_regions(
      "a\n// >>> task 1.7.simd: x\nb\n\nc\n// <<< task 1.7.simd\nd\n  // >>> task 5.2: y\n  // <<< task 5.2\n");
  ASSERT_EQ(regions.size(), 2u);
  EXPECT_EQ(regions.at("1.7.simd").text, "b\n\nc\n");
  EXPECT_EQ(regions.at("1.7.simd").first_line, 3);
  EXPECT_EQ(regions.at("1.7.simd").last_line, 5);
  EXPECT_EQ(regions.at("1.7.simd").num_lines(), 2);
  EXPECT_EQ(regions.at("5.2").text, "");
}

TEST(Lab_Region, WhatIsWrongIsNamedWithItsLine) {
  EXPECT_EQ(error_of("// >>> task 5.2: a\n"),
            "line 1: the region of task 5.2 has no end: `// <<< task 5.2` is missing");
  EXPECT_EQ(error_of("\n// <<< task 5.2\n"),
            "line 2: the region of task 5.2 ends here, but its beginning `// >>> task 5.2: ...` is missing");
  EXPECT_EQ(error_of("// >>> task 5.2: a\n// <<< task 5.2\n// >>> task 5.2: a\n// <<< task 5.2\n"),
            "line 3: the region of task 5.2 begins a second time");
  EXPECT_EQ(error_of("// >>> task 5.2: a\n// >>> task 5.3: a\n"),
            "line 2: the region of task 5.3 begins inside that of task 5.2");
  EXPECT_EQ(error_of("a\n<<<<<<< HEAD\nb\n"), "line 2: a merge conflict that is not resolved");
}

TEST(Lab_Region, ACopyNamesTheFileThatTheStudentEdits) {
  const std::string file = "a\n// >>> task 5.2: x\nmine\n// <<< task 5.2\nb\n";
  EXPECT_EQ(
      copy_with_regions(file, {{"5.2", {"one\ntwo\n", "f.cpp (reference)"}}}, "f.cpp"),
      "#line 1 \"f.cpp\"\na\n// >>> task 5.2: x\n#line 1 \"f.cpp (reference)\"\none\ntwo\n#line 4 \"f.cpp\"\n// <<< task 5.2\nb\n");
  EXPECT_EQ(with_regions(file, {{"5.2", {"one\n", ""}}}), "a\n// >>> task 5.2: x\none\n// <<< task 5.2\nb\n");
}

TEST(Lab_Sha256, KnownValues) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

}  // namespace
}  // namespace lab
