// Keys and values from the caches of one engine's ranks to another's over a real channel, which is honest, or not.
#include <gtest/gtest.h>

#include "tests/step8_advanced/disaggregation/connector/played_transfer.h"

namespace ladder {
namespace {

using testing::layout_of;
using testing::PlayedTransfer;
using testing::Random;

TEST(Task8_7_Worker_Parts, GoBetweenAllLayouts) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const int from : {1, 2, 4})
    for (const int to : {1, 2, 4})
      for (const auto& [from_stages, to_stages] :
           {std::pair<std::vector<int64_t>, std::vector<int64_t>>{{4}, {4}}, {{1, 4}, {3, 4}}}) {
        KvLayout theirs = layout_of(4, from, from_stages), mine = layout_of(4, to, to_stages);
        theirs.block_size = from < to ? 16 : 4;
        mine.block_size = from > to ? 16 : 4;
        if (from == 4) theirs.dtype = DType::bf16;
        PlayedTransfer transfer(theirs, mine, 37, random);
        transfer.load.first_token = random.integer(0, 20);
        transfer.load.num_tokens = random.integer(1, 37 - transfer.load.first_token);
        transfer.compute(37);
        EXPECT_EQ(transfer.run(), "");
        EXPECT_EQ(transfer.received.num_tokens, transfer.load.num_tokens);
        EXPECT_EQ(transfer.received.num_bytes, transfer.num_bytes);
        EXPECT_NE(transfer.received.lease, 0u);
        EXPECT_EQ(transfer.difference_after(transfer.load.num_tokens), "") << from << " to " << to;
      }
}

// Windows are bounded: a long prompt comes in several, and each message is of a bounded size.
TEST(Task8_7_Worker_Parts, OfALongPromptComeInWindows) {
  Random random;
  KvLayout layout = layout_of(2, 1, {2});
  layout.k_dim = layout.v_dim = 256;
  PlayedTransfer transfer(layout, layout, 1500, random);
  transfer.compute(1500);
  std::vector<int64_t> windows;
  EXPECT_EQ(transfer.run([&](KvMessage& message, std::vector<std::byte>& body) {
    const auto& head = std::get<KvPartsHead>(message);
    EXPECT_LE(body.size(), kKvBodyBytes);
    if (head.first_layer == 0) windows.push_back(head.num_tokens);
  }),
            "");
  EXPECT_EQ(windows, (std::vector<int64_t>{512, 512, 476}));
  EXPECT_EQ(transfer.difference_after(1500), "");
}

TEST(Task8_7_Worker_Parts, ComeAsTheyAreComputed) {
  Random random;
  SCOPED_TRACE(random.describe());
  PlayedTransfer transfer(layout_of(4, 2), layout_of(4, 1), 40, random);
  // Not before: what is sent with a window is computed.
  std::atomic<int64_t> done = 0;
  EXPECT_EQ(transfer.run(
                [&](KvMessage& message, auto&) {
                  const auto& head = std::get<KvPartsHead>(message);
                  EXPECT_LE(head.first_token + head.num_tokens, done);
                },
                [&] {
                  for (const int64_t up_to : {1, 17, 18, 40}) {
                    done = up_to;
                    transfer.compute(up_to);
                  }
                }),
            "");
  EXPECT_EQ(transfer.received.num_tokens, 40);
  EXPECT_EQ(transfer.difference_after(40), "");
}

