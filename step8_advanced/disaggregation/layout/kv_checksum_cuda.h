#pragma once
// kv_checksum() of bytes in a GPU's memory.
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ladder {

// On the current device, which a context's stream is of: tables that are looked up, 36 KB. Uploaded once.
std::shared_ptr<void> upload_kv_checksum_tables(void* stream);

// Of `count` parts of `size` bytes each, one behind the other, the complement of each one's checksum into `remainders` (on the
// device as well). Ordered on the stream. Of at most kMaxChecksumBytes a part.
inline constexpr int64_t kMaxChecksumBytes = int64_t{1} << 30;
void kv_checksums_on_gpu(const std::byte* bytes, int64_t size, int64_t count, const void* tables,
                         uint32_t* remainders, void* stream);

}  // namespace ladder
