#pragma once
// Whose blocks a producer keeps for a reader, since when, and for how long.
//
//   computed() ...    its tokens get ready, and may be read as they do
//   save_layer() ...  those of a step that is still running, in one layer after the other (layer_by_layer.h)
//   end()             the request is over, its blocks are not given back: the lease begins
//   extend()          a heartbeat
//   done(), sweep()   nobody reads any more, or nobody has said for a lease's length that he will: the blocks are to be
//                     given back (take_released()), as soon as no reader is in the middle of copying from them
//
// Where both engines are told at once a reader may be done before its request has come here (all of the prompt was in its own
// cache, or its client has left). That is remembered for a lease's length: such a request is not kept.
//
// A reader has room for its prompt from the moment that it asks. Where no prompt can begin, as all blocks here are kept for readers, and
// these cannot come, as they lack the room that others have over there, nobody would ever go on: who waits for a prompt that has not
// begun, while one was refused blocks for a while and none was computed, is told so, and computes it itself.
//
// Every entry has a number that no other one gets, the lease: whoever has read under it asks at the end whether it was valid
// all the time. What would be read of blocks that were given to another request in between is never taken for this one's.
//
// A monitor: the engine's thread and all readers' threads call it.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "step3_sequence/sequence.h"

namespace ladder {

// Consecutive layers that a rank keeps, numbered through the model.
struct KvLayers {
  int rank = 0;  // as in KvRead
  int64_t first = 0, count = 0;
};

class KvLeases {
 public:
  using Clock = std::chrono::steady_clock;

  KvLeases(std::chrono::milliseconds lease, std::chrono::milliseconds start_patience, int64_t block_size)
      : length_(lease), start_patience_(start_patience), block_size_(block_size) {}

  // The engine's thread.

  // The prompt's first `num_tokens` tokens are in the sequence's blocks. The id of another sequence's entry stays that one's.
  // Fewer than before: its blocks are about to be given back and computed again (a preemption); when it returns nobody
  // reads from them.
  void computed(const Sequence& sequence, const std::string& remote_request_id, int64_t num_tokens);
  // The sequence is going to be kept under this id, and is asking for its first blocks: told each time that it asks. Where
  // tokens may be read while the step that computes them runs, what it gets blocks for is heard from that step.
  void expect(const Sequence& sequence, const std::string& remote_request_id);
  void begin_step(const SchedulerOutput& step);  // before a rank begins with it
  // The lease begins; the id and how many tokens there are. None: there is no entry, or its reader has been and gone.
  struct Held {
    std::string remote_request_id;
    int64_t num_tokens = 0;
  };
  std::optional<Held> end(SequenceId sequence);
  // Its blocks are about to be given back. When it returns nobody reads from them, and it is forgotten.
  void retract(SequenceId sequence);
  void retract_all();
  std::vector<SequenceId> take_released();
  // Called by the sweeping thread when take_released() has something, or whoever waits for blocks should ask for them again.
  void on_release(std::function<void()> wake);

  // The ranks' threads. Of the step that a rank computes the keys and values of one layer are in its cache: those of these
  // slots. A rank computes its layers in order, and its steps.
  void save_layer(int rank, int64_t layer, std::span<const int64_t> slots);

  // Readers' threads. `id`: the remote_request_id.

  struct Ready {
    uint64_t lease = 0;
    int64_t num_tokens = 0;
    bool in_all_layers = false;  // else a step is just computing the last of them
  };
  // Waits until more than `num_tokens` tokens are there to be read, where only the first of `layers` need have them.
  // `prompt_checksum`: of the first `num_checked` tokens. `lease`: what an earlier call has answered; 0: the first call, which
  // also waits for the request itself. Error, saying why: it has not come, or not got so far, until the deadline; it is
  // over; it is of another prompt; no prompt can begin (above).
  Ready wait_ready(const std::string& id, uint64_t lease, int64_t num_tokens, uint32_t prompt_checksum,
                   int64_t num_checked, Clock::time_point deadline, const KvLayers& layers = kAllLayers);

  // While it exists the blocks stay what they are.
  class Pin {
   public:
    Pin(Pin&& other) noexcept : leases_(std::exchange(other.leases_, nullptr)), lease_(other.lease_) {}
    ~Pin();

