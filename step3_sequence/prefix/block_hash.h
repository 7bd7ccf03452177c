#pragma once
// Task 3.4: the name of a full block's content: a chained SHA-256.
//
//   root    = SHA-256(secret, salt, adapter)         who may share at all
//   block 0 = SHA-256(root,    tokens of block 0)
//   block i = SHA-256(block i-1, tokens of block i)   so the name of a block covers every token before it
//
// What is hashed is a row of fields: of the root r (the secret), s (the salt), a (the adapter), of a block p (the
// name of its parent), t (its token ids, 4 bytes each), in this order. Every field is preceded by its letter as a
// tag and by its length in bytes (8 bytes). Without them a salt "x" and an adapter "x" would give the same bytes
// and share a cache across users (seen in vLLM, issue 44701). The secret is drawn per process
// unless a seed is configured: names that can be predicted can be aimed at (CVE-2025-25183).
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace ladder {

struct BlockHash {
  std::array<uint64_t, 4> words{};

  bool operator==(const BlockHash&) const = default;
};

// An interface so that a test can inject a hash whose values collide.
class BlockHasher {
 public:
  virtual ~BlockHasher() = default;
  virtual BlockHash root(std::string_view salt, std::string_view adapter) = 0;
  virtual BlockHash block(const BlockHash& parent, std::span<const int32_t> token_ids) = 0;
};

// Not thread-safe: it reuses one digest context.
class Sha256BlockHasher final : public BlockHasher {
 public:
  // `seed`: the same seed gives the same names in every process; none: a random secret.
  explicit Sha256BlockHasher(std::optional<uint64_t> seed = std::nullopt);
  ~Sha256BlockHasher() override;

  BlockHash root(std::string_view salt, std::string_view adapter) override;
  BlockHash block(const BlockHash& parent, std::span<const int32_t> token_ids) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ladder
