// Task 6.4: the buffer between the engine's thread and a reader, on one thread.
#include "step6_engine/request_stream.h"

#include <gtest/gtest.h>

namespace ladder {
namespace {

using namespace std::chrono_literals;

CompletionUpdate update_of(int64_t completion, std::vector<int32_t> token_ids, std::string text) {
  CompletionUpdate update;
  update.completion = completion;
  update.logprobs.resize(token_ids.size());
  update.token_ids = std::move(token_ids);
  update.text = std::move(text);
  return update;
}

TEST(Task6_4_StreamBuffer, MergesWhatWasNotTakenByCompletion) {
  StreamBuffer buffer({});
  buffer.push(update_of(0, {1, 2}, "ab"));
  buffer.push(update_of(1, {7}, "x"));
  CompletionUpdate last = update_of(0, {3}, "c");
  last.finish_reason = FinishReason::stop;
  last.stop_reason = 3;
  buffer.push(std::move(last));
  const std::optional<StreamUpdate> taken = buffer.take({});
  ASSERT_TRUE(taken.has_value());
  ASSERT_EQ(taken->updates.size(), 2u);
  EXPECT_EQ(taken->updates[0].token_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(taken->updates[0].text, "abc");
  EXPECT_EQ(taken->updates[0].logprobs.size(), 3u);
  EXPECT_EQ(taken->updates[0].finish_reason, FinishReason::stop);
  EXPECT_EQ(taken->updates[0].stop_reason, StopReason(3));
  EXPECT_EQ(taken->updates[1].token_ids, (std::vector<int32_t>{7}));
  EXPECT_EQ(taken->updates[1].finish_reason, FinishReason::none);
  EXPECT_FALSE(taken->output.has_value());
}

TEST(Task6_4_StreamBuffer, SaysOnceThatThereIsSomethingAfterNothing) {
  int num_calls = 0;
  StreamBuffer buffer([&num_calls] { ++num_calls; });
  buffer.push(update_of(0, {1}, "a"));
  buffer.push(update_of(0, {2}, "b"));
  EXPECT_EQ(num_calls, 1) << "it was not empty any more";
  buffer.take({});
  buffer.push(update_of(0, {3}, "c"));
  EXPECT_EQ(num_calls, 2);
  buffer.take({});
  buffer.end({});
  EXPECT_EQ(num_calls, 3);
}

TEST(Task6_4_StreamBuffer, TheEndComesWithWhatIsLeftAndNothingAfterIt) {
  StreamBuffer buffer({});
  EXPECT_FALSE(buffer.take(StreamBuffer::Clock::now()).has_value()) << "nothing came in time";
  buffer.push(update_of(0, {1}, "a"));
  RequestOutput output;
  output.request_id = "r";
  buffer.end(std::move(output));
  EXPECT_FALSE(buffer.end_taken());
  const std::optional<StreamUpdate> taken = buffer.take(StreamBuffer::Clock::now() + 1min);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->updates.size(), 1u);
  ASSERT_TRUE(taken->output.has_value());
  EXPECT_EQ(taken->output->request_id, "r");
  EXPECT_TRUE(buffer.end_taken());
  EXPECT_FALSE(buffer.take({}).has_value()) << "does not wait for what will never come";
}

}  // namespace
}  // namespace ladder