   private:
    friend class KvLeases;
    Pin(KvLeases* leases, uint64_t lease) : leases_(leases), lease_(lease) {}
    KvLeases* leases_;
    uint64_t lease_;
  };
  // Of the first `num_tokens` tokens; sets the block table. Waits where these are being computed, or once more (a preemption),
  // until the first of `layers` has them, and leaves of these the ones that do. Error as wait_ready(). To be held for the
  // time of a copy, not of a wait.
  Pin pin(uint64_t lease, int64_t num_tokens, Clock::time_point deadline, std::vector<int32_t>& block_table,
          KvLayers& layers);
  Pin pin(uint64_t lease, int64_t num_tokens, Clock::time_point deadline, std::vector<int32_t>& block_table) {
    KvLayers all = kAllLayers;
    return pin(lease, num_tokens, deadline, block_table, all);
  }

  // Nobody reads it any more. False: this lease (0: whichever) is over already, or never was. One that was not read (0) and has
  // not come yet is not kept when it comes, nor waited for.
  bool done(const std::string& id, uint64_t lease);
  // The lease lasts at least another two thirds of its length. Unknown ids are ignored.
  void extend(const std::string& id);

  // For a thread of its own: gives up what has lapsed, until close(), after which all who wait get an Error.
  void sweep_until_closed();
  void close();

  int64_t num_held_blocks() const;  // of requests that are over
  int64_t num_kept_blocks() const;  // of these and of those that will be, whole prompts
  int64_t num_lapsed() const;

 private:
  static constexpr KvLayers kAllLayers{-1, 0, 1};  // of no rank: what computed() has told

  // Of who will be kept.
  struct Expected {
    std::string id;
    std::shared_ptr<const std::vector<int32_t>> prompt;
    Clock::time_point first_asked, last_asked;  // for blocks: when they are apart it was refused
  };
  struct Entry {
    std::string id;
    SequenceId sequence = 0;
    std::shared_ptr<const std::vector<int32_t>> prompt;
    std::vector<int32_t> block_table;
    int64_t num_tokens = 0;  // computed, in all layers
    // What the steps have said, of one that is expected: the blocks that the ranks write to, how many tokens were there
    // before its first step, and up to which token a rank's layer is stored, where that is more than num_tokens.
    std::vector<int32_t> step_table;
    int64_t first_token = 0;
    std::map<std::pair<int, int64_t>, int64_t> stored;

    int64_t num_tokens_in(int rank, int64_t layer) const;
    int64_t num_pins = 0;
    bool ended = false;
    bool over = false;  // to be released when no pin is left
    Clock::time_point lease_end;
  };
  using Entries = std::unordered_map<uint64_t, Entry>;  // by lease

  Entry* entry_of(
      SequenceId sequence, const std::string& id,
      const std::shared_ptr<const std::vector<int32_t>>& prompt);  // a new one, or none: the id is taken
  Entry& wait_computed(uint64_t lease, int64_t num_tokens, const KvLayers& layers, Clock::time_point deadline,
                       std::unique_lock<std::mutex>& lock);
  Entries::iterator find(const std::string& id);
  void give_up(Entries::iterator entry);  // and release it, if it is not pinned
  void forget(Entries::iterator entry);
  void release(Entries::iterator entry);
  void unpin(uint64_t lease);
  void retract(Entries::iterator entry, std::unique_lock<std::mutex>& lock);
  void give_up_before_it_comes(const std::string& id);
  bool is_given_up(const std::string& id) const;
  bool stands_still(Clock::time_point since) const;  // no prompt can begin, and none goes on

  static constexpr size_t kMostGivenUp = 4096;

  const std::chrono::milliseconds length_, start_patience_;
  const int64_t block_size_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  uint64_t next_lease_ = 1;
  Entries entries_;
  std::unordered_map<std::string, uint64_t> by_id_;
  std::unordered_map<SequenceId, uint64_t> by_sequence_;
  std::unordered_map<SequenceId, Expected> expected_;
  Clock::time_point last_computed_{};
  std::unordered_map<std::string, Clock::time_point>
      given_up_;                           // by id, of requests that have not come; until then
  std::unordered_set<SequenceId> unread_;  // of those that have come since
  std::vector<SequenceId> released_;
  std::function<void()> wake_;
  bool wake_is_due_ = false;  // the sweeper calls it
  int64_t num_lapsed_ = 0;
};

// What `prompt_checksum` is: of the first `count` tokens.
uint32_t prompt_checksum(const std::vector<int32_t>& tokens, int64_t count);

}  // namespace ladder
