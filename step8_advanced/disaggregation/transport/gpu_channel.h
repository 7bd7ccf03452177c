#pragma once
// Channels whose bodies on GPUs go another way than all else: a message's head goes over a stream of bytes, in an envelope that
// says what body belongs to it; bodies of the host follow there. How bodies of a GPU get into the reader's is a GpuBodyWay:
// from slot to slot of memory on both GPUs, in order. Internal to this folder.
//
//   sender                                                                                 reader
//     caches -- kernel --> | slot | slot | slot |   ===== the way =====>   | slot | slot | slot | -- kernel --> caches
//
// An end with several GPUs has slots on each. Which of the reader's GPUs a body goes to is known when the user takes it, and
// that of the next ones before: their lane says it, from its second body on.
//
// A sender that is ahead by all its slots waits: that is back-pressure. A reader that has taken a body looks for the next heads
// while it waits for that body to have come, and begins their way behind it: so the way has work while a body is checked and
// copied into blocks.
//
//   the stream, each message     envelope as the head, the user's head as the body;
//                                a body of the host: a second message, with it as the body
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "step8_advanced/disaggregation/transport/gpu_slots.h"
#include "step8_advanced/disaggregation/transport/stream_channel.h"

namespace ladder {

// What the sender's side of a way tells the reader's with each body: a struct of the way's own, the same in all of a channel's.
class GpuBodyOffer {
 public:
  GpuBodyOffer() = default;
  template <class Words>
  explicit GpuBodyOffer(const Words& words) {
    static_assert(std::is_trivially_copyable_v<Words> && sizeof words <= sizeof bytes_);
    std::memcpy(bytes_.data(), &words, sizeof words);
  }
  template <class Words>
  Words as() const {
    Words words;
    std::memcpy(static_cast<void*>(&words), bytes_.data(), sizeof words);
    return words;
  }

 private:
  std::array<std::byte, 256> bytes_{};
};

// Where a reader's bodies of some lanes lie: slots on one of its GPUs. The thread that receives.
class GpuLanding {
 public:
  explicit GpuLanding(Device device) : slots_(device) {}
  virtual ~GpuLanding() = default;
  GpuLanding(const GpuLanding&) = delete;

  Device device() const { return slots_.device(); }
  bool has_room() const { return num_begun_ - num_left_ < kGpuSlots; }
  // The next body of the sender's `source` is to come into the next slot here: its number, by which it is asked for.
  int64_t begin(size_t source, const GpuBodyOffer& offer, int64_t number, size_t size, KvDeadline deadline) {
    begin_in(slots_.slot(num_begun_).part(0, size), num_begun_, source, offer, number, deadline);
    return num_begun_++;
  }
  virtual bool has_come(int64_t number) = 0;
  KvBody slot(int64_t number) const { return slots_.slot(number); }
  void leave() { ++num_left_; }  // the user has done with the oldest one

 private:
  // Bodies of a source are numbered for ever; `mine`: so are those that come here.
  virtual void begin_in(const KvBody& slot, int64_t mine, size_t source, const GpuBodyOffer& offer,
                        int64_t number, KvDeadline deadline) = 0;

  const GpuSlots slots_;
  int64_t num_begun_ = 0, num_left_ = 0;  // bodies, ever
};

inline constexpr int kMostGpuSources = kMostKvLanes;

// What a function waits for ends with an Error at the deadline, or when the other end is gone.
class GpuBodyWay {
 public:
  virtual ~GpuBodyWay() = default;

  // The thread that sends. A source is slots on one of its GPUs; they are counted as they are first asked for.
  virtual size_t source_of(Device device, int lane) = 0;
  virtual KvBody slot_to_fill(size_t source, int64_t number, KvDeadline deadline) = 0;  // when it is free
  virtual GpuBodyOffer send(size_t source, int64_t number,
                            size_t size) = 0;  // it is filled; waits for nothing

  // The thread that receives.
  virtual GpuLanding& landing_of(const GpuBodyOffer& offer, Device device, int lane, KvDeadline deadline) = 0;
  virtual void give_back(KvDeadline deadline) = 0;  // the slot of the oldest body that has come

  // Any thread: nobody waits in one of the above any more.
  virtual void close() noexcept = 0;
};

class GpuChannel final : public KvChannel {
 public:
  // `has_bytes`: something of the stream is there to be read.
  GpuChannel(std::unique_ptr<ByteStream> stream, std::function<bool()> has_bytes,
             std::unique_ptr<GpuBodyWay> way)
      : has_bytes_(std::move(has_bytes)), messages_(std::move(stream)), way_(std::move(way)) {}
  ~GpuChannel() override { GpuChannel::close(); }

  void send(std::span<const std::byte> head, std::span<const std::byte> body, KvDeadline deadline) override;
  KvMessageHead receive_head(KvDeadline deadline) override;
  void receive_body(std::span<std::byte> body, KvDeadline deadline) override;
  void close() noexcept override;

  size_t body_bytes() const override { return kGpuSlotBytes; }
  KvBody room_for(size_t size, Device device, KvDeadline deadline, int lane) override;
  void send_body(std::span<const std::byte> head, const KvBody& body, KvDeadline deadline) override;
  KvBody take_body(size_t size, Device device, KvDeadline deadline) override;

 private:
  struct Envelope;
  struct ToFill {
    KvBody slot;
    size_t source = 0;
    int lane = 0;
  };
  struct Arrived {
    std::vector<std::byte> head;
    size_t body_size = 0;  // 0: none, or it was received
    bool is_on_gpu = false;
    int lane = 0;
    size_t source = 0;
    int64_t number = 0;  // of the source's
    GpuBodyOffer offer;
    GpuLanding* landing = nullptr;  // of one that was begun,
    int64_t landed_as = 0;          // and its number there
  };

  template <class Work>
  auto closing_on_error(Work work);
  void send_envelope(const Envelope& envelope, std::span<const std::byte> head, KvDeadline deadline);
  void fetch(KvDeadline deadline);
  void look_ahead(KvDeadline deadline);
  bool has_begun(Arrived& body, KvDeadline deadline);

  const std::function<bool()> has_bytes_;
  StreamChannel messages_;
  const std::unique_ptr<GpuBodyWay> way_;
  std::atomic<bool> is_closed_{false};

  // Of the thread that sends.
  ToFill to_fill_;                                   // what room_for() gave last, until it is sent
  std::array<int64_t, kMostGpuSources> num_sent_{};  // bodies of each source, ever

  // Of the thread that receives.
  std::array<GpuLanding*, kMostKvLanes> lanes_{};       // the way's
  std::array<int64_t, kMostGpuSources> num_arrived_{};  // bodies of each source, ever
  std::deque<Arrived> arrived_;                         // not yet given to the user
  Arrived current_;                                     // that was given last
  bool has_body_of_host_ = false;
};

}  // namespace ladder
