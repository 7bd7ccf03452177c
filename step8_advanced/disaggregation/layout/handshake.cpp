#include "step8_advanced/disaggregation/layout/handshake.h"

#include <algorithm>
#include <array>
#include <span>

#include "step1_layers/attention/kv_codes.h"
#include "step6_engine/process/wire.h"
#include "step8_advanced/disaggregation/layout/kv_checksum.h"

namespace ladder {

LADDER_WIRE_FORM(KvLayout) {
  auto& [num_layers, num_kv_heads, k_dim, v_dim, dtype, kept_as, tensor_parallel_size, stage_ends,
         block_size] = value;
  wire(num_layers, num_kv_heads, k_dim, v_dim, dtype, kept_as, tensor_parallel_size, stage_ends, block_size);
  check_enum(dtype, DType::f64);
  check_enum(kept_as, KvCacheDType::int4);
}

namespace {

using Magic = std::array<char, 8>;
constexpr Magic kMagic = {'L', 'A', 'D', 'D', 'E', 'R', 'K', 'V'};

// What must be equal, in the order in which it is compared.
struct MustBeEqual {
  std::string_view what;
  Sha256Digest (*digest)(const KvHandshake&);
};

Sha256Digest digest_of_shape(const KvHandshake& handshake) {
  const KvLayout& layout = handshake.layout;
  Sha256 hash;
  for (const int64_t number : {layout.num_layers, layout.num_kv_heads, layout.k_dim, layout.v_dim})
    hash.add_number(number);
  return hash.finish();
}

Sha256Digest digest_of_codes(const KvHandshake& handshake) {
  Sha256 hash;
  hash.add(kv_cache_dtype_name(handshake.layout.kept_as));
  return hash.finish();
}

constexpr MustBeEqual kMustBeEqual[] = {
    {"model: its config.json or tokenizer", [](const KvHandshake& of) { return of.model.model; }},
    {"model's weights", [](const KvHandshake& of) { return of.model.weights; }},
    {"KV cache: its layers, heads or their sizes", digest_of_shape},
    {"KV cache's dtype: --kv-cache-dtype", digest_of_codes},
};

uint32_t checksum_of(std::string_view bytes) {
  return kv_checksum(std::as_bytes(std::span(bytes)));
}

bool is_engine_id(std::string_view id) {
  return !id.empty() && id.size() <= kMaxEngineId &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 127; });
}

}  // namespace

std::string handshake_bytes(const KvHandshake& mine) {
  LADDER_CHECK(is_engine_id(mine.engine_id), "an engine's id: expected 1 to {} printable characters",
               kMaxEngineId);
  std::string bytes;
  WireWriter wire(bytes);
  wire(kMagic, kKvProtocolVersion);
  for (const MustBeEqual& one : kMustBeEqual) wire(one.digest(mine));
  std::string rest;
  WireWriter{rest}(mine.engine_id, mine.role, mine.layout);
  wire(checksum_of(rest), rest);
  return bytes;
}

KvHandshake check_peer(const KvHandshake& mine, std::string_view their_bytes) {
  WireReader wire(their_bytes);
  LADDER_CHECK(wire.value<Magic>() == kMagic, "the other end is no engine of Ladder's");
  const auto version = wire.value<uint32_t>();
  LADDER_CHECK(
      version == kKvProtocolVersion,
      "the other engine speaks version {} of the KV transfer, this one version {}: expected the same "
      "program",
      version, kKvProtocolVersion);
  for (const MustBeEqual& one : kMustBeEqual)
    LADDER_CHECK(wire.value<Sha256Digest>() == one.digest(mine), "the other engine has another {}", one.what);

  const auto checksum = wire.value<uint32_t>();
  const auto rest = wire.value<std::string>();
  wire.expect_end();
  LADDER_CHECK(checksum_of(rest) == checksum, "the other engine's handshake is damaged");
  KvHandshake theirs;
  theirs.model = mine.model;
  WireReader in(rest);
  in(theirs.engine_id, theirs.role, theirs.layout);
  in.expect_end();
  check_enum(theirs.role, KvRole::gives);
  LADDER_CHECK(is_engine_id(theirs.engine_id), "the other engine's id: expected 1 to {} printable characters",
               kMaxEngineId);
  LADDER_CHECK(theirs.role != mine.role, "both engines {} keys and values: expected one that {}",
               mine.role == KvRole::wants ? "want" : "give", mine.role == KvRole::wants ? "gives" : "wants");
  expect_kv_layout(theirs.layout);
  expect_alike(theirs.layout, mine.layout);
  return theirs;
}

}  // namespace ladder
