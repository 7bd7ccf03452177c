#pragma once
// Who may ask: the keys of --api-key. Only their SHA-256 is kept, and a comparison takes the same time whatever is
// wrong with the key that was given.
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step6_engine/server/http/exchange.h"

namespace ladder {

class ApiKeys {
 public:
  // None: everybody may ask. Error: an empty key.
  explicit ApiKeys(std::span<const std::string> keys);

  bool required() const { return !digests_.empty(); }
  // Whether "Authorization: Bearer KEY" or "X-Api-Key: KEY" has one of the keys; true where none is required.
  bool allow(const HttpRequest& request) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);
  bool contains(std::string_view key) const;

  std::vector<Digest> digests_;
};

}  // namespace ladder
