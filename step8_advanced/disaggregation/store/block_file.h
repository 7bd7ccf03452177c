#pragma once
// A file of the prefix store: keys and values of one full block of tokens, and whose they are.
//
//   bytes     what
//   8         "LADDERKB"
//   4         version
//   4 + 4     size of the head, and its CRC-32C
//   head      32: SHA-256 of the model, its weights and the layout (kv_store_space)
//             32: name of the root: who may share at all (salt, adapter)
//             32: name of the block, after which the file is called
//             4 + 4 each: tokens, all from the sequence's first to the block's last
//             4 + 4 each: CRC-32C of each part
//   0..63     zeros: the body begins at a multiple of 64
//   body      the block's parts (layout/kv_layout.h), rank by rank, of each rank its layers
//
// A name covers all tokens before (step3_sequence/prefix/block_hash.h), and is not believed: who reads compares the tokens, as
// the prefix index does. So another prompt's keys are never decoded, whatever the hash function does; the price is 4 bytes for
// each token before, 16 KB in a block of 2.4 MB behind 4,096 tokens of Qwen3-8B.
//
// Ideas: vLLM's ExampleConnector (vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py, a folder for each prompt),
// LMCache's local disk backend (chunks of 256 tokens under chained hashes, a worker and a model in their names).
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "step3_sequence/prefix/block_hash.h"
#include "step8_advanced/disaggregation/layout/kv_layout.h"
#include "step8_advanced/disaggregation/layout/model_fingerprint.h"

namespace ladder {

// Of the file and of the packed bytes. Whoever changes either counts it up.
inline constexpr uint32_t kKvBlockFileVersion = 1;

// Whose keys are of use to each other's queries, bit by bit. Ranks and block size are among it: another layout is another space.
Sha256Digest kv_store_space(const ModelFingerprint& model, const KvLayout& layout);

// What a block's keys and values depend on.
struct KvBlockKey {
  Sha256Digest space{};
  BlockHash root, name;
  std::vector<int32_t> tokens;  // to the block's last
};

// Where in a body which rank's parts lie.
struct KvBlockPiece {
  int rank = 0;
  KvPart part;  // tokens [0, block_size) of its first layer
  int64_t num_layers = 0;
  int64_t first_part = 0;  // of the body's: number of the checksum
  size_t offset = 0, size = 0;
};

struct KvBlockShape {
  std::vector<KvBlockPiece> saved;   // each once: of ranks that keep the same heads one gives them
  std::vector<KvBlockPiece> loaded;  // each rank's: such ranks take the same piece
  int64_t num_parts = 0;
  size_t body_size = 0;
};
KvBlockShape kv_block_shape(const KvLayout& layout);

// All that stands before the body.
std::string kv_block_head(const KvBlockKey& key, std::span<const uint32_t> checksums);
size_t kv_block_head_size(size_t num_tokens, int64_t num_parts);

// `head`: as many bytes from a file's beginning as kv_block_head_size() says. Returns the checksums of its `num_parts` parts. Error,
// one line that says what is not as it should be, whatever the bytes are: it is no such file, of another version, damaged, or of
// another key.
std::vector<uint32_t> check_kv_block_head(const KvBlockKey& key, int64_t num_parts,
                                          std::span<const std::byte> head);

}  // namespace ladder
