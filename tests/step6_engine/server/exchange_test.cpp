#include <gtest/gtest.h>

#include "step6_engine/server/http/exchange.h"

namespace ladder {
namespace {

TEST(Task6_6_Exchange, HeadersAreFoundInAnyCase) {
  const HttpRequest request{
      .headers = {{"Content-Type", "a"}, {"content-type", "b"}, {"X-Content-Type", "c"}}};
  EXPECT_EQ(request.header("CONTENT-TYPE"), "a");
  EXPECT_EQ(request.header("content-typ"), "");
  EXPECT_EQ(request.header("x-content-type"), "c");
}

}  // namespace
}  // namespace ladder
