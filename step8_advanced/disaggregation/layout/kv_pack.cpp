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
#include "step8_advanced/disaggregation/layout/kv_move.h"

#ifdef LADDER_HAS_CUDA
#include "step8_advanced/disaggregation/layout/kv_move_cuda.h"
#endif

namespace ladder {

namespace {

// Rows of one run of tokens: one row for each token and head. In the packed bytes the tokens of a head lie one behind the other.
struct Rows {
  char* cache = nullptr;
  int64_t token_pitch = 0, head_pitch = 0;  // bytes from one row to the next, in the cache
  int64_t packed_offset = 0;
  int64_t packed_head_pitch = 0;
  int64_t bytes = 0;  // of a row
  int64_t tokens = 0, heads = 0;
};

// Of one of a cache's tensors from the part's first head on; its packed rows begin at `offset`.
KvPlane plane_of(const Tensor& tensor, int64_t first_head, int64_t packed_row_bytes, int64_t offset) {
  const int64_t element = dtype_size(tensor.dtype());
  return {.cache = static_cast<char*>(tensor.raw()) + first_head * tensor.stride(2) * element,
          .block_pitch = tensor.stride(0) * element,
          .token_pitch = tensor.stride(1) * element,
          .head_pitch = tensor.stride(2) * element,
          .row_bytes = tensor.dim(3) * element,
          .packed_offset = offset,
          .packed_row_bytes = packed_row_bytes};
}

// Which cache a part is in, and the first of its heads there.
struct Place {
  const KvCacheView* cache = nullptr;
  int64_t first_head = 0;
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
  return {&cache, part.first_head - heads.first};
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

// copy(Rows) for each run of tokens of a plane.
template <class Copy>
void for_rows_of(const KvPlane& plane, const KvMoveArgs& args, Copy copy) {
  const int64_t block_size = args.block_size;
  const bool blocks_are_dense = plane.block_pitch == block_size * plane.token_pitch;
  for (int64_t done = 0; done < args.num_tokens;) {
    const int64_t token = args.first_token + done;
    const auto at = static_cast<size_t>(token / block_size);
    const int64_t offset = token % block_size, left = args.num_tokens - done;
    int64_t run = block_size - offset;
    for (size_t next = at + 1;
         blocks_are_dense && run < left && args.block_table[next] == args.block_table[next - 1] + 1; ++next)
      run += block_size;
    run = std::min(run, left);
    copy(Rows{.cache = plane.cache + args.block_table[at] * plane.block_pitch + offset * plane.token_pitch,
              .token_pitch = plane.token_pitch,
              .head_pitch = plane.head_pitch,
              .packed_offset = plane.packed_offset + done * plane.row_bytes,
              .packed_head_pitch = args.num_tokens * plane.row_bytes,
              .bytes = plane.row_bytes,
              .tokens = run,
              .heads = args.num_heads});
    done += run;
  }
}

template <class Copy>
void for_rows(const KvMoveArgs& args, Copy copy) {
  for (const KvPlane& plane : args.planes) for_rows_of(plane, args, copy);
}

// copy_row(cache, packed, bytes) for all of them on the host. In the order in which they lie in the cache: a processor fetches
// ahead what is read one behind the other, and of the packed bytes it writes as many streams as there are heads. `kBytes`: what
// rows.bytes is, where the compiler shall know it; 0: anything.
template <int64_t kBytes, class CopyRow>
void for_each_row(const Rows& rows, std::byte* packed, CopyRow copy_row) {
  const int64_t bytes = kBytes > 0 ? kBytes : rows.bytes;
  for (int64_t token = 0; token < rows.tokens; ++token)
    for (int64_t head = 0; head < rows.heads; ++head)
      copy_row(rows.cache + token * rows.token_pitch + head * rows.head_pitch,
               packed + head * rows.packed_head_pitch + token * bytes, static_cast<size_t>(bytes));
}

template <class CopyRow>
void copy_on_host(const Rows& rows, std::byte* packed, CopyRow copy_row) {
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

// Of memory that the host can read: its own, or a played device's.
void move_rows_on_host(const OpContext& /*ctx*/, const KvMoveArgs& args) {
  for_rows(args, [&](const Rows& rows) {
    std::byte* const packed = args.packed + rows.packed_offset;
    if (args.packs)
      copy_on_host(rows, packed,
                   [](const char* cache, std::byte* bytes, size_t size) { std::memcpy(bytes, cache, size); });
    else
      copy_on_host(rows, packed,
                   [](char* cache, const std::byte* bytes, size_t size) { std::memcpy(cache, bytes, size); });
  });
}

#ifdef LADDER_HAS_CUDA
void move_rows_on_gpu(const OpContext& ctx, const KvMoveArgs& args) {
  for_rows(args, [&](const Rows& rows) {
    for (int64_t head = 0; head < rows.heads; ++head) {
      char* const cache = rows.cache + head * rows.head_pitch;
      std::byte* const packed = args.packed + rows.packed_offset + head * rows.packed_head_pitch;
      if (args.packs)
        device_copy_rows(packed, ctx.device, rows.bytes, cache, ctx.device, rows.token_pitch, rows.bytes,
                         rows.tokens, ctx.stream);
      else
        device_copy_rows(cache, ctx.device, rows.token_pitch, packed, ctx.device, rows.bytes, rows.bytes,
                         rows.tokens, ctx.stream);
    }
  });
}
#endif

bool same_dtype(const KvMoveArgs& args) {
  return !args.converts();
}

constexpr Variant<KvMoveArgs> kMoves[] = {
    {.name = "rows",
     .idea = "a copy for each row, in the cache's order",
     .supports = same_dtype,
     .run = move_rows_on_host},
#ifdef LADDER_HAS_CUDA
    {.name = "rows",
     .device = DeviceType::cuda,
     .idea = "a two-dimensional copy for each layer, head and run of tokens",
     .supports = same_dtype,
     .run = move_rows_on_gpu},
    {.name = "gather",
     .device = DeviceType::cuda,
     .idea = "one kernel for all layers of a message, 16 bytes at a time; other dtypes on the way",
     .run = kv_move_gather},
#endif
};

void expect_on_host(const RankKvCaches& caches, std::string_view op) {
  for (const KvCacheView& cache : caches.caches)
    LADDER_CHECK(cache.k.device().type != DeviceType::cuda, "{}: caches on {} are a KvCopier's", op,
                 device_name(cache.k.device()));
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

}  // namespace

std::span<const Variant<KvMoveArgs>> kv_move_variants() {
  return kMoves;
}

void kv_move(const OpContext& ctx, const KvMoveArgs& args) {
  run_variant<KvMoveArgs>("kv_move", kMoves, ctx, args);
}

KvMoveArgs kv_move_args(const KvLayout& layout, const RankKvCaches& caches,
                        std::span<const int32_t> block_table, const KvPart& part, int64_t num_layers,
                        const KvBody& packed, DType packed_dtype, std::string_view op) {
  KvLayout sender = layout;
  if (layout.kept_as == KvCacheDType::automatic) sender.dtype = packed_dtype;
  KvMoveArgs args;
  args.packs = op == "pack_kv";
  args.block_table = block_table;
  args.first_token = part.first_token;
  args.num_tokens = part.num_tokens;
  args.num_heads = part.num_heads;
  args.packed = packed.data;
  args.packed_dtype = sender.dtype;
  args.cache_dtype = layout.dtype;
  int64_t offset = 0;
  KvPart of_layer = part;
  for (int64_t i = 0; i < num_layers; ++i, ++of_layer.layer) {
    const Place place = find_place(layout, caches, of_layer, op);
    const KvCacheView& cache = *place.cache;
    if (i == 0) expect_tokens(cache, block_table, part, op);
    args.block_size = cache.block_size();
    for (const Tensor* tensor : {&cache.k, &cache.v, &cache.k_scales, &cache.v_scales}) {
      if (!tensor->defined()) continue;
      const bool is_float = layout.kept_as == KvCacheDType::automatic;
      const int64_t row_bytes = tensor->dim(3) * dtype_size(is_float ? sender.dtype : tensor->dtype());
      args.planes.push_back(plane_of(*tensor, place.first_head, row_bytes, offset));
      offset += part.num_heads * part.num_tokens * row_bytes;
    }
  }
  LADDER_CHECK(std::cmp_equal(packed.size, num_layers * packed_size(sender, part)),
               "{}: {} bytes of {} tokens of {} heads, expected {}", op, packed.size, part.num_tokens,
               part.num_heads, num_layers * packed_size(sender, part));
  return args;
}

size_t kv_tables_size(const KvMoveArgs& args) {
  const int64_t first = args.first_token / args.block_size,
                last = (args.first_token + args.num_tokens - 1) / args.block_size;
  return args.planes.size() * sizeof(KvPlane) + static_cast<size_t>(last - first + 1) * sizeof(int32_t);
}

void write_kv_tables(const KvMoveArgs& args, std::byte* to) {
  const size_t of_planes = args.planes.size() * sizeof(KvPlane);
  std::memcpy(to, args.planes.data(), of_planes);
  std::memcpy(to + of_planes, &args.block_table[static_cast<size_t>(args.first_token / args.block_size)],
              kv_tables_size(args) - of_planes);
}

void pack_kv(const KvLayout& layout, const RankKvCaches& caches, std::span<const int32_t> block_table,
             const KvPart& part, std::span<std::byte> packed, int64_t num_layers) {
  expect_on_host(caches, "pack_kv");
  kv_move({}, kv_move_args(layout, caches, block_table, part, num_layers, packed, layout.dtype, "pack_kv"));
}

void unpack_kv(const KvLayout& layout, const RankKvCaches& caches, std::span<const int32_t> block_table,
               const KvPart& part, std::span<const std::byte> packed, DType packed_dtype,
               int64_t num_layers) {
  expect_on_host(caches, "unpack_kv");
  const KvBody body({const_cast<std::byte*>(packed.data()), packed.size()});  // which is only read
  KvMoveArgs args =
      kv_move_args(layout, caches, block_table, part, num_layers, body, packed_dtype, "unpack_kv");
  if (!args.converts()) return kv_move({}, args);
  const int64_t size = num_layers * packed_size(layout, part), count = size / dtype_size(layout.dtype);
  const auto converted = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(size));
  with_float_type(packed_dtype, "unpack_kv", [&](auto from) {
    with_float_type(layout.dtype, "unpack_kv", [&](auto to) {
      convert<decltype(from), decltype(to)>(packed.data(), converted.get(), count);
    });
  });
  unpack_kv(layout, caches, block_table, part, {converted.get(), static_cast<size_t>(size)}, layout.dtype,
            num_layers);
}

}  // namespace ladder
