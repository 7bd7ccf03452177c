#include "step8_advanced/disaggregation/store/block_file.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/core/error.h"
#include "step6_engine/process/wire.h"
#include "step8_advanced/disaggregation/layout/kv_checksum.h"

namespace ladder {

namespace {

using Magic = std::array<char, 8>;
constexpr Magic kMagic = {'L', 'A', 'D', 'D', 'E', 'R', 'K', 'B'};
constexpr size_t kBeforeHead = sizeof(Magic) + 3 * sizeof(uint32_t);
constexpr size_t kBodyAlignment = 64;

size_t size_of_key_and_checksums(size_t num_tokens, int64_t num_parts) {
  return sizeof(Sha256Digest) + 2 * sizeof(BlockHash) + 2 * sizeof(uint32_t) + num_tokens * sizeof(int32_t) +
         static_cast<size_t>(num_parts) * sizeof(uint32_t);
}

}  // namespace

Sha256Digest kv_store_space(const ModelFingerprint& model, const KvLayout& layout) {
  Sha256 hash;
  hash.add_number(kKvBlockFileVersion);
  hash.add(model.model.data(), model.model.size());
  hash.add(model.weights.data(), model.weights.size());
  for (const int64_t number :
       {layout.num_layers, layout.num_kv_heads, layout.k_dim, layout.v_dim,
        static_cast<int64_t>(layout.dtype), static_cast<int64_t>(layout.tensor_parallel_size),
        layout.block_size, std::ssize(layout.stage_ends)})
    hash.add_number(number);
  for (const int64_t end : layout.stage_ends) hash.add_number(end);
  hash.add(kv_cache_dtype_name(layout.kept_as));
  return hash.finish();
}

KvBlockShape kv_block_shape(const KvLayout& layout) {
  KvLayout joined = layout;  // as if one rank kept all of it
  joined.tensor_parallel_size = 1;
  joined.stage_ends = {layout.num_layers};
  KvBlockShape shape;
  for (const KvRead& read : kv_reads(layout, joined)) {
    KvBlockPiece piece{read.from_rank,
                       {read.first_layer, read.first_head, read.num_heads, 0, layout.block_size},
                       read.num_layers,
                       shape.num_parts,
                       shape.body_size};
    piece.size = static_cast<size_t>(read.num_layers * packed_size(layout, piece.part));
    shape.num_parts += piece.num_layers;
    shape.body_size += piece.size;
    shape.saved.push_back(piece);
  }
  for (const KvRead& read : kv_reads(joined, layout)) {
    const auto piece = std::ranges::find_if(shape.saved, [&](const KvBlockPiece& one) {
      return one.part.layer == read.first_layer && one.part.first_head == read.first_head &&
             one.part.num_heads == read.num_heads && one.num_layers == read.num_layers;
    });
    LADDER_CHECK(piece != shape.saved.end(), "prefix store: rank {} keeps what no piece of a block is",
                 read.to_rank);
    shape.loaded.push_back(*piece);
    shape.loaded.back().rank = read.to_rank;
  }
  return shape;
}

size_t kv_block_head_size(size_t num_tokens, int64_t num_parts) {
  const size_t size = kBeforeHead + size_of_key_and_checksums(num_tokens, num_parts);
  return (size + kBodyAlignment - 1) / kBodyAlignment * kBodyAlignment;
}

std::string kv_block_head(const KvBlockKey& key, std::span<const uint32_t> checksums) {
  std::string head;
  WireWriter{head}(key.space, key.root.words, key.name.words, key.tokens,
                   std::vector<uint32_t>(checksums.begin(), checksums.end()));
  std::string bytes;
  WireWriter{bytes}(kMagic, kKvBlockFileVersion, static_cast<uint32_t>(head.size()),
                    kv_checksum(std::as_bytes(std::span(head))));
  bytes += head;
  bytes.resize(kv_block_head_size(key.tokens.size(), std::ssize(checksums)));
  return bytes;
}

std::vector<uint32_t> check_kv_block_head(const KvBlockKey& key, int64_t num_parts,
                                          std::span<const std::byte> head) {
  const std::string_view bytes(reinterpret_cast<const char*>(head.data()), head.size());
  WireReader before(bytes);
  LADDER_CHECK(before.value<Magic>() == kMagic, "it is no block of a prefix store");
  const auto version = before.value<uint32_t>();
  LADDER_CHECK(version == kKvBlockFileVersion, "its version is {}, expected {}", version,
               kKvBlockFileVersion);
  const auto size = before.value<uint32_t>(), checksum = before.value<uint32_t>();
  LADDER_CHECK(size == size_of_key_and_checksums(key.tokens.size(), num_parts) &&
                   bytes.size() == kv_block_head_size(key.tokens.size(), num_parts),
               "its head has {} bytes, and not those of {} tokens and {} parts", size, key.tokens.size(),
               num_parts);
  const std::string_view rest = bytes.substr(kBeforeHead, size);
  LADDER_CHECK(kv_checksum(std::as_bytes(std::span(rest))) == checksum, "its head is damaged");
  LADDER_CHECK(std::ranges::all_of(bytes.substr(kBeforeHead + size), [](char c) { return c == 0; }),
               "what stands before its body is damaged");

  WireReader in(rest);
  LADDER_CHECK(in.value<Sha256Digest>() == key.space, "it is another model's, or of another layout");
  LADDER_CHECK(in.value<decltype(BlockHash::words)>() == key.root.words, "it is another salt's or adapter's");
  LADDER_CHECK(in.value<decltype(BlockHash::words)>() == key.name.words, "it has another block's name");
  LADDER_CHECK(in.value<std::vector<int32_t>>() == key.tokens, "it is of other tokens");
  const auto checksums = in.value<std::vector<uint32_t>>();
  in.expect_end();
  LADDER_CHECK(std::ssize(checksums) == num_parts, "it has {} parts, expected {}", checksums.size(),
               num_parts);
  return checksums;
}

}  // namespace ladder
