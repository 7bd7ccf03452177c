#pragma once
// Channels whose bodies on GPUs go another way than all else: a message's head goes over a stream of bytes, in an envelope that
// says what body belongs to it; bodies of the host follow there. How bodies of a GPU get into the reader's is a GpuBodyWay:
// from slot to slot of memory on both GPUs, in order. Internal to this folder.
//
//   sender                                                                                 reader
//     caches -- kernel --> | slot | slot | slot |   ===== the way =====>   | slot | slot | slot | -- kernel --> caches
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

// Bodies are numbered for ever; the slots of both sides take turns. What a function waits for ends with an Error at the deadline,
// or when the other end is gone.
class GpuBodyWay {
 public:
  virtual ~GpuBodyWay() = default;

  // The thread that sends.
  virtual void open_to_send(Device from) = 0;
  // That of the number-th body, when it may be filled.
  virtual KvBody slot_to_fill(int64_t number, KvDeadline deadline) = 0;
  virtual GpuBodyOffer send(int64_t number, size_t size) = 0;  // it is filled; waits for nothing

  // The thread that receives.
  virtual void open_to_receive(const GpuBodyOffer& offer, Device to, KvDeadline deadline) = 0;
  virtual void begin(int64_t number, size_t size, KvDeadline deadline) = 0;
  virtual bool has_come(int64_t number) = 0;
  virtual KvBody received(int64_t number) const = 0;  // its slot
  virtual void give_back(int64_t number, KvDeadline deadline) = 0;

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
  KvBody room_for(size_t size, Device device, KvDeadline deadline) override;
  void send_body(std::span<const std::byte> head, const KvBody& body, KvDeadline deadline) override;
  KvBody take_body(size_t size, Device device, KvDeadline deadline) override;

 private:
  struct Envelope;
  struct Arrived {
    std::vector<std::byte> head;
    size_t body_size = 0;  // 0: none, or it was received
    bool is_on_gpu = false;
    GpuBodyOffer offer;
  };

  template <class Work>
  auto closing_on_error(Work work);
  void send_envelope(const Envelope& envelope, std::span<const std::byte> head, KvDeadline deadline);
  void fetch(KvDeadline deadline);
  void look_ahead(KvDeadline deadline);
  void begin(int64_t last, KvDeadline deadline);

  const std::function<bool()> has_bytes_;
  StreamChannel messages_;
  const std::unique_ptr<GpuBodyWay> way_;
  std::atomic<bool> is_closed_{false};

  // Of the thread that sends.
  Device sent_from_;      // a GPU, from the first body on
  KvBody to_fill_;        // the slot that room_for() gave, until it is sent
  int64_t num_sent_ = 0;  // bodies on the GPU, ever

  // Of the thread that receives.
  Device received_on_;           // a GPU, from the first body on
  std::deque<Arrived> arrived_;  // not yet given to the user
  Arrived current_;              // that was given last
  bool has_body_of_host_ = false;
  // Bodies on the GPU, ever: heads that have come, ways that have begun, messages that were given. Never more than kGpuSlots
  // between the last two, the one that the user has included.
  int64_t num_arrived_ = 0, num_begun_ = 0, num_given_ = 0;
  std::array<size_t, kGpuSlots> sizes_{};
};

}  // namespace ladder
