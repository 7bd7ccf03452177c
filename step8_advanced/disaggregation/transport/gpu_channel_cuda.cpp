#include "step8_advanced/disaggregation/transport/gpu_channel.h"

#include <thread>
#include <utility>

#include "step8_advanced/disaggregation/transport/kv_deadline.h"

namespace ladder {

namespace {

constexpr int64_t kMostAhead = 2 * kGpuSlots;  // messages that have come, and wait for the user

constexpr const char* kWhereTo = "between a GPU and the host keys and values go over tcp:// or shm://";

}  // namespace

struct GpuChannel::Envelope {
  static constexpr uint64_t kMagic = 0x3355504744414c56;

  uint64_t magic = kMagic;
  uint64_t body_size = 0;
  uint64_t is_on_gpu = 0;
  // Of a body that is:
  uint64_t lane = 0, source = 0;
  uint64_t number = 0;  // of the source's, counted for ever
  GpuBodyOffer offer;
};

template <class Work>
auto GpuChannel::closing_on_error(Work work) {
  if (is_closed_) throw KvChannelError("the channel has failed or was closed");
  try {
    return work();
  } catch (const Error&) {  // one of CUDA's too: a part of a message may be under way
    close();
    throw;
  }
}

void GpuChannel::send(std::span<const std::byte> head, std::span<const std::byte> body, KvDeadline deadline) {
  LADDER_CHECK(head.size() <= kMaxKvMessageHead && body.size() <= kMaxKvMessageBody,
               "a message of {} and {} bytes: at most {} and {} can be sent", head.size(), body.size(),
               kMaxKvMessageHead, kMaxKvMessageBody);
  Envelope envelope;
  envelope.body_size = body.size();
  send_envelope(envelope, head, deadline);
  if (body.empty()) return;
  closing_on_error([&] {
    messages_.send_bodies_as(sent_form_);
    messages_.send({}, body, deadline);
    sent_counts_ += messages_.take_sent_counts();
  });
}

KvMessageHead GpuChannel::receive_head(KvDeadline deadline) {
  LADDER_CHECK(current_.body_size == 0, "a message's body of {} bytes has not been received yet",
               current_.body_size);
  return closing_on_error([&] {
    if (current_.landing != nullptr) current_.landing->leave();  // its slot here may be filled again
    current_ = {};
    if (arrived_.empty()) fetch(deadline);
    current_ = std::move(arrived_.front());
    arrived_.pop_front();
    look_ahead(deadline);
    return KvMessageHead{std::move(current_.head), current_.body_size};
  });
}

void GpuChannel::receive_body(std::span<std::byte> body, KvDeadline deadline) {
  LADDER_CHECK(body.size() == current_.body_size, "a message's body of {} bytes is read as one of {}",
               current_.body_size, body.size());
  LADDER_CHECK(!current_.is_on_gpu, "a body on a GPU is read as one of the host: {}", kWhereTo);
  if (body.empty()) return;
  closing_on_error([&] { messages_.receive_body(body, deadline); });
  has_body_of_host_ = false;
  current_.body_size = 0;
}

void GpuChannel::close() noexcept {
  is_closed_ = true;  // first: whoever is woken looks at it
  messages_.close();
  way_->close();
}

KvBody GpuChannel::room_for(size_t size, Device device, KvDeadline deadline, int lane) {
  if (device.type != DeviceType::cuda) return KvChannel::room_for(size, device, deadline, lane);
  LADDER_CHECK(size <= kGpuSlotBytes, "a body of {} bytes on a GPU: at most {} are possible", size,
               kGpuSlotBytes);
  LADDER_CHECK(lane >= 0 && lane < kMostKvLanes, "a body of lane {}: there are {}", lane, kMostKvLanes);
  to_fill_ = closing_on_error([&] {
    const size_t source = way_->source_of(device, lane);
    return ToFill{way_->slot_to_fill(source, num_sent_.at(source), deadline), source, lane};
  });
  return to_fill_.slot.part(0, size);
}

void GpuChannel::send_body(std::span<const std::byte> head, const KvBody& body, KvDeadline deadline) {
  if (body.device.type != DeviceType::cuda) return KvChannel::send_body(head, body, deadline);
  LADDER_CHECK(body.data == to_fill_.slot.data && body.size > 0,
               "a body on a GPU that is not where there was room for it");
  const auto [slot, source, lane] = std::exchange(to_fill_, {});
  Envelope envelope;
  envelope.body_size = body.size;
  envelope.is_on_gpu = 1;
  envelope.lane = static_cast<uint64_t>(lane);
  envelope.source = source;
  envelope.number = static_cast<uint64_t>(num_sent_[source]);
  envelope.offer = closing_on_error([&] { return way_->send(source, num_sent_[source], body.size); });
  send_envelope(envelope, head, deadline);
  ++num_sent_[source];
}

KvBody GpuChannel::take_body(size_t size, Device device, KvDeadline deadline) {
  if (!current_.is_on_gpu) return KvChannel::take_body(size, device, deadline);
  LADDER_CHECK(size == current_.body_size, "a message's body of {} bytes is read as one of {}",
               current_.body_size, size);
  LADDER_CHECK(device.type == DeviceType::cuda, "a body on a GPU is read into {}: {}", device_name(device),
               kWhereTo);
  return closing_on_error([&] {
    GpuLanding*& landing = lanes_[static_cast<size_t>(current_.lane)];
    if (landing == nullptr) landing = &way_->landing_of(current_.offer, device, current_.lane, deadline);
    LADDER_CHECK(landing->device() == device, "bodies to {} and to {}: expected those of a lane on one GPU",
                 device_name(landing->device()), device_name(device));
    look_ahead(deadline);  // with this one first: it is the oldest, so there is room
    while (!landing->has_come(current_.landed_as)) {
      if (is_closed_) throw KvChannelError("the channel was closed");
      if (is_over(deadline)) throw KvChannelError("a body on a GPU has not come, and the time is over");
      look_ahead(deadline);
      std::this_thread::yield();
    }
    way_->give_back(deadline);
    return landing->slot(current_.landed_as).part(0, std::exchange(current_.body_size, 0));
  });
}

void GpuChannel::send_envelope(const Envelope& envelope, std::span<const std::byte> head,
                               KvDeadline deadline) {
  closing_on_error([&] {
    messages_.send_bodies_as(KvBodyForm::plain);
    messages_.send(std::as_bytes(std::span(&envelope, 1)), head, deadline);
  });
}

// The next message, without the bytes of its body.
void GpuChannel::fetch(KvDeadline deadline) {
  const KvMessageHead first = messages_.receive_head(deadline);
  static_assert(std::is_trivially_copyable_v<Envelope>);
  Envelope envelope;
  if (first.head.size() != sizeof envelope) throw KvChannelError("a message without an envelope");
  std::memcpy(static_cast<void*>(&envelope), first.head.data(), sizeof envelope);
  if (envelope.magic != Envelope::kMagic || first.body_size > kMaxKvMessageHead ||
      envelope.body_size > (envelope.is_on_gpu ? kGpuSlotBytes : kMaxKvMessageBody))
    throw KvChannelError("a message in an envelope that is none");
  Arrived arrived;
  arrived.head.resize(first.body_size);
  if (first.body_size > 0) messages_.receive_body(arrived.head, deadline);
  arrived.body_size = envelope.body_size;
  arrived.is_on_gpu = envelope.is_on_gpu != 0;
  if (arrived.is_on_gpu) {
    if (envelope.body_size == 0 || envelope.lane >= kMostKvLanes || envelope.source >= kMostGpuSources ||
        envelope.number != static_cast<uint64_t>(num_arrived_[envelope.source]))
      throw KvChannelError("a body on a GPU that is not the next one");
    arrived.lane = static_cast<int>(envelope.lane);
    arrived.source = envelope.source;
    arrived.number = num_arrived_[envelope.source]++;
    arrived.offer = envelope.offer;
  } else if (arrived.body_size > 0) {
    if (messages_.receive_head(deadline).body_size != arrived.body_size)
      throw KvChannelError("a body of another size than its message's");
    has_body_of_host_ = true;
  }
  arrived_.push_back(std::move(arrived));
}

// What has come already, and what of it can be on its way: in order, as far as it is known where to and there is room.
void GpuChannel::look_ahead(KvDeadline deadline) {
  while (!has_body_of_host_ && std::ssize(arrived_) < kMostAhead && has_bytes_()) fetch(deadline);
  if (!has_begun(current_, deadline)) return;
  for (Arrived& next : arrived_)
    if (!has_begun(next, deadline)) return;
}

// Now, or it need not: it is the host's.
bool GpuChannel::has_begun(Arrived& body, KvDeadline deadline) {
  if (!body.is_on_gpu || body.landing != nullptr) return true;
  GpuLanding* const landing = lanes_[static_cast<size_t>(body.lane)];
  if (landing == nullptr || !landing->has_room()) return false;
  body.landed_as = landing->begin(body.source, body.offer, body.number, body.body_size, deadline);
  body.landing = landing;
  return true;
}

}  // namespace ladder
