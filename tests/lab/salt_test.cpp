#include "lab/salt.h"

#include <gtest/gtest.h>

#include "lab/lab_error.h"

namespace lab {
namespace {

TEST(Salt, IsHmacSha256) {  // RFC 4231, test case 2
  EXPECT_EQ(to_hex(derive("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(derive_number("Jefe", "what do ya want for nothing?"), 0x5bdcc146bf60754eull);
}

TEST(Salt, SeparatesPurposes) {
  EXPECT_NE(derive("s", "key/blocks"), derive("s", "key/scheduler"));
}

TEST(Salt, HexadecimalDigitsBothWays) {
  EXPECT_EQ(from_hex("00fF10"), std::string("\x00\xff\x10", 3));
  EXPECT_EQ(to_hex(from_hex("00ff10")), "00ff10");
  EXPECT_THROW(from_hex("0"), LabError);
  EXPECT_THROW(from_hex("0g"), LabError);
}

}  // namespace
}  // namespace lab
