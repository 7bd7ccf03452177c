// From the blocks of a cache into one piece, and back. The simple version, of one of the tensors:
//
//   for head in part.heads:
//     for token in part.tokens:
//       packed[head][token] = cache[block_table[token / block_size]][token % block_size][head]
//
// What each further line buys:
//
//   runs of tokens      within a block all tokens of a head are one step apart: one copy of rows, not one lookup a token
//   merged runs         blocks that lie one behind the other are one run: with one head per rank (or heads outside of the
//                       tokens) a prompt is then one memcpy
//   the cache's order   rows are copied as they lie in the cache, not head by head
//   rows of known size  a copy of 256 bytes that the compiler knows to be one is a few instructions, not a call
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/core/device.h"
#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/layout/kv_layout.h"

namespace ladder {

namespace {

// Rows of one run of tokens: one row for each token and head. In the packed bytes the tokens of a head lie one behind the other.
struct Rows {
  char* cache = nullptr;
  Device device;
  int64_t token_pitch = 0, head_pitch = 0;  // bytes from one row to the next, in the cache
  int64_t packed_offset = 0;
  int64_t packed_head_pitch = 0;
  int64_t bytes = 0;  // of a row
  int64_t tokens = 0, heads = 0;
};

// One of a cache's tensors.
struct Plane {
  const Tensor* tensor = nullptr;
  int64_t packed_offset = 0;
  int64_t row_bytes = 0;
};

struct Planes {
  std::array<Plane, 4> planes;
  size_t count = 0;
};

// Where the tensors of a layer lie in a part's bytes.
Planes planes_of(const KvCacheView& cache, const KvPart& part) {
  Planes result;
  int64_t offset = 0;
  for (const Tensor* tensor : {&cache.k, &cache.v, &cache.k_scales, &cache.v_scales}) {
    if (!tensor->defined()) continue;
    const int64_t row_bytes = tensor->dim(3) * dtype_size(tensor->dtype());
    result.planes[result.count++] = {tensor, offset, row_bytes};
    offset += part.num_heads * part.num_tokens * row_bytes;
  }
  return result;
}

// Which cache a part is in, and which heads the cache keeps.
struct Place {
  const KvCacheView* cache = nullptr;
  HeadRange heads;
};

Place find_place(const KvLayout& layout, const RankKvCaches& caches, const KvPart& part,
                 std::string_view op) {
  LADDER_CHECK(part.layer >= caches.layers.begin && part.layer < caches.layers.end,
               "{}: rank {} keeps layers {} to {}, not {}", op, caches.rank, caches.layers.begin,
               caches.layers.end - 1, part.layer);
  const KvCacheView& cache = caches.caches[static_cast<size_t>(part.layer - caches.layers.begin)];
  expect_kv_cache(cache, layout.dtype, layout.k_dim, layout.v_dim, op);
  const HeadRange heads =
      heads_of_rank(layout.num_kv_heads, layout.tensor_parallel_size, caches.place.tensor_rank);
  LADDER_CHECK(cache.kept_as == layout.kept_as && cache.k.dim(2) == heads.count,
               "{}: the cache of rank {} is not what its layout says", op, caches.rank);
  LADDER_CHECK(cache.k.stride(3) == 1 && cache.v.stride(3) == 1, "{}: the numbers of a head are not dense",
               op);
  LADDER_CHECK(part.num_heads >= 1 && part.num_heads <= heads.count && part.first_head >= heads.first &&
                   part.first_head <= heads.first + heads.count - part.num_heads,
               "{}: rank {} keeps {} heads from {} on, not {} from {} on", op, caches.rank, heads.count,
               heads.first, part.num_heads, part.first_head);
  return {&cache, heads};
}

void expect_tokens(const KvCacheView& cache, std::span<const int32_t> block_table, const KvPart& part,
                   std::string_view op) {
  const int64_t block_size = cache.block_size(), room = std::ssize(block_table) * block_size;
  LADDER_CHECK(part.num_tokens >= 1 && part.num_tokens <= room && part.first_token >= 0 &&
                   part.first_token <= room - part.num_tokens,
               "{}: {} tokens from {} on are not in {} blocks of {}", op, part.num_tokens, part.first_token,
               block_table.size(), block_size);
  const int64_t first = part.first_token / block_size,
                last = (part.first_token + part.num_tokens - 1) / block_size;
  for (const int32_t block :
       block_table.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first + 1)))
    LADDER_CHECK(block >= 0 && block < cache.num_blocks(), "{}: block {} of {}", op, block,
                 cache.num_blocks());
}

