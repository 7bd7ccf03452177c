#pragma once
// GoogleTest's messages as a student reads them: what was seen and what was expected, in this order.
#include <string>

namespace lab {

// "FILE:LINE\nExpected equality of these values:\n  seen\n    Which is: 3\n  4\nrest" becomes
// "FILE:LINE\n  seen      3   (seen)\n  expected  4\nrest"; an exception becomes "threw: ...";
// other messages stay as they are. The tests write
// EXPECT_EQ(seen, expected). Paths below `root` become relative, and a message of more than `max_lines` is cut.
std::string failure_text(const std::string& message, const std::string& root, int max_lines = 16);

}  // namespace lab
