#include "step7_parallel/workers/told_layers.h"

#include <fcntl.h>
#include <gmock/gmock.h>

#include <condition_variable>
#include <map>

namespace ladder {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

using Slots = std::vector<int64_t>;

struct Heard {
  int rank = 0;
  int64_t layer = 0, step = 0;
  Slots slots;
  bool operator==(const Heard&) const = default;
};

class Listener final : public KvLayerListener {
 public:
  bool wants_layers() const override { return true; }
  void begin_step(const SchedulerOutput&) override {}
  void save_kv_layer(int rank, int64_t layer, int64_t launch, std::span<const int64_t> slots) override {
    const std::lock_guard lock(mutex_);
    heard_.push_back({rank, layer, launch, Slots(slots.begin(), slots.end())});
    changed_.notify_all();
  }
  // When there are so many; what there is, if they do not come.
  std::vector<Heard> wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 30s, [&] { return heard_.size() >= count; });
    return heard_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Heard> heard_;
};

// The end of a worker, which here is this process.
struct WorkersEnd {
  StepRingWriter ring;
  LayersOfWorker layers{ring};

  WorkersEnd(const HeardLayers& heard, int rank)
      : ring(FileDescriptor(::fcntl(heard.descriptors()[static_cast<size_t>(rank)], F_DUPFD_CLOEXEC, 0))) {}

  void begin(int64_t step) {
    SchedulerOutput output;
    output.step = step;
    layers.begin_step(output);
  }
  // As an attention of `rank` does.
  void store(int64_t layer, const Slots& slots) {
    layers.save_kv_layer(7, layer, layers.current_launch(), slots);
  }
};

TEST(ToldLayers, EachLayerIsHeardWithItsStepsSlots) {
  Listener listener;
  HeardLayers heard(listener, 2);
  WorkersEnd first(heard, 0), second(heard, 1);
  first.begin(0);
  first.store(0, {4, 5, -1});
  EXPECT_THAT(listener.wait_for(1), ElementsAre(Heard{0, 0, 0, {4, 5, -1}}));
  first.store(1, {4, 5, -1});
  EXPECT_THAT(listener.wait_for(2).back(), (Heard{0, 1, 0, {4, 5, -1}}));
  second.begin(0);
  second.store(0, {8});
  EXPECT_EQ(listener.wait_for(3).back(), (Heard{1, 0, 0, {8}}));
  first.begin(1);
  first.store(0, {6});
  EXPECT_EQ(listener.wait_for(4).back(), (Heard{0, 0, 1, {6}}));
}

// More than a ring holds, and each slot of it.
TEST(ToldLayers, LongStepsAreHeardToo) {
  Listener listener;
  HeardLayers heard(listener, 1);
  WorkersEnd worker(heard, 0);
  Slots slots(300'000);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i * i);
  worker.begin(3);
  for (int64_t layer = 2; layer < 10; ++layer) worker.store(layer, slots);
  const std::vector<Heard> all = listener.wait_for(8);
  ASSERT_EQ(all.size(), 8u);
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_TRUE(all[i] == (Heard{0, static_cast<int64_t>(i) + 2, 3, slots}));
}

TEST(ToldLayers, OfAStepThatWasCollectedNothingIsHeard) {
  Listener listener;
  HeardLayers heard(listener, 1);
  WorkersEnd worker(heard, 0);
  worker.begin(5);
  worker.store(0, {1, 2});
  EXPECT_EQ(listener.wait_for(1).size(), 1u);
  heard.forget(5);
  worker.store(1, {1, 2});
  worker.begin(6);
  worker.store(0, {3});
  EXPECT_THAT(listener.wait_for(2), ElementsAre(Heard{0, 0, 5, {1, 2}}, Heard{0, 0, 6, {3}}));
  // On a GPU the step is another by then: its number is that of the launch.
  worker.begin(8);
  worker.layers.save_kv_layer(7, 1, 6, Slots{3});
  worker.layers.save_kv_layer(7, 0, 8, Slots{9});
  EXPECT_THAT(listener.wait_for(4), ::testing::Contains(Heard{0, 1, 6, {3}}));
}

TEST(ToldLayers, TheWarmUpIsNoStep) {
  Listener listener;
  HeardLayers heard(listener, 1);
  WorkersEnd worker(heard, 0);
  worker.store(0, {-1, -1});
  worker.begin(0);
  worker.store(0, {2});
  EXPECT_THAT(listener.wait_for(1), ElementsAre(Heard{0, 0, 0, {2}}));
}

TEST(ToldLayers, AWorkerThatNobodyHearsGoesOn) {
  Listener listener;
  auto heard = std::make_unique<HeardLayers>(listener, 1);
  WorkersEnd worker(*heard, 0);
  heard = nullptr;
  worker.begin(0);
  for (int64_t layer = 0; layer < 100; ++layer) EXPECT_NO_THROW(worker.store(layer, Slots(100'000, layer)));
}

}  // namespace
}  // namespace ladder
