// CUDA's launches and shared variables as C++.
#include "lab/emulated_source.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "lab/lab_error.h"

namespace lab {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string made(const std::string& source) {
  const std::string text = emulated_source(source, "a.cu");
  EXPECT_EQ(std::ranges::count(text, '\n'), std::ranges::count(source, '\n') + 1)
      << "lines stay where they are";
  return text;
}

TEST(Lab_EmulatedSource, ALaunchBecomesACall) {
  EXPECT_THAT(made("x::norm<f<A>(), 3><<<g(1), 64, 0, stream(c)>>>(a, b[1]);"),
              HasSubstr("::ladder_emulator::Launch(\"norm\", g(1), 64, 0, stream(c)).run([&](auto... "
                        "ladder_arguments) { x::norm<f<A>(), 3>(ladder_arguments...); }, a, b[1]);"));
  EXPECT_THAT(made("k<<<1, 2>>>();"), HasSubstr("{ k(ladder_arguments...); });"));
  EXPECT_THAT(made("a << b; // k<<<1, 2>>>()"), Not(HasSubstr("Launch")));
}

TEST(Lab_EmulatedSource, SharedVariablesAreKnownByTheirNames) {
  const std::string text = made("void f() {\n  __shared__ float x[4][N + 1],\n      y;\n  y = 1;\n}\n");
  EXPECT_THAT(
      text, HasSubstr("static ::ladder_emulator::Shared<::ladder_emulator::Same<float>[4][N + 1]> ladder_x; "
                      "auto& x = ladder_x.of_this_block(\"x\");"));
  EXPECT_THAT(text, HasSubstr("Same<float>> ladder_y; auto& y"));
  EXPECT_THAT(made("{ __shared__ Best<a, b> best; }"), HasSubstr("Same<Best < a , b >>> ladder_best;"));
  EXPECT_THAT(made("{ extern __shared__ __align__(16) unsigned char s[]; }"),
              HasSubstr("auto* const s = ::ladder_emulator::dynamic_shared<unsigned char>(\"s\");"));
}

TEST(Lab_EmulatedSource, WhatCannotBeReadIsNamedWithItsLine) {
  const auto message = [](const std::string& source) {
    try {
      emulated_source(source, "a.cu");
    } catch (const LabError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_THAT(message("\nk<<<1, 2>>;"), HasSubstr("a.cu: line 2"));
  EXPECT_THAT(message("\n\n__shared__ float x = 1;"), HasSubstr("a.cu: line 3"));
}

}  // namespace
}  // namespace lab
