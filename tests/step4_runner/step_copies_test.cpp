// Task 4.5.copies: what a step brings to the device and back, counted on the fake device: one copy of all its pieces, and
// no slot written again that is still being read.
#include <gtest/gtest.h>

#include <vector>

#include "step1_layers/core/error.h"
#include "step4_runner/step_io.h"
#include "tests/support/recording_stream.h"

namespace ladder {
namespace {

using ladder::testing::RecordingStream;

class Task4_5_Copies : public ::testing::Test {
 protected:
  // A step that uploads `values` and then reads them on the device into `seen`, when its turn comes.
  std::shared_ptr<DeviceEvent> launch_step(const std::vector<int32_t>& values, std::vector<int32_t>& seen) {
    const auto count = std::ssize(values);
    upload.begin(ctx, StepUpload::bytes_of<int32_t>(count));
    const auto staged = upload.take<int32_t>(count);
    std::copy(values.begin(), values.end(), staged.host);
    upload.send(ctx);
    stream.launch({"read", 0, [from = staged.device, &seen] {
                     seen.assign(from.data<int32_t>(), from.data<int32_t>() + from.numel());
                   }});
    auto done = std::make_shared<DeviceEvent>();
    done->record(ctx);
    upload.keep_until(done);
    return done;
  }

  RecordingStream stream;
  OpContext ctx = stream.context();
  StepUpload upload;
  StepDownload download;
};

TEST_F(Task4_5_Copies, AllPiecesTravelInOneCopyAndLieSideBySide) {
  constexpr int64_t kBytes = StepUpload::kAlignment + 2 * StepUpload::kAlignment + StepUpload::kAlignment;
  upload.begin(ctx, kBytes);
  const auto ids = upload.take<int32_t>(3);
  const auto slots = upload.take<int64_t>(40);  // 320 bytes
  const auto table = upload.take<int32_t>({2, 2});
  for (int i = 0; i < 3; ++i) ids.host[i] = 10 + i;
  for (int i = 0; i < 40; ++i) slots.host[i] = 100 + i;
  for (int i = 0; i < 4; ++i) table.host[i] = 1000 + i;
  EXPECT_EQ(stream.counts().copies_from_host, 0);
  upload.send(ctx);
  EXPECT_EQ(stream.counts().copies_from_host, 1);
  EXPECT_EQ(stream.counts().bytes_from_host, kBytes);
  EXPECT_EQ(stream.counts().waits, 1) << "for the step before, whose memory was too small";
  stream.synchronize();
  EXPECT_EQ(table.device.shape(), (Shape{2, 2}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ids.device.data<int32_t>()[i], 10 + i);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(slots.device.data<int64_t>()[i], 100 + i);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(table.device.data<int32_t>()[i], 1000 + i);
  for (const void* at :
       {static_cast<const void*>(ids.device.raw()), static_cast<const void*>(slots.device.raw()),
        static_cast<const void*>(table.device.raw())})
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 16, 0u) << "a copy's kernel reads sixteen bytes at a time";
}

TEST_F(Task4_5_Copies, ASlotIsWrittenAgainOnlyWhenItsStepIsDone) {
  std::vector<std::vector<int32_t>> sent, seen(9);
  std::vector<std::shared_ptr<DeviceEvent>> done;
  for (int32_t step = 0; step < 9; ++step) {
    sent.push_back({step, 10 * step, 100 * step});
    stream.clear();
    done.push_back(launch_step(sent.back(), seen[static_cast<size_t>(step)]));
    if (step == 0) continue;  // makes the memory
    // One slot is written while two steps are in flight; the fourth step takes the first one's.
    EXPECT_EQ(stream.counts().waits, step < PinnedRing::kNumSlots ? 0 : 1) << "step " << step;
    EXPECT_EQ(stream.counts().copies_from_host, 1);
  }
  stream.synchronize();
  EXPECT_EQ(seen, sent);
}

TEST_F(Task4_5_Copies, StepsThatAreCollectedInTimeNeverWaitForASlot) {
  std::vector<std::vector<int32_t>> seen(12);
  std::vector<std::shared_ptr<DeviceEvent>> done;
  for (int32_t step = 0; step < 12; ++step) {
    if (step >= 2) done[static_cast<size_t>(step) - 2]->wait();
    stream.clear();
    done.push_back(launch_step({step}, seen[static_cast<size_t>(step)]));
    EXPECT_EQ(stream.counts().waits, step == 0 ? 1 : 0) << "step " << step;
  }
}

TEST_F(Task4_5_Copies, AStepLargerThanAnyBeforeLeavesThoseInFlightAlone) {
  std::vector<std::vector<int32_t>> sent, seen(8);
  int64_t count = 100;
  for (int32_t step = 0; step < 8; ++step, count *= 5) {  // up to 31 MB
    sent.emplace_back(static_cast<size_t>(count), step + 1);
    launch_step(sent.back(), seen[static_cast<size_t>(step)]);
  }
  stream.synchronize();
  EXPECT_TRUE(seen == sent);
}

TEST_F(Task4_5_Copies, MoreThanWasAnnouncedIsAnError) {
  upload.begin(ctx, int64_t{1} << 20);
  upload.take<uint8_t>(int64_t{1} << 20);
  EXPECT_THROW(upload.take<int32_t>(1 << 20), Error);
  download.begin(ctx, int64_t{1} << 20);
  const Tensor large = Tensor::zeros({1 << 20}, DType::f32, ctx.device);
  EXPECT_THROW(download.take(ctx, large), Error);
}

TEST_F(Task4_5_Copies, ResultsAreThereWhenTheStepIsDoneAndNotBefore) {
  std::vector<Tensor> results;
  std::vector<std::shared_ptr<DeviceEvent>> done;
  const Tensor token = Tensor::zeros({2}, DType::i32, ctx.device);  // each step samples into it
  for (int32_t step = 0; step < 6; ++step) {
    if (step >= 2) done[static_cast<size_t>(step) - 2]->wait();
    stream.clear();
    download.begin(ctx, StepUpload::bytes_of<int32_t>(2));
    stream.launch({"sample", 0, [token, step] {
                     token.data<int32_t>()[0] = step;
                     token.data<int32_t>()[1] = step + 50;
                   }});
    results.push_back(download.take(ctx, token));
    EXPECT_TRUE(results.back().device().is_cpu());
    EXPECT_FALSE(download.take(ctx, Tensor()).defined());
    done.push_back(std::make_shared<DeviceEvent>());
    done.back()->record(ctx);
    download.keep_until(done.back());
    EXPECT_EQ(stream.counts().copies_to_host, 1);
    EXPECT_EQ(stream.counts().bytes_to_host, 8);
    EXPECT_EQ(stream.counts().waits, 0) << "step " << step;
    if (step < 2) continue;
    // The step before last is done; its tokens lie in a slot of their own.
    EXPECT_EQ(results[static_cast<size_t>(step) - 2].data<int32_t>()[0], step - 2);
    EXPECT_EQ(results[static_cast<size_t>(step) - 2].data<int32_t>()[1], step + 48);
  }
}

TEST_F(Task4_5_Copies, OnlyWhatIsContiguousComesBack) {
  download.begin(ctx, 4096);
  const Tensor table = Tensor::zeros({4, 8}, DType::i32, ctx.device);
  EXPECT_THROW(download.take(ctx, table.narrow(1, 0, 2)), Error);
}

}  // namespace
}  // namespace ladder
