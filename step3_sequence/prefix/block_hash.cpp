// The simple version:
//
//   root(salt):             return sha256(salt)
//   block(parent, tokens):  return sha256(parent + bytes(tokens))
//
// What each further line buys: a tag and a length before each field, so that no two lists of fields have the
// same bytes; the secret in the root, so that names cannot be predicted; one digest and one buffer for all
// calls, since looking the digest up costs more than hashing a block.
#include "step3_sequence/prefix/block_hash.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <cstring>
#include <vector>

#include "step1_layers/core/error.h"

namespace ladder {

struct Sha256BlockHasher::State {
  EVP_MD* digest = nullptr;  // fetched once: looking it up costs more than hashing a block
  EVP_MD_CTX* context = nullptr;
  std::vector<uint8_t> message;
  std::array<uint8_t, 32> secret{};

  ~State() {
    EVP_MD_CTX_free(context);
    EVP_MD_free(digest);
  }

  void begin() { message.clear(); }

  // One field: its tag, its length, its bytes.
  void add(char tag, const void* bytes, uint64_t size) {
    const size_t at = message.size();
    message.resize(at + 1 + sizeof(size) + size);
    message[at] = static_cast<uint8_t>(tag);
    std::memcpy(&message[at + 1], &size, sizeof(size));
    if (size > 0) std::memcpy(&message[at + 1 + sizeof(size)], bytes, size);
  }

  BlockHash finish() {
    BlockHash hash;
    const bool ok = EVP_DigestInit_ex2(context, digest, nullptr) == 1 &&
                    EVP_DigestUpdate(context, message.data(), message.size()) == 1 &&
                    EVP_DigestFinal_ex(context, reinterpret_cast<uint8_t*>(hash.words.data()), nullptr) == 1;
    LADDER_CHECK(ok, "OpenSSL could not compute a SHA-256");
    return hash;
  }
};

Sha256BlockHasher::Sha256BlockHasher(std::optional<uint64_t> seed) : state_(std::make_unique<State>()) {
  state_->digest = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  state_->context = EVP_MD_CTX_new();
  LADDER_CHECK(state_->digest != nullptr && state_->context != nullptr, "OpenSSL offers no SHA-256");
  if (seed)
    std::memcpy(state_->secret.data(), &*seed, sizeof(*seed));
  else
    LADDER_CHECK(RAND_bytes(state_->secret.data(), static_cast<int>(state_->secret.size())) == 1,
                 "OpenSSL gave no random bytes");
}

Sha256BlockHasher::~Sha256BlockHasher() = default;

// >>> task 3.4: tagged, length-prefixed fields, chained from the root
BlockHash Sha256BlockHasher::root(std::string_view salt, std::string_view adapter) {
  state_->begin();
  state_->add('r', state_->secret.data(), state_->secret.size());
  state_->add('s', salt.data(), salt.size());
  state_->add('a', adapter.data(), adapter.size());
  return state_->finish();
}

BlockHash Sha256BlockHasher::block(const BlockHash& parent, std::span<const int32_t> token_ids) {
  state_->begin();
  state_->add('p', parent.words.data(), sizeof(parent.words));
  state_->add('t', token_ids.data(), token_ids.size_bytes());
  return state_->finish();
}
// <<< task 3.4

}  // namespace ladder
