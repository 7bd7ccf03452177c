#pragma once
// A request's way from the caches of one played engine to those of another over a real channel, which is honest, or not.
#include <thread>

#include "step8_advanced/disaggregation/connector/part_stream.h"
#include "tests/step8_advanced/disaggregation/layout/played_engine.h"

namespace ladder::testing {

inline constexpr std::chrono::seconds kTransferPatience{60};

inline KvDeadline after_all() {
  return std::chrono::steady_clock::now() + kTransferPatience;
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
class PlayedTransfer {
 public:
  PlayedTransfer(const KvLayout& from, const KvLayout& to, int64_t num_tokens, Random& random)
      : theirs(from, num_tokens, random),
        mine(to, num_tokens, random),
        reads(kv_reads(from, to)),
        leases(kTransferPatience, from.block_size) {
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
    std::thread connecting([&] { reader = connect_for_kv(listener->address(), after_all(), HostSecret{}); });
    sender = listener->accept(after_all());
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

}  // namespace ladder::testing
