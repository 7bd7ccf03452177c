// Tasks 6.4 and 6.9: requests and their streams with the engine's thread, and with the same engine behind a socket.
#include <atomic>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/engine_client_cases.h"

namespace ladder {
namespace {

INSTANTIATE_TEST_SUITE_P(Task6_4_Thread, EngineClientTest, ::testing::Values(testing::client_in_this_process),
                         [](const auto&) { return "InThisProcess"; });
INSTANTIATE_TEST_SUITE_P(Task6_9_Socket, EngineClientTest, ::testing::Values(testing::client_over_a_socket),
                         [](const auto&) { return "OverASocket"; });

TEST_P(EngineClientTest, ADeadEngineEndsEveryStreamWithItsErrorAndTakesNoMore) {
  std::atomic<bool> broken = false;
  const ClientPointer client = make_client(endless_engine([&](std::string_view, int64_t) {
    if (broken) throw std::runtime_error("the lamp went out");
  }));
  std::vector<RequestStream> streams;
  for (int i = 0; i < 20; ++i) streams.push_back(client->submit(endless_request()));
  streams[0].next();
  broken = true;
  for (RequestStream& stream : streams) {
    const RequestOutput output = output_of(stream);
    EXPECT_EQ(output.completions.at(0).finish_reason, FinishReason::error);
    EXPECT_EQ(output.completions.at(0).error, "the lamp went out");
  }
  broken = false;
  try {
    client->submit(endless_request());
    FAIL() << "accepted";
  } catch (const EngineUnavailable& error) {
    EXPECT_STREQ(error.what(), "the lamp went out");
  }
  EXPECT_EQ(client->stats().error, "the lamp went out");
  EXPECT_EQ(client->stats().num_requests, 0);
  EXPECT_EQ(client->stats().scheduler.num_used_blocks, 0);
  client->abort("unknown");
  client->pause();  // none of these hangs
  client->resume();
  client->stop(1h);
}

}  // namespace
}  // namespace ladder
