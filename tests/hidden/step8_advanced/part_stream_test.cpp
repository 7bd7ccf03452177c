// Task 8.7.worker: random layouts and moments, and each side beside what its contract says by itself.
#include "step8_advanced/disaggregation/connector/part_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "step8_advanced/disaggregation/layout/kv_checksum.h"
#include "tests/step8_advanced/disaggregation/connector/played_transfer.h"

namespace ladder {
namespace {

using namespace ladder::testing;

KvLayout random_layout(Random& random, int64_t heads, int64_t num_layers) {
  int ranks = 1;
  do ranks = static_cast<int>(random.integer(1, 8));
  while (!divides(heads, ranks));
  std::vector<int64_t> ends;
  if (const int64_t middle = random.integer(0, num_layers - 1); middle > 0) ends.push_back(middle);
  ends.push_back(num_layers);
  KvLayout layout = layout_of(heads, ranks, ends);
  layout.block_size = random.integer(1, 20);
  return layout;
}

struct Pair {
  KvLayout from, to;
};
Pair random_pair(Random& random) {
  const int64_t heads = random.integer(1, 6), num_layers = random.integer(1, 5);
  Pair pair{random_layout(random, heads, num_layers), random_layout(random, heads, num_layers)};
  constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};
  pair.from.dtype = kFloats[random.integer(0, 2)];
  pair.to.dtype = kFloats[random.integer(0, 2)];
  if (random.integer(0, 2) == 0) {
    pair.from.kept_as = pair.to.kept_as = random.integer(0, 1) == 0 ? KvCacheDType::int8 : KvCacheDType::int4;
    pair.from.dtype = pair.to.dtype;
  }
  return pair;
}

TEST(Hidden8_7_Worker, AnyPartOfAPromptGoesBetweenAnyTwoLayouts) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 40 && !HasFailure(); ++round) {
    const auto [from, to] = random_pair(random);
    SCOPED_TRACE(layout_text(from) + " -> " + layout_text(to));
    const int64_t length = random.integer(1, 60);
    PlayedTransfer transfer(from, to, length, random);
    transfer.load.first_token = random.integer(0, length - 1);
    transfer.load.num_tokens = random.integer(1, length - transfer.load.first_token);
    // Computed in chunks while it goes over: nothing is sent before.
    std::atomic<int64_t> computed = random.integer(0, length);
    if (computed > 0) transfer.compute(computed);
    const auto error = transfer.run(
        [&](KvMessage& message, auto&) {
          const auto& head = std::get<KvPartsHead>(message);
          EXPECT_LE(head.first_token + head.num_tokens, computed);
        },
        [&] {
          while (computed < length) {
            const int64_t next = random.integer(computed + 1, length);
            computed = next;
            transfer.compute(next);
          }
        });
    EXPECT_EQ(error, "");
    EXPECT_EQ(transfer.received.num_tokens, transfer.load.num_tokens);
    EXPECT_EQ(transfer.received.num_bytes, transfer.num_bytes);
    EXPECT_EQ(transfer.difference_after(transfer.load.num_tokens), "");
    EXPECT_TRUE(transfer.leases.done("it", transfer.received.lease));
  }
}

// As many layers to a message as fit, and the parts are those that pack_kv() makes, each with its checksum.
TEST(Hidden8_7_Worker, MessagesAreFullAndHoldWhatTheySay) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  KvLayout from = layout_of(2, 1, {7}), to = layout_of(2, 2, {3, 7});
  from.k_dim = from.v_dim = to.k_dim = to.v_dim = 256;
  PlayedTransfer transfer(from, to, 250, random);
  transfer.compute(250);
  struct Sent {
    int64_t read, first_layer, num_layers;
    bool operator==(const Sent&) const = default;
  };
  std::vector<Sent> sent;
  EXPECT_EQ(transfer.run([&](KvMessage& message, auto& body) {
    const auto& head = std::get<KvPartsHead>(message);
    sent.push_back({head.read, head.first_layer, head.num_layers});
    const KvRead& read = transfer.reads.at(static_cast<size_t>(head.read));
    KvPart part{head.first_layer, read.first_head, read.num_heads, head.first_token, head.num_tokens};
    ASSERT_EQ(std::ssize(head.checksums), head.num_layers);
    for (size_t at = 0; part.layer < head.first_layer + head.num_layers; ++part.layer) {
      std::vector<std::byte> packed(static_cast<size_t>(packed_size(from, part)));
      pack_kv(from, transfer.theirs.ranks.at(0), transfer.theirs.block_table, part, packed);
      ASSERT_LE(at + packed.size(), body.size());
      ASSERT_TRUE(std::equal(packed.begin(), packed.end(), body.begin() + static_cast<std::ptrdiff_t>(at)));
      EXPECT_EQ(head.checksums[static_cast<size_t>(part.layer - head.first_layer)], kv_checksum(packed));
      at += packed.size();
    }
  }),
            "");
  // 250 tokens of one head take 500 KiB a layer: four make 2 MiB, and no message has layers of two stages.
  EXPECT_EQ(sent, (std::vector<Sent>{{0, 0, 3}, {1, 0, 3}, {2, 3, 4}, {3, 3, 4}}));
  EXPECT_EQ(transfer.difference_after(250), "");
}

