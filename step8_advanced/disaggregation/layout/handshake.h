#pragma once
// The first message that each end of a connection sends: who it is, and what must be the same on both.
//
//   bytes    what                                                  compared
//   8        "LADDERKV"                                            first: is this an engine of ours at all
//   4        version                                               then: may the rest be read
//   4 x 32   SHA-256 of: config and tokenizer; weights;            then, before anything of variable length is decoded:
//            layers, heads and sizes; codes of the cache           each is what the error names
//   4 + 4    CRC-32C and size of the rest                          a flipped bit is no other engine
//   rest     engine id, role, layout                               every length and number checked
//
// Tensor ranks, stages, block sizes and float dtypes are in the layout and may differ (kv_layout.h). vLLM compares one hash
// over all of it (NIXL's compatibility hash), which can be refused but says not why.
#include <cstdint>
#include <string>
#include <string_view>

#include "step8_advanced/disaggregation/layout/kv_layout.h"
#include "step8_advanced/disaggregation/layout/model_fingerprint.h"

namespace ladder {

// Of the messages between two engines and of the packed bytes. Whoever changes either counts it up.
inline constexpr uint32_t kKvProtocolVersion = 2;
inline constexpr size_t kMaxEngineId = 128;

// Of this end of the connection. An engine may have connections of both kinds.
enum class KvRole : uint8_t { wants, gives };

struct KvHandshake {
  ModelFingerprint model;
  KvLayout layout;
  std::string engine_id;  // a new one each time an engine starts: 1 to kMaxEngineId printable characters
  KvRole role = KvRole::wants;
  bool operator==(const KvHandshake&) const = default;
};

std::string handshake_bytes(const KvHandshake& mine);

// Theirs. Error, one line that names what differs from mine, or what is wrong with the bytes, whatever they are: they come
// from anybody who can connect.
KvHandshake check_peer(const KvHandshake& mine, std::string_view their_bytes);

}  // namespace ladder