void expect_size(const KvLayout& layout, const KvPart& part, size_t size, std::string_view op) {
  LADDER_CHECK(std::cmp_equal(size, packed_size(layout, part)),
               "{}: {} bytes of {} tokens of {} heads, expected {}", op, size, part.num_tokens,
               part.num_heads, packed_size(layout, part));
}

// copy(Rows) for each run of tokens of one of the tensors.
template <class Copy>
void for_rows_of(const Plane& plane, HeadRange heads, std::span<const int32_t> block_table,
                 const KvPart& part, Copy copy) {
  const Tensor& tensor = *plane.tensor;
  const int64_t element = dtype_size(tensor.dtype()), block_size = tensor.dim(1);
  const bool blocks_are_dense = tensor.stride(0) == block_size * tensor.stride(1);
  for (int64_t done = 0; done < part.num_tokens;) {
    const int64_t token = part.first_token + done;
    const auto at = static_cast<size_t>(token / block_size);
    const int64_t offset = token % block_size, left = part.num_tokens - done;
    int64_t run = block_size - offset;
    for (size_t next = at + 1;
         blocks_are_dense && run < left && block_table[next] == block_table[next - 1] + 1; ++next)
      run += block_size;
    run = std::min(run, left);
    const int64_t begin = block_table[at] * tensor.stride(0) + offset * tensor.stride(1) +
                          (part.first_head - heads.first) * tensor.stride(2);
    copy(Rows{.cache = static_cast<char*>(tensor.raw()) + begin * element,
              .device = tensor.device(),
              .token_pitch = tensor.stride(1) * element,
              .head_pitch = tensor.stride(2) * element,
              .packed_offset = plane.packed_offset + done * plane.row_bytes,
              .packed_head_pitch = part.num_tokens * plane.row_bytes,
              .bytes = plane.row_bytes,
              .tokens = run,
              .heads = part.num_heads});
    done += run;
  }
}

template <class Copy>
void for_rows(const Place& place, std::span<const int32_t> block_table, const KvPart& part, Copy copy) {
  const Planes planes = planes_of(*place.cache, part);
  for (const Plane& plane : std::span(planes.planes).first(planes.count))
    for_rows_of(plane, place.heads, block_table, part, copy);
}

// copy_row(cache, packed, bytes) for all of them on the host. In the order in which they lie in the cache: a processor fetches
// ahead what is read one behind the other, and of the packed bytes it writes as many streams as there are heads. `kBytes`: what
// rows.bytes is, where the compiler shall know it; 0: anything.
template <int64_t kBytes, class Byte, class CopyRow>
void for_each_row(const Rows& rows, Byte* packed, CopyRow copy_row) {
  const int64_t bytes = kBytes > 0 ? kBytes : rows.bytes;
  for (int64_t token = 0; token < rows.tokens; ++token)
    for (int64_t head = 0; head < rows.heads; ++head)
      copy_row(rows.cache + token * rows.token_pitch + head * rows.head_pitch,
               packed + head * rows.packed_head_pitch + token * bytes, static_cast<size_t>(bytes));
}

