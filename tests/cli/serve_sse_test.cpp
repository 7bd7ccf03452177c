// How the load generator reads a stream: events at every cut, and what a chunk says.
#ifdef LADDER_HAS_SERVER
#include "cli/bench/serve_sse.h"

#include <gtest/gtest.h>

#include <vector>

namespace ladder {
namespace {

std::vector<std::string> events_of(SseReader& reader, std::string_view stream, size_t piece) {
  std::vector<std::string> events;
  for (size_t i = 0; i < stream.size(); i += piece)
    // A copy that dies at once: an event that is a view of an earlier piece would be seen by AddressSanitizer.
    reader.feed(std::string(stream.substr(i, piece)),
                [&](std::string_view data) { events.emplace_back(data); });
  return events;
}

TEST(Cli_ServeSse, EventsAreTheSameAtEveryCut) {
  const std::string stream =
      "data: {\"a\":1}\n\n"
      ": a ping\n\n"
      "event: message\r\ndata: {\"b\":2}\r\nid: 7\r\n\r\n"
      "data:no blank\n\n"
      "data: two\ndata: lines\ndata: and three\n\n"
      "data: \n\n"
      "data: [DONE]\n\n";
  const std::vector<std::string> expected = {"{\"a\":1}", "{\"b\":2}", "no blank", "two\nlines\nand three",
                                             "",          "[DONE]"};
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    SseReader reader;
    EXPECT_EQ(events_of(reader, stream, piece), expected) << "pieces of " << piece;
    EXPECT_TRUE(reader.between_events());
  }
}

TEST(Cli_ServeSse, AnEventIsNotOverBeforeItsEmptyLine) {
  for (const char* stream : {"data: x", "data: x\n", "data: x\n\ndata: y\n", "da"}) {
    SseReader reader;
    events_of(reader, stream, 100);
    EXPECT_FALSE(reader.between_events()) << stream;
    reader.reset();
    EXPECT_TRUE(reader.between_events());
    EXPECT_EQ(events_of(reader, "data: z\n\n", 3), std::vector<std::string>{"z"});
  }
}

TEST(Cli_ServeSse, AnEventWithoutEndIsRefused) {
  SseReader reader;
  const std::string piece(1 << 20, 'x');
  EXPECT_THROW(for (int i = 0; i < 20; ++i) reader.feed(piece, [](std::string_view) {}), Error);
}

TEST(Cli_ServeSse, ChunkSaysWhatItBrings) {
  const ChunkNews text = read_chunk(
      R"({"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":" a","finish_reason":null}]})");
  EXPECT_TRUE(text.token);
  EXPECT_FALSE(text.done || text.error || text.usage);
  EXPECT_EQ(text.finish_reason, "");

  const ChunkNews last =
      read_chunk(R"({"choices": [ {"index": 0, "text": "", "finish_reason" : "length"} ], "usage": null})");
  EXPECT_TRUE(last.token) << "a token may have no text";
  EXPECT_EQ(last.finish_reason, "length");
  EXPECT_FALSE(last.usage);

  const ChunkNews usage =
      read_chunk(R"({"choices":[],"usage":{"prompt_tokens":12,"total_tokens":46,"completion_tokens":34,)"
                 R"("prompt_tokens_details":{"cached_tokens":5}}})");
  EXPECT_FALSE(usage.token);
  ASSERT_TRUE(usage.usage);
  EXPECT_EQ(usage.prompt_tokens, 12);
  EXPECT_EQ(usage.completion_tokens, 34);
  EXPECT_EQ(usage.cached_tokens, 5);

  EXPECT_TRUE(read_chunk("[DONE]").done);
  EXPECT_TRUE(read_chunk(R"({"error":{"message":"no memory"}})").error);
}

TEST(Cli_ServeSse, FirstDeltaOfAChatIsNoTokenUnlessItHasText) {
  EXPECT_FALSE(read_chunk(R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]})").token);
  EXPECT_FALSE(read_chunk(R"({"choices":[{"index":0,"delta":{"role":"assistant"}}]})").token);
  EXPECT_FALSE(read_chunk(R"({"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]})").token);
  EXPECT_TRUE(read_chunk(R"({"choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]})").token);
  EXPECT_TRUE(read_chunk(R"({"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}]})").token);
}

// A model may write anything, also what looks like our keys.
TEST(Cli_ServeSse, TextIsNeverTakenForAField) {
  const ChunkNews news = read_chunk(
      R"({"choices":[{"text":"\"usage\":{\"prompt_tokens\":9} \"finish_reason\":\"stop\" [DONE] \"choices\":[]",)"
      R"("finish_reason":null}]})");
  EXPECT_TRUE(news.token);
  EXPECT_FALSE(news.usage || news.done || news.error);
  EXPECT_EQ(news.finish_reason, "");
  const ChunkNews names = read_chunk(R"({"choices":[{"text":"usage","finish_reason":null}],"usage":null})");
  EXPECT_FALSE(names.usage);
}

}  // namespace
}  // namespace ladder
#endif
