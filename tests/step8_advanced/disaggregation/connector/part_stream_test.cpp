// Keys and values from the caches of one engine's ranks to another's over a real channel, which is honest, or not.
#include <gtest/gtest.h>

#include <thread>

#include "step8_advanced/disaggregation/connector/part_stream.h"
#include "tests/step8_advanced/disaggregation/layout/played_engine.h"

namespace ladder {
namespace {

using std::chrono::steady_clock;
using testing::first_difference;
using testing::layout_of;
using testing::PlayedEngine;
using testing::Random;

constexpr std::chrono::seconds kPatience{60};

KvDeadline after_all() {
  return steady_clock::now() + kPatience;
}

// What goes through it may be changed.
class Meddler final : public KvChannel {
 public:
  using Change = std::function<void(KvMessage& message, std::vector<std::byte>& body)>;

  Meddler(KvChannel& channel, Change change) : channel_(channel), change_(std::move(change)) {}

  void send(std::span<const std::byte> head, std::span<const std::byte> body, KvDeadline deadline) override {
    auto message = from_bytes<KvMessage>({reinterpret_cast<const char*>(head.data()), head.size()});
    std::vector<std::byte> changed(body.begin(), body.end());
    change_(message, changed);
    send_kv_message(channel_, message, deadline, changed);
  }
  KvMessageHead receive_head(KvDeadline deadline) override { return channel_.receive_head(deadline); }
  void receive_body(std::span<std::byte> body, KvDeadline deadline) override {
    channel_.receive_body(body, deadline);
  }
  void close() noexcept override { channel_.close(); }

 private:
  KvChannel& channel_;
  const Change change_;
};

// A request that the one engine has computed, or is computing, and the other loads.
class Transfer {
 public:
  Transfer(const KvLayout& from, const KvLayout& to, int64_t num_tokens, Random& random)
      : theirs(from, num_tokens, random),
        mine(to, num_tokens, random),
        reads(kv_reads(from, to)),
        leases(kPatience, from.block_size) {
    auto prompt = std::make_shared<std::vector<int32_t>>();
    for (int64_t i = 0; i < num_tokens; ++i)
      prompt->push_back(static_cast<int32_t>(random.integer(0, 1 << 20)));
    sequence.id = 7;
    sequence.num_prompt_tokens = num_tokens;
    sequence.prompt_token_ids = prompt;
    sequence.block_table = theirs.block_table;
    load.id = 3;
    load.block_table = mine.block_table;
    load.num_tokens = num_tokens;
    const auto listener = listen_for_kv("tcp://0", HostSecret{});
    std::thread connecting(
        [&] { reader = connect_for_kv(listener->address(), steady_clock::now() + kPatience, HostSecret{}); });
    sender = listener->accept(steady_clock::now() + kPatience);
    connecting.join();
  }

  void compute(int64_t up_to) {
    theirs.fill(computed, up_to - computed);
    computed = up_to;
    leases.computed(sequence, "it", up_to);
  }

  // Both loops; `what_else` runs beside them. The error that the reader ends with; empty: none.
  std::string run(
      const Meddler::Change& change = [](auto&, auto&) {}, const std::function<void()>& what_else = [] {}) {
    const KvReadRequest request{
        "it", prompt_checksum(*sequence.prompt_token_ids, load.first_token + load.num_tokens),
        load.first_token, load.num_tokens, 0};
    std::exception_ptr problem_of_sender, problem_of_reader;  // beside a failed channel
    std::thread sending([&] {
      Meddler meddler(*sender, change);
      try {
        const KvReadEnd end = send_parts({theirs.layout, theirs.ranks}, reads, request, leases, meddler,
                                         after_all(), after_all(), num_bytes);
        send_kv_message(*sender, end, after_all());
      } catch (const KvChannelError&) {
      } catch (...) {
        problem_of_sender = std::current_exception();
      }
      sender->close();
    });
    std::thread beside(what_else);
    std::string error;
    try {
      error = receive_parts({mine.layout, mine.ranks}, theirs.layout, reads, load, cancelled, *reader,
                            after_all(), received)
                  .error;
    } catch (const KvChannelError& problem) {
      error = problem.what();
    } catch (...) {
      problem_of_reader = std::current_exception();
    }
    reader->close();
    let_go();
    sending.join();
    beside.join();
    for (const std::exception_ptr& problem : {problem_of_sender, problem_of_reader})
      if (problem != nullptr) std::rethrow_exception(problem);
    return error;
  }

  // For who waits for the first window to be through; it is so at the end, too.
  void let_go() {
    first_is_through = true;
    first_is_through.notify_all();
  }

  // Whether of the load's tokens the first `num_tokens` are here, and around them nothing has been touched.
  std::string difference_after(int64_t num_tokens) const {
    Random random(1);
    PlayedEngine expected(mine.layout, std::ssize(*sequence.prompt_token_ids), random);
    expected.block_table = mine.block_table;
    expected.fill(load.first_token, num_tokens);
    return first_difference(mine, expected);
  }

  PlayedEngine theirs, mine;
  std::vector<KvRead> reads;
  KvLeases leases;
  Sequence sequence;
  KvLoad load;
  int64_t computed = 0;
  std::unique_ptr<KvChannel> sender, reader;
  std::atomic<bool> cancelled = false, first_is_through = false;
  std::atomic<int64_t> num_bytes = 0;
  ReceivedKv received;
};

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
        Transfer transfer(theirs, mine, 37, random);
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
  Transfer transfer(layout, layout, 1500, random);
  transfer.compute(1500);
  std::vector<int64_t> windows;
  EXPECT_EQ(transfer.run([&](KvMessage& message, std::vector<std::byte>& body) {
    const auto& head = std::get<KvPartsHead>(message);
    EXPECT_LE(std::ssize(body), kPartsMessageBytes);
    if (head.first_layer == 0) windows.push_back(head.num_tokens);
  }),
            "");
  EXPECT_EQ(windows, (std::vector<int64_t>{512, 512, 476}));
  EXPECT_EQ(transfer.difference_after(1500), "");
}

TEST(Task8_7_Worker_Parts, ComeAsTheyAreComputed) {
  Random random;
  SCOPED_TRACE(random.describe());
  Transfer transfer(layout_of(4, 2), layout_of(4, 1), 40, random);
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
      Transfer transfer(layout_of(4, 2), layout_of(4, 1), 20, random);
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
  Transfer transfer(layout_of(4, 1), layout_of(4, 1), 20, random);
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
  Transfer transfer(layout_of(4, 1), layout_of(4, 1), 20, random);
  transfer.compute(20);
  transfer.cancelled = true;
  EXPECT_NE(transfer.run(), "");
  EXPECT_EQ(transfer.difference_after(0), "");
}

TEST(Task8_7_Worker_Parts, StopWhenTheLeaseIsOver) {
  Random random;
  SCOPED_TRACE(random.describe());
  Transfer transfer(layout_of(4, 2), layout_of(4, 1), 20, random);
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
  Transfer transfer(layout_of(4, 1), layout_of(4, 1), 20, random);
  transfer.compute(20);
  auto other = std::make_shared<std::vector<int32_t>>(*transfer.sequence.prompt_token_ids);
  other->at(3) ^= 1;
  transfer.sequence.prompt_token_ids = other;  // what the reader means
  EXPECT_NE(transfer.run(), "");
  EXPECT_EQ(transfer.num_bytes, 0);
}

}  // namespace
}  // namespace ladder