// `Byte`: std::byte, or const where it is read.
template <class Byte, class CopyRow>
void copy_on_host(const Rows& rows, Byte* packed, CopyRow copy_row) {
  if (rows.token_pitch == rows.bytes) {  // the tokens of a head are one row
    Rows whole = rows;
    whole.bytes *= rows.tokens;
    whole.tokens = 1;
    return for_each_row<0>(whole, packed, copy_row);
  }
  switch (rows.bytes) {
    case 8:  // the scales of a head's codes
      return for_each_row<8>(rows, packed, copy_row);
    case 128:
      return for_each_row<128>(rows, packed, copy_row);
    case 256:
      return for_each_row<256>(rows, packed, copy_row);
    default:
      return for_each_row<0>(rows, packed, copy_row);
  }
}

// The same numbers in another dtype. The bytes need not be aligned.
template <class From, class To>
void convert(const std::byte* from, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From number;
    std::memcpy(&number, from + i * static_cast<int64_t>(sizeof number), sizeof number);
    const To converted = static_cast<To>(static_cast<float>(number));
    std::memcpy(to + i * static_cast<int64_t>(sizeof converted), &converted, sizeof converted);
  }
}

void unpack_same(const Place& place, std::span<const int32_t> block_table, const KvPart& part,
                 const std::byte* packed) {
  for_rows(place, block_table, part, [&](const Rows& rows) {
    const std::byte* const from = packed + rows.packed_offset;
    if (rows.device.is_cpu())
      return copy_on_host(rows, from, [](char* cache, const std::byte* bytes, size_t size) {
        std::memcpy(cache, bytes, size);
      });
    for (int64_t head = 0; head < rows.heads; ++head)
      device_copy_rows(rows.cache + head * rows.head_pitch, rows.device, rows.token_pitch,
                       from + head * rows.packed_head_pitch, Device{}, rows.bytes, rows.bytes, rows.tokens);
  });
}

}  // namespace

void pack_kv(const KvLayout& layout, const RankKvCaches& caches, std::span<const int32_t> block_table,
             const KvPart& part, std::span<std::byte> packed) {
  const Place place = find_place(layout, caches, part, "pack_kv");
  expect_tokens(*place.cache, block_table, part, "pack_kv");
  expect_size(layout, part, packed.size(), "pack_kv");
  for_rows(place, block_table, part, [&](const Rows& rows) {
    std::byte* const to = packed.data() + rows.packed_offset;
    if (rows.device.is_cpu())
      return copy_on_host(rows, to, [](const char* cache, std::byte* bytes, size_t size) {
        std::memcpy(bytes, cache, size);
      });
    for (int64_t head = 0; head < rows.heads; ++head)
      device_copy_rows(to + head * rows.packed_head_pitch, Device{}, rows.bytes,
                       rows.cache + head * rows.head_pitch, rows.device, rows.token_pitch, rows.bytes,
                       rows.tokens);
  });
}

void unpack_kv(const KvLayout& layout, const RankKvCaches& caches, std::span<const int32_t> block_table,
               const KvPart& part, std::span<const std::byte> packed, DType packed_dtype) {
  const Place place = find_place(layout, caches, part, "unpack_kv");
  expect_tokens(*place.cache, block_table, part, "unpack_kv");
  KvLayout sender = layout;
  sender.dtype = packed_dtype;
  expect_size(sender, part, packed.size(), "unpack_kv");
  if (packed_dtype == layout.dtype || layout.kept_as != KvCacheDType::automatic)
    return unpack_same(place, block_table, part, packed.data());
  const int64_t size = packed_size(layout, part), count = size / dtype_size(layout.dtype);
  const auto converted = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(size));
  with_float_type(packed_dtype, "unpack_kv", [&](auto from) {
    with_float_type(layout.dtype, "unpack_kv", [&](auto to) {
      convert<decltype(from), decltype(to)>(packed.data(), converted.get(), count);
    });
  });
  unpack_same(place, block_table, part, converted.get());
}

}  // namespace ladder
