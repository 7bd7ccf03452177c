#pragma once
// The checksum of what travels: CRC-32C (Castagnoli's polynomial, RFC 3720 appendix B.4), which finds every error of up to 32
// bits in a row and all but one in 2^32 of the others. It is no protection from somebody who wants to deceive.
//
// Processors have an instruction for it (SSE 4.2: 8 bytes, one after the other every 3 cycles). Three streams of it run at once
// here, each over a third of the bytes, and are put together with a table: Gopal et al., "Fast CRC computation for iSCSI
// polynomial using CRC32 instruction", Intel, 2011.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "step8_advanced/disaggregation/transport/kv_body.h"

namespace ladder {

// Its bits in reverse: the first bit of a byte is its lowest.
inline constexpr uint32_t kKvChecksumPolynomial = 0x82f63b78;

// `before`: of what came before these bytes, so that pieces give the checksum of the whole.
uint32_t kv_checksum(std::span<const std::byte> bytes, uint32_t before = 0);

// The same on a processor without the instruction.
uint32_t kv_checksum_by_table(std::span<const std::byte> bytes, uint32_t before = 0);

// Of each of `count` parts of equal size, one behind the other, in the host's memory.
std::vector<uint32_t> kv_checksums_on_host(const KvBody& body, int64_t count);
// Of each of them. Error: they cannot be of equal size.
size_t part_size(const KvBody& body, int64_t count);

}  // namespace ladder
