#include "step6_engine/server/http/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "step1_layers/core/error.h"

namespace ladder {

ApiKeys::ApiKeys(std::span<const std::string> keys) {
  for (const std::string& key : keys) {
    LADDER_CHECK(!key.empty(), "--api-key: the key is empty");
    digests_.push_back(digest(key));
  }
}

ApiKeys::Digest ApiKeys::digest(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

// All keys are looked at, also after a match.
bool ApiKeys::contains(std::string_view key) const {
  const Digest given = digest(key);
  bool found = false;
  for (const Digest& digest : digests_)
    found |= CRYPTO_memcmp(digest.data(), given.data(), given.size()) == 0;
  return found;
}

bool ApiKeys::allow(const HttpRequest& request) const {
  if (!required()) return true;
  std::string_view authorization = request.header("Authorization");
  constexpr std::string_view kScheme = "bearer ";
  bool is_bearer = authorization.size() > kScheme.size();
  for (size_t i = 0; is_bearer && i < kScheme.size(); ++i)  // a scheme's name may be in any case
    is_bearer = (authorization[i] | 0x20) == kScheme[i];
  if (is_bearer) {
    authorization.remove_prefix(kScheme.size());
    return contains(authorization);
  }
  const std::string_view key = request.header("X-Api-Key");
  return !key.empty() && contains(key);
}

}  // namespace ladder
