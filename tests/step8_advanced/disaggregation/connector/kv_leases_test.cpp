// Whose blocks are kept, and until when.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "step8_advanced/disaggregation/connector/kv_leases.h"
#include "tests/step8_advanced/disaggregation/layout/played_engine.h"

namespace ladder {
namespace {

using testing::error_of;
using Clock = KvLeases::Clock;

constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::hours kLong{1};

Sequence sequence_of(SequenceId id, std::vector<int32_t> prompt) {
  Sequence sequence;
  sequence.id = id;
  sequence.num_prompt_tokens = std::ssize(prompt);
  sequence.prompt_token_ids = std::make_shared<const std::vector<int32_t>>(std::move(prompt));
  sequence.block_table = {static_cast<int32_t>(id), static_cast<int32_t>(id) + 1};
  return sequence;
}

// With the thread that gives up what has lapsed.
struct Swept {
  explicit Swept(std::chrono::milliseconds length, std::chrono::milliseconds start_patience = kLong)
      : leases(length, start_patience, 4) {
    leases.on_release([this] {
      ++num_wakes;
      num_wakes.notify_all();
    });
    sweeper = std::thread([this] { leases.sweep_until_closed(); });
  }
  ~Swept() {
    leases.close();
    sweeper.join();
  }

  KvLeases leases;
  std::atomic<int> num_wakes = 0;
  std::thread sweeper;
};

KvLeases::Ready ready(KvLeases& leases, const std::string& id, const std::vector<int32_t>& prompt,
                      Clock::time_point deadline = Clock::now()) {
  return leases.wait_ready(id, 0, 0, prompt_checksum(prompt, std::ssize(prompt)), std::ssize(prompt),
                           deadline);
}

SchedulerOutput step_of(const Sequence& sequence, int64_t num_blocks, int64_t num_computed) {
  SchedulerOutput step;
  NewSequence& added = step.new_sequences.emplace_back();
  added.id = sequence.id;
  added.block_table.assign(sequence.block_table.begin(), sequence.block_table.begin() + num_blocks);
  added.num_computed_tokens = num_computed;
  return step;
}

// A prompt of 11 tokens in blocks 5, 2 and 7, of which a cache has the first; two steps are under way, of two ranks.
TEST(KvLeasesOfRequests, KnowTheLayersOfStepsThatRun) {
  KvLeases leases(kLong, kLong, 4);
  Sequence sequence = sequence_of(5, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  sequence.block_table = {5, 2, 7};
  leases.expect(sequence, "a");
  EXPECT_NE(error_of([&] { ready(leases, "a", *sequence.prompt_token_ids); }), "no error");
  leases.begin_step(step_of(sequence, 2, 4));

  uint64_t lease = 0;
  std::vector<int32_t> table;
  const auto tokens_in = [&](int rank, int64_t layer) {
    try {
      const KvLeases::Ready found = leases.wait_ready(
          "a", lease, 0, prompt_checksum(*sequence.prompt_token_ids, 11), 11, Clock::now(), {rank, layer, 1});
      lease = found.lease;
      return found.num_tokens;
    } catch (const Error&) {
      return int64_t{0};
    }
  };
  EXPECT_EQ(tokens_in(0, 0), 0);
  leases.save_layer(0, 0, std::vector<int64_t>{-1, 3, 8, 9, 10, 11});  // behind another's rows
  EXPECT_EQ(tokens_in(0, 0), 8);
  EXPECT_EQ(tokens_in(0, 1), 0);
  EXPECT_EQ(tokens_in(1, 0), 0);
  leases.save_layer(0, 1, std::vector<int64_t>{8, 9, 10, 11});
  KvLayers layers{0, 0, 4};
  { const KvLeases::Pin pin = leases.pin(lease, 8, Clock::now(), table, layers); }
  EXPECT_EQ(layers.count, 2) << "of four there are so many";
  EXPECT_EQ(table, (std::vector<int32_t>{5, 2}));

  // The next step begins before this one is told: rank 0 has gone on, rank 1 has not.
  SchedulerOutput next;
  next.continued.push_back({5, {7}, 8});
  leases.begin_step(next);
  leases.save_layer(0, 0, std::vector<int64_t>{28, 29, 30});
  EXPECT_EQ(tokens_in(0, 0), 11);
  EXPECT_EQ(tokens_in(0, 1), 8);
  leases.save_layer(1, 0, std::vector<int64_t>{28, 29, 30});
  EXPECT_EQ(tokens_in(1, 0), 0) << "tokens before these are not there";
  leases.computed(sequence, "a", 8);
  EXPECT_EQ(tokens_in(1, 3), 8);
  EXPECT_EQ(tokens_in(0, 0), 8) << "first what is there in all layers";

  // Its blocks are taken away, and are another's.
  leases.computed(sequence, "a", 0);
  leases.save_layer(0, 0, std::vector<int64_t>{20, 21, 22, 23, 8, 9, 10, 11});
  EXPECT_EQ(tokens_in(0, 0), 0);
  sequence.block_table = {1, 0, 3};
  leases.begin_step(step_of(sequence, 3, 0));
  leases.save_layer(0, 0, std::vector<int64_t>{4, 5, 6, 7, 0});
  EXPECT_EQ(tokens_in(0, 0), 5);
  leases.retract(5);
  leases.begin_step(step_of(sequence, 3, 0));
  EXPECT_EQ(leases.num_kept_blocks(), 0) << "nobody expects it any more";
}

// All blocks are kept for others, who do not come while a reader has the room that they need.
TEST(KvLeasesOfRequests, ThatCannotBeginAreNotWaitedFor) {
  using std::chrono::milliseconds;
  Swept swept(kLong, milliseconds(20));
  KvLeases& leases = swept.leases;
  const Sequence sequence = sequence_of(5, {1, 2, 3, 4, 5});
  const auto error = [&](const char* id, Clock::time_point deadline) {
    return error_of([&] { ready(leases, id, *sequence.prompt_token_ids, deadline); });
  };
  leases.expect(sequence, "a");
  // It asked once, and may have got what it asked for: its step can be long.
  EXPECT_EQ(error("a", Clock::now() + milliseconds(60)),
            "request 'a' is not here: its lease is over, or it has not come in time");
  const auto waits = [](auto& one) { return one.wait_for(milliseconds(1)) != std::future_status::ready; };
  auto early = std::async(std::launch::async, [&] { return error("a", Clock::now() + milliseconds(100)); });
  while (waits(early)) leases.expect(sequence, "a");
  EXPECT_EQ(early.get(), "request 'a' is not here: its lease is over, or it has not come in time")
      << "nothing is kept for others: its turn comes";

  leases.computed(sequence_of(7, {1, 2, 3}), "kept", 3);
  ASSERT_TRUE(leases.end(7).has_value());
  auto reader = std::async(std::launch::async, [&] { return error("a", Clock::now() + kLong); });
  auto behind = std::async(std::launch::async, [&] { return error("b", Clock::now() + kLong); });
  const auto deadline = Clock::now() + kPatience;
  int num_wakes = 0;
  while ((waits(reader) || waits(behind)) && Clock::now() < deadline) {
    if (swept.num_wakes == num_wakes) continue;
    num_wakes = swept.num_wakes;
    leases.expect(sequence, "a");  // as an engine at rest does that has been woken
  }
  leases.close();  // whoever waits still is told of that
  EXPECT_EQ(reader.get(), "request 'a' cannot begin: blocks are kept for readers that do not come");
  EXPECT_EQ(behind.get(), "request 'b' cannot begin: blocks are kept for readers that do not come");
}

TEST(KvLeasesOfRequests, EndWithDone) {
  Swept swept(kLong);
  const Sequence sequence = sequence_of(5, {1, 2, 3, 4, 5});
  swept.leases.computed(sequence, "a", 5);
  const uint64_t lease = ready(swept.leases, "a", *sequence.prompt_token_ids).lease;
  EXPECT_EQ(swept.leases.num_held_blocks(), 0);
  EXPECT_EQ(swept.leases.num_kept_blocks(), 2);
  ASSERT_TRUE(swept.leases.end(5).has_value());
  EXPECT_EQ(swept.leases.num_held_blocks(), 2);
  EXPECT_FALSE(swept.leases.done("a", lease + 1));  // another one's
  EXPECT_FALSE(swept.leases.done("b", lease));
  EXPECT_TRUE(swept.leases.done("a", lease));
  EXPECT_FALSE(swept.leases.done("a", lease));  // a message may come twice
  swept.num_wakes.wait(0);
  EXPECT_EQ(swept.leases.take_released(), std::vector<SequenceId>{5});
  EXPECT_TRUE(swept.leases.take_released().empty());
  EXPECT_EQ(swept.leases.num_kept_blocks(), 0);
  EXPECT_EQ(swept.leases.num_lapsed(), 0);
}

// Told to both engines at once: the one that was to read has been faster.
TEST(KvLeasesOfRequests, WhoseReaderIsDoneBeforeTheyComeAreNotKept) {
  KvLeases leases(kLong, kLong, 4);
  EXPECT_FALSE(leases.done("a", 0));
  const Sequence sequence = sequence_of(5, {1, 2, 3, 4, 5});
  auto waits = std::async(std::launch::async, [&] {
    return error_of([&] { ready(leases, "a", *sequence.prompt_token_ids, Clock::now() + kLong); });
  });
  const bool is_told = waits.wait_for(kPatience) == std::future_status::ready;
  EXPECT_TRUE(is_told) << "it is waited for";
  if (!is_told) leases.close();
  EXPECT_NE(waits.get(), "no error");
  leases.expect(sequence, "a");
  leases.begin_step(step_of(sequence, 2, 0));
  leases.computed(sequence, "a", 3);
  leases.computed(sequence, "a", 5);
  EXPECT_EQ(leases.num_kept_blocks(), 0);
  EXPECT_FALSE(leases.end(5).has_value());

  const Sequence next = sequence_of(7, {1, 2, 3, 4, 5});
  leases.computed(next, "a", 5);
  EXPECT_TRUE(leases.end(7).has_value()) << "the next one of this id is another request";
  EXPECT_FALSE(leases.done("b", 8)) << "something was read of it: it was here, and is not what comes";
  const Sequence other = sequence_of(9, {1, 2, 3, 4, 5});
  leases.computed(other, "b", 5);
  EXPECT_TRUE(leases.end(9).has_value());
}

TEST(KvLeasesOfRequests, AreKeptWhereTheirReaderWasDoneLongBefore) {
  KvLeases leases(std::chrono::milliseconds(1), kLong, 4);
  leases.done("a", 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  leases.computed(sequence_of(5, {1, 2, 3, 4, 5}), "a", 5);
  EXPECT_TRUE(leases.end(5).has_value());
}

TEST(KvLeasesOfRequests, EndByThemselves) {
  Swept swept(std::chrono::milliseconds(10));
  for (const SequenceId id : {1, 4, 7}) {
    swept.leases.computed(sequence_of(id, {1, 2, 3}), std::to_string(id), 3);
    ASSERT_TRUE(swept.leases.end(id).has_value());
  }
  std::vector<SequenceId> released;
  for (int seen = 0; std::ssize(released) < 3; seen = swept.num_wakes) {
    swept.num_wakes.wait(seen);
    for (const SequenceId id : swept.leases.take_released()) released.push_back(id);
  }
  std::sort(released.begin(), released.end());
  EXPECT_EQ(released, (std::vector<SequenceId>{1, 4, 7}));
  EXPECT_EQ(swept.leases.num_lapsed(), 3);
  EXPECT_NE(error_of([&] { ready(swept.leases, "1", {1, 2, 3}); }).find("is not here"), std::string::npos);
}

// Two thirds of a length from now on, and never less than before.
TEST(KvLeasesOfRequests, AreExtended) {
  Swept swept(std::chrono::milliseconds(900));
  const auto begin = Clock::now();
  for (const SequenceId id : {1, 4}) {
    swept.leases.computed(sequence_of(id, {1, 2, 3}), std::to_string(id), 3);
    ASSERT_TRUE(swept.leases.end(id).has_value());
  }
  auto before = begin;               // the last time that it was extended, or a moment earlier
  Clock::duration longest_pause{0};  // of this thread, on a busy machine
  // One of them is wanted until the other has lapsed, and then for a while.
  while (swept.num_wakes == 0) {
    ASSERT_LT(Clock::now() - begin, kPatience);
    longest_pause = std::max(longest_pause, Clock::now() - std::exchange(before, Clock::now()));
    swept.leases.extend("1");
    swept.leases.extend("nobody's");
    std::this_thread::yield();
  }
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(800));
  const std::vector<SequenceId> released = swept.leases.take_released();
  longest_pause = std::max(longest_pause, Clock::now() - before);
  if (longest_pause > std::chrono::milliseconds(300)) GTEST_SKIP() << "the machine is too busy";
  EXPECT_EQ(released, std::vector<SequenceId>{4});
  swept.num_wakes.wait(1);
  EXPECT_GE(Clock::now() - before, std::chrono::milliseconds(500));
  EXPECT_EQ(swept.leases.take_released(), std::vector<SequenceId>{1});
}

TEST(KvLeasesOfRequests, OfEqualIdsAreDifferent) {
  KvLeases leases(kLong, kLong, 4);
  const Sequence first = sequence_of(1, {1, 2, 3}), second = sequence_of(2, {1, 2, 3});
  leases.computed(first, "a", 3);
  leases.computed(second, "a", 3);  // the id is taken
  EXPECT_FALSE(leases.end(2).has_value());
  const uint64_t before = ready(leases, "a", {1, 2, 3}).lease;
  leases.retract(1);
  leases.computed(second, "a", 3);
  const uint64_t after = ready(leases, "a", {1, 2, 3}).lease;
  EXPECT_NE(before, after);
  EXPECT_FALSE(leases.done("a", before));
  std::vector<int32_t> table;
  EXPECT_NE(error_of([&] { leases.pin(before, 1, Clock::now() + kPatience, table); }).find("over"),
            std::string::npos);
  EXPECT_TRUE(leases.done("a", after));
}

TEST(KvLeasesOfRequests, NameThePromptThatTheyAreOf) {
  KvLeases leases(kLong, kLong, 4);
  leases.computed(sequence_of(1, {1, 2, 3}), "a", 3);
  EXPECT_NE(error_of([&] { ready(leases, "a", {1, 2, 4}); }).find("another prompt"), std::string::npos);
  EXPECT_NE(error_of([&] { ready(leases, "a", {1, 2, 3, 4}); }).find("another prompt"), std::string::npos);
  EXPECT_EQ(error_of([&] { ready(leases, "a", {1, 2}); }), "no error");
}

// Who reads what a preemption takes away is waited for, and reads on when it is there again.
TEST(KvLeasesOfRequests, WaitForTheLastCopyFromBlocksThatGo) {
  KvLeases leases(kLong, kLong, 4);
  Sequence sequence = sequence_of(1, {1, 2, 3, 4, 5, 6});
  leases.computed(sequence, "a", 6);
  const uint64_t lease = ready(leases, "a", *sequence.prompt_token_ids).lease;
  std::vector<int32_t> table;
  std::atomic<bool> unpinned = false;
  std::optional<KvLeases::Pin> pin(leases.pin(lease, 6, Clock::now() + kPatience, table));
  EXPECT_EQ(table, sequence.block_table);
  std::thread preempting([&] {
    leases.computed(sequence, "a", 0);
    EXPECT_TRUE(unpinned);
  });
  // It has begun when nothing is to be read any more.
  const auto deadline = Clock::now() + kPatience;
  while (error_of([&] { ready(leases, "a", *sequence.prompt_token_ids); }) == "no error")
    ASSERT_LT(Clock::now(), deadline);
  unpinned = true;
  pin.reset();
  preempting.join();
  EXPECT_NE(error_of([&] { leases.pin(lease, 6, Clock::now(), table); }).find("in time"), std::string::npos);
  sequence.block_table = {8, 9};
  std::thread computing([&] { leases.computed(sequence, "a", 6); });
  pin.emplace(leases.pin(lease, 6, Clock::now() + kPatience, table));
  EXPECT_EQ(table, (std::vector<int32_t>{8, 9}));
  pin.reset();
  computing.join();
}

TEST(KvLeasesOfRequests, ThatAreReadEndWhenTheCopyDoes) {
  Swept swept(kLong);
  const Sequence sequence = sequence_of(5, {1, 2, 3});
  swept.leases.computed(sequence, "a", 3);
  ASSERT_TRUE(swept.leases.end(5).has_value());
  const uint64_t lease = ready(swept.leases, "a", {1, 2, 3}).lease;
  std::vector<int32_t> table;
  {
    const KvLeases::Pin pin = swept.leases.pin(lease, 3, Clock::now() + kPatience, table);
    EXPECT_TRUE(swept.leases.done("a", 0));
    EXPECT_TRUE(swept.leases.take_released().empty());
  }
  EXPECT_EQ(swept.leases.take_released(), std::vector<SequenceId>{5});
}

// Its reader was faster than its end.
TEST(KvLeasesOfRequests, ThatAreDoneBeforeTheEndKeepNothing) {
  KvLeases leases(kLong, kLong, 4);
  leases.computed(sequence_of(5, {1, 2, 3}), "a", 3);
  EXPECT_TRUE(leases.done("a", 0));
  EXPECT_FALSE(leases.end(5).has_value());
  EXPECT_TRUE(leases.take_released().empty());
  EXPECT_EQ(leases.num_kept_blocks(), 0);
}

TEST(KvLeasesOfRequests, LetNobodyWaitAfterTheEnd) {
  KvLeases leases(kLong, kLong, 4);
  std::thread waiting(
      [&] { EXPECT_NE(error_of([&] { ready(leases, "a", {1}, Clock::now() + kPatience); }), "no error"); });
  leases.close();
  waiting.join();
}

}  // namespace
}  // namespace ladder
