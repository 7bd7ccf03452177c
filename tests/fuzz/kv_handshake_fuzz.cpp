// Input: a peer's first message, and what is in one behind its digests, rightly signed. Whatever it is, the answer is an Error
// or a peer from whose layout can be read.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "step6_engine/process/wire.h"
#include "step8_advanced/disaggregation/layout/handshake.h"
#include "step8_advanced/disaggregation/layout/kv_checksum.h"

namespace {

using ladder::KvHandshake;

const KvHandshake& reader() {
  static const KvHandshake handshake = [] {
    KvHandshake mine;
    mine.layout = {.num_layers = 4,
                   .num_kv_heads = 8,
                   .k_dim = 6,
                   .v_dim = 10,
                   .tensor_parallel_size = 2,
                   .stage_ends = {2, 4},
                   .block_size = 4};
    mine.engine_id = "reader";
    return mine;
  }();
  return handshake;
}

void meet(std::string_view bytes) {
  try {
    const KvHandshake theirs = ladder::check_peer(reader(), bytes);
    ladder::kv_reads(theirs.layout, reader().layout);
    ladder::handshake_bytes(theirs);
  } catch (const ladder::Error&) {
  }
}

std::string with_rest(const std::string& rest) {
  constexpr size_t kBeforeChecksum = 8 + 4 + 4 * 32;
  std::string bytes = ladder::handshake_bytes(reader()).substr(0, kBeforeChecksum);
  ladder::WireWriter{bytes}(ladder::kv_checksum(std::as_bytes(std::span(rest))), rest);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  meet(bytes);
  meet(with_rest(bytes));
  return 0;
}
