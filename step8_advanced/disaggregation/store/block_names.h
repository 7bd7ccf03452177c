#pragma once
// The names of a sequence's full blocks in a store, each computed once.
#include <span>
#include <vector>

#include "step3_sequence/prefix/block_hash.h"

namespace ladder {

struct KvBlockNames {
  BlockHash root;
  std::vector<BlockHash> names;

  // Of the block behind those that are named.
  const BlockHash& add(BlockHasher& hasher, std::span<const int32_t> block_tokens) {
    return names.emplace_back(hasher.block(names.empty() ? root : names.back(), block_tokens));
  }
};

}  // namespace ladder
