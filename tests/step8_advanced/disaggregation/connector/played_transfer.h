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

inline KvRanks ranks_of(const PlayedEngine& engine) {
  KvRanks ranks(engine.layout);
  ranks.ranks = engine.ranks;
  return ranks;
}

// A request that the one engine has computed, or is computing, and the other loads.
class PlayedTransfer {
 public:
  PlayedTransfer(const KvLayout& from, const KvLayout& to, int64_t num_tokens, Random& random)
      : theirs(from, num_tokens, random),
        mine(to, num_tokens, random),
        reads(kv_reads(from, to)),
        leases(kTransferPatience, kTransferPatience, from.block_size) {
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

  // The same in a step that tells its layers: each rank's, one rank after the other or taking turns. `stored` hears of each
  // before the leases do.
  void compute_by_layers(int64_t up_to, Random& random, const std::function<void(int, int64_t)>& stored) {
    begin_step(computed, up_to);
    theirs.fill(computed, up_to - computed);
    std::vector<int64_t> next;
    for (const RankKvCaches& rank : theirs.ranks) next.push_back(rank.layers.begin);
    const auto is_done = [&](size_t rank) { return next[rank] == theirs.ranks[rank].layers.end; };
    for (size_t done = 0; done < next.size();) {
      const auto rank = static_cast<size_t>(random.integer(0, std::ssize(next) - 1));
      if (is_done(rank)) continue;
      stored(static_cast<int>(rank), next[rank]);
      save_layer(static_cast<int>(rank), next[rank]++, computed, up_to);
      done += is_done(rank);
    }
    computed = up_to;
    leases.computed(sequence, "it", up_to);
  }
  // A step begins that computes these tokens; the blocks that it needs are told with it, and no others.
  void begin_step(int64_t first, int64_t end) {
    const auto blocks = [&](int64_t tokens) {
      return sequence.block_table.begin() +
             (tokens + theirs.layout.block_size - 1) / theirs.layout.block_size;
    };
    SchedulerOutput step;
    if (first == 0) {
      leases.expect(sequence, "it");
      NewSequence& added = step.new_sequences.emplace_back();
      added.id = sequence.id;
      added.block_table.assign(blocks(0), blocks(end));
    } else {
      step.continued.push_back({sequence.id, {blocks(first), blocks(end)}, first});
    }
    leases.begin_step(step);
  }
  void save_layer(int rank, int64_t layer, int64_t first, int64_t end) {
    const int64_t block_size = theirs.layout.block_size;
    std::vector<int64_t> slots = {-1, int64_t{1} << 40};  // a spare row, and another's
    for (int64_t token = first; token < end; ++token)
      slots.push_back(sequence.block_table[static_cast<size_t>(token / block_size)] * block_size +
                      token % block_size);
    leases.save_layer(rank, layer, slots);
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
      KvCopier copier;
      try {
        const KvReadEnd end = send_parts(ranks_of(theirs), reads, request, leases, copier, meddler,
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
    KvCopier copier;
    try {
      error = receive_parts(ranks_of(mine), theirs.layout, reads, load, cancelled, copier, *reader,
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