TEST(Task8_7_Worker_Parts, AreCountedOnlyWhereTheyAreWhole) {
  // In the second window of two, at each of its messages: one is changed.
  Random random;
  SCOPED_TRACE(random.describe());
  using Change = std::function<void(KvPartsHead&, std::vector<std::byte>&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"a flipped bit", [](auto&, auto& body) { body[body.size() / 2] ^= std::byte{4}; }},
      {"another checksum", [](auto& head, auto&) { head.checksums.back() ^= 1; }},
      {"no checksums", [](auto& head, auto&) { head.checksums.clear(); }},
      {"a byte fewer", [](auto&, auto& body) { body.pop_back(); }},
      {"no bytes", [](auto&, auto& body) { body.clear(); }},
      {"another lease", [](auto& head, auto&) { ++head.lease; }},
      {"another first token", [](auto& head, auto&) { head.first_token += 1; }},
      {"far too many tokens", [](auto& head, auto&) { head.num_tokens = 1 << 30; }},
      {"no tokens", [](auto& head, auto&) { head.num_tokens = 0; }},
      {"another layer", [](auto& head, auto&) { head.first_layer = -1; }},
      {"far too many layers", [](auto& head, auto&) { head.num_layers = int64_t{1} << 62; }},
      {"no layers", [](auto& head, auto&) { head.num_layers = 0; }},
      {"another read", [](auto& head, auto&) { head.read = 1 - head.read; }},
  };
  for (const auto& [what, change] : changes)
    for (const int64_t at : {0, 1}) {
      PlayedTransfer transfer(layout_of(4, 2), layout_of(4, 1), 20, random);
      transfer.compute(9);
      const std::string found = transfer.run(
          [&](KvMessage& message, auto& body) {
            auto& head = std::get<KvPartsHead>(message);
            if (head.first_token == 0 && head.read == 1) transfer.let_go();
            if (head.first_token == 9 && head.read == at) change(head, body);
          },
          [&] {
            transfer.first_is_through.wait(false);
            transfer.compute(20);
          });
      EXPECT_NE(found, "") << what << " in read " << at;
      EXPECT_EQ(transfer.received.num_tokens, 9) << what << " in read " << at;
    }
}

TEST(Task8_7_Worker_Parts, EndWithAWordOrAreNotWhole) {
  Random random;
  PlayedTransfer transfer(layout_of(4, 1), layout_of(4, 1), 20, random);
  transfer.compute(20);
  EXPECT_NE(transfer.run([](KvMessage& message, auto& body) {
    message = KvReadEnd{};
    body.clear();
  }),
            "");
  EXPECT_EQ(transfer.received.num_tokens, 0);
}

TEST(Task8_7_Worker_Parts, OfACancelledLoadTouchNothing) {
  Random random;
  PlayedTransfer transfer(layout_of(4, 1), layout_of(4, 1), 20, random);
  transfer.compute(20);
  transfer.cancelled = true;
  EXPECT_NE(transfer.run(), "");
  EXPECT_EQ(transfer.difference_after(0), "");
}

TEST(Task8_7_Worker_Parts, StopWhenTheLeaseIsOver) {
  Random random;
  SCOPED_TRACE(random.describe());
  PlayedTransfer transfer(layout_of(4, 2), layout_of(4, 1), 20, random);
  transfer.compute(9);
  const std::string error = transfer.run(
      [&](KvMessage& message, auto&) {
        const auto& head = std::get<KvPartsHead>(message);
        EXPECT_LT(head.first_token, 9);
        if (head.read == 1) transfer.let_go();
      },
      [&] {
        transfer.first_is_through.wait(false);
        transfer.leases.retract(transfer.sequence.id);
        // Its blocks are another request's: of other numbers, and with another lease.
        Sequence next = transfer.sequence;
        next.id = 8;
        transfer.theirs.fill(0, 20);
        transfer.leases.computed(next, "it", 20);
      });
  EXPECT_NE(error, "");
  EXPECT_EQ(transfer.received.num_tokens, 9);
  EXPECT_FALSE(transfer.leases.done("it", transfer.received.lease));  // what the reader asks at the end
  EXPECT_EQ(transfer.difference_after(9), "");
}

TEST(Task8_7_Worker_Parts, OfAnotherPromptAreNotSent) {
  Random random;
  PlayedTransfer transfer(layout_of(4, 1), layout_of(4, 1), 20, random);
  transfer.compute(20);
  auto other = std::make_shared<std::vector<int32_t>>(*transfer.sequence.prompt_token_ids);
  other->at(3) ^= 1;
  transfer.sequence.prompt_token_ids = other;  // what the reader means
  EXPECT_NE(transfer.run(), "");
  EXPECT_EQ(transfer.num_bytes, 0);
}

}  // namespace
}  // namespace ladder
