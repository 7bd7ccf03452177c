#pragma once
// What a reader and a producer say to each other. First each sends its handshake (layout/handshake.h), and compares; what must
// be alike and is not ends the channel. Both then know the same list of reads, kv_reads() of their layouts:
//
//   reader                               producer
//                          <----         KvWelcome
//   KvReadRequest          ---->
//                          <----         KvPartsHead, with packed parts as the message's body; again and again
//                          <----         KvReadEnd
//   KvDone                 ---->
//                          <----         KvConfirmed
//   KvHeartbeat            ---->         no answer
//
// Times are lengths of time: the clocks of two machines differ.
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "step6_engine/process/wire.h"
#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder {

// Requests with a longer remote_request_id are neither kept nor loaded.
inline constexpr size_t kMaxKvRequestId = 256;

struct KvWelcome {
  int64_t lease_ms = 0;  // heartbeats are expected several times in so long
};
LADDER_WIRE_FORM(KvWelcome) {
  auto& [lease_ms] = value;
  wire(lease_ms);
}

// Tokens [first_token, first_token + num_tokens), as they get ready.
struct KvReadRequest {
  std::string remote_request_id;
  uint32_t prompt_checksum = 0;  // of the prompt's tokens up to the last one wanted: both mean the same text
  int64_t first_token = 0, num_tokens = 0;
  int64_t patience_ms = 0;  // until all of them have come
};
LADDER_WIRE_FORM(KvReadRequest) {
  auto& [id, prompt_checksum, first_token, num_tokens, patience_ms] = value;
  wire(id, prompt_checksum, first_token, num_tokens, patience_ms);
}

// Of one read some layers, one part each. Windows of tokens follow each other: what has come so far is whole up to a token. In
// each of them comes next the read whose next layer is the lowest, of several the first.
struct KvPartsHead {
  uint64_t lease = 0;  // under which the blocks are kept
  int64_t read = 0;    // its place in the list
  int64_t first_layer = 0, num_layers = 0;
  int64_t first_token = 0, num_tokens = 0;
  std::vector<uint32_t> checksums;  // of each part
};
LADDER_WIRE_FORM(KvPartsHead) {
  auto& [lease, read, first_layer, num_layers, first_token, num_tokens, checksums] = value;
  wire(lease, read, first_layer, num_layers, first_token, num_tokens, checksums);
}

// No more parts come. `error`: why they are fewer than were asked for; empty: they are all.
struct KvReadEnd {
  std::string error;
};
LADDER_WIRE_FORM(KvReadEnd) {
  auto& [error] = value;
  wire(error);
}

// Nobody reads it any more.
struct KvDone {
  std::string remote_request_id;
  uint64_t lease = 0;  // 0: nothing was read
};
LADDER_WIRE_FORM(KvDone) {
  auto& [id, lease] = value;
  wire(id, lease);
}

// Whether the lease has been valid until now: what was read is what the blocks held for it.
struct KvConfirmed {
  bool valid = false;
};
LADDER_WIRE_FORM(KvConfirmed) {
  auto& [valid] = value;
  wire(valid);
}

// They are still wanted.
struct KvHeartbeat {
  std::vector<std::string> remote_request_ids;
};
LADDER_WIRE_FORM(KvHeartbeat) {
  auto& [ids] = value;
  wire(ids);
}

using KvMessage = std::variant<std::monostate, KvWelcome, KvReadRequest, KvPartsHead, KvReadEnd, KvDone,
                               KvConfirmed, KvHeartbeat>;

void send_kv_message(KvChannel& channel, const KvMessage& message, KvDeadline deadline,
                     std::span<const std::byte> body = {});
// With a body that lies where the channel has room for it (KvChannel::room_for).
void send_kv_parts(KvChannel& channel, const KvPartsHead& parts, const KvBody& body, KvDeadline deadline);
// With the bytes of body that follow. KvChannelError: it is no message.
struct ReceivedKvMessage {
  KvMessage message;
  size_t body_size = 0;
};
ReceivedKvMessage receive_kv_message(KvChannel& channel, KvDeadline deadline);
// One of this kind, without a body. KvChannelError: another one.
template <class T>
T receive_kv_message_of(KvChannel& channel, KvDeadline deadline) {
  ReceivedKvMessage received = receive_kv_message(channel, deadline);
  T* const message = std::get_if<T>(&received.message);
  if (message == nullptr || received.body_size != 0)
    throw KvChannelError("the peer sends what was not asked for");
  return std::move(*message);
}

}  // namespace ladder