// ... of which none is longer than a window may be, which has whole blocks.
TEST(Hidden8_7_Worker, WindowsAreBoundedAndOfWholeBlocks) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  KvLayout from = layout_of(2, 2, {1}), to = layout_of(2, 1, {1});
  from.k_dim = from.v_dim = to.k_dim = to.v_dim = 512;
  from.block_size = 24;
  PlayedTransfer transfer(from, to, 1200, random);
  transfer.compute(1200);
  std::vector<int64_t> windows;
  EXPECT_EQ(transfer.run([&](KvMessage& message, auto& body) {
    const auto& head = std::get<KvPartsHead>(message);
    EXPECT_LE(body.size(), kKvBodyBytes);
    if (head.read == 0) windows.push_back(head.num_tokens);
  }),
            "");
  // 4 KiB a token of one head: 512 of them, of which 504 fill blocks of 24.
  EXPECT_EQ(windows, (std::vector<int64_t>{504, 504, 192}));
  EXPECT_EQ(transfer.difference_after(1200), "");
}

// A reader that has stopped reading holds up no block: its engine may take them away while a message is on its way.
TEST(Hidden8_7_Worker, NoBlockIsHeldWhileAMessageIsSent) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  PlayedTransfer transfer(layout_of(2, 2), layout_of(2, 1), 30, random);
  transfer.compute(30);
  bool first = true;
  std::future<void> taken_away;
  EXPECT_NE(transfer.run([&](auto&, auto&) {
    if (!std::exchange(first, false)) return;
    taken_away = std::async(std::launch::async, [&] { transfer.leases.retract_all(); });
    EXPECT_EQ(taken_away.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  }),
            "");
  EXPECT_EQ(transfer.received.num_tokens, 0);
}

// The first message that is wrong ends it, and what counts is the windows before that one.
TEST(Hidden8_7_Worker, WhatWasWholeBeforeAWrongMessageCounts) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  using Change = std::function<void(KvMessage&, std::vector<std::byte>&)>;
  const auto in_head = [](auto change) -> Change {
    return [change](KvMessage& message, auto&) { change(std::get<KvPartsHead>(message)); };
  };
  const std::vector<Change> changes = {
      [&](auto&, auto& body) { body.front() ^= std::byte{0x80}; },
      [&](auto&, auto& body) { body.back() ^= std::byte{1}; },
      [&](auto&, auto& body) { body.push_back(std::byte{0}); },
      [&](KvMessage& message, auto& body) { message = KvReadEnd{}, body.clear(); },
      [&](KvMessage& message, auto& body) { message = KvWelcome{}, body.clear(); },
      in_head([](KvPartsHead& head) { --head.lease; }),
      in_head([](KvPartsHead& head) { --head.first_token; }),
      in_head([](KvPartsHead& head) { head.num_tokens = -1; }),
      in_head([](KvPartsHead& head) { ++head.read; }),
      in_head([](KvPartsHead& head) { ++head.first_layer; }),
      in_head([](KvPartsHead& head) { head.num_layers = -1; }),
      in_head([](KvPartsHead& head) { head.checksums.push_back(0); }),
  };
  for (size_t i = 0; i < changes.size() && !HasFailure(); ++i) {
    PlayedTransfer transfer(layout_of(4, 2, {2, 4}), layout_of(4, 4, {1, 4}), 40, random);
    const int64_t num_reads = std::ssize(transfer.reads);
    // A window is what is computed when the one before has gone.
    std::vector<int64_t> begins = {0, random.integer(1, 10), random.integer(11, 30), 40};
    transfer.compute(begins[1]);
    // Not the lease of the first message, from which the reader learns it.
    const int64_t at_window = random.integer(1, 2), at_read = random.integer(0, num_reads - 1);
    bool changed = false;
    EXPECT_NE(transfer.run([&](KvMessage& message, auto& body) {
      const auto head = std::get<KvPartsHead>(message);
      if (head.read == num_reads - 1 && transfer.computed < 40)
        transfer.compute(*std::ranges::upper_bound(begins, transfer.computed));
      if (changed || head.first_token != begins[static_cast<size_t>(at_window)] || head.read != at_read)
        return;
      changed = true;
      changes[i](message, body);
    }),
              "")
        << "change " << i;
    EXPECT_TRUE(changed);
    EXPECT_EQ(transfer.received.num_tokens, begins[static_cast<size_t>(at_window)])
        << "change " << i << " in read " << at_read;
  }
}

TEST(Hidden8_7_Worker, NothingIsWrittenAfterACancel) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  PlayedTransfer transfer(layout_of(4, 2), layout_of(4, 1), 24, random);
  transfer.compute(11);
  // Set before the first message of the second window is sent.
  EXPECT_NE(transfer.run(
                [&](KvMessage& message, auto&) {
                  const auto& head = std::get<KvPartsHead>(message);
                  if (head.read == 1) transfer.let_go();
                  if (head.first_token == 11) transfer.cancelled = true;
                },
                [&] {
                  transfer.first_is_through.wait(false);
                  transfer.compute(24);
                }),
            "");
  EXPECT_LE(transfer.received.num_tokens, 11);
  // Of the first window perhaps not all had come, but of the second one nothing.
  PlayedEngine& mine = transfer.mine;
  for (const RankKvCaches& rank : mine.ranks)
    for (const KvCacheView& cache : rank.caches)
      for (int64_t token = 11; token < 24; ++token) {
        const int64_t block = mine.block_table[static_cast<size_t>(token / mine.layout.block_size)];
        const Tensor slot = cache.k.select(0, block).select(0, token % mine.layout.block_size);
        const auto* const bytes = static_cast<const uint8_t*>(slot.raw());
        EXPECT_TRUE(std::all_of(bytes, bytes + slot.nbytes(), [](uint8_t byte) { return byte == 0xff; }))
            << "token " << token;
      }
}

}  // namespace
}  // namespace ladder
