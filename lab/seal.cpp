#include "lab/seal.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <memory>

#include "lab/lab_error.h"
#include "lab/salt.h"

namespace lab {
namespace {

constexpr std::string_view kMagic = "LABSEAL1";
constexpr size_t kNonce = 12, kTag = 16, kKey = 32;

using Context = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

unsigned char* bytes(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}
const unsigned char* bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// A context that has the key, the nonce and the label.
Context begin(std::string_view key, std::string_view nonce, std::string_view label, int encrypts) {
  if (key.size() != kKey) throw LabError("a key has 32 bytes, which are 64 hexadecimal digits");
  Context context(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  int size = 0;
  if (!context ||
      EVP_CipherInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, bytes(key), bytes(nonce), encrypts) != 1 ||
      EVP_CipherUpdate(context.get(), nullptr, &size, bytes(label), static_cast<int>(label.size())) != 1)
    throw LabError("OpenSSL has no AES-256-GCM");
  return context;
}

}  // namespace

std::string key_id(std::string_view key) {
  return to_hex(derive(key, "id of this key")).substr(0, 16);
}

std::string seal(std::string_view plain, std::string_view key, std::string_view label) {
  std::string nonce(kNonce, '\0'), tag(kTag, '\0'), cipher(plain.size(), '\0');
  if (RAND_bytes(bytes(nonce), kNonce) != 1) throw LabError("OpenSSL has no random bytes");
  const Context context = begin(key, nonce, label, 1);
  int size = 0;
  if (EVP_CipherUpdate(context.get(), bytes(cipher), &size, bytes(plain), static_cast<int>(plain.size())) !=
          1 ||
      EVP_CipherFinal_ex(context.get(), nullptr, &size) != 1 ||
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, kTag, tag.data()) != 1)
    throw LabError("OpenSSL could not seal it");
  return std::string(kMagic) + nonce + tag + cipher;
}

std::string unseal(std::string_view sealed, std::string_view key, std::string_view label) {
  if (!sealed.starts_with(kMagic) || sealed.size() < kMagic.size() + kNonce + kTag)
    throw LabError("it is no sealed file");
  sealed.remove_prefix(kMagic.size());
  std::string tag(sealed.substr(kNonce, kTag));
  const Context context = begin(key, sealed.substr(0, kNonce), label, 0);
  sealed.remove_prefix(kNonce + kTag);
  std::string plain(sealed.size(), '\0');
  int size = 0;
  if (EVP_CipherUpdate(context.get(), bytes(plain), &size, bytes(sealed), static_cast<int>(sealed.size())) !=
          1 ||
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_SET_TAG, kTag, tag.data()) != 1 ||
      EVP_CipherFinal_ex(context.get(), nullptr, &size) != 1)
    throw LabError("it was damaged, or is sealed with another key");
  return plain;
}

}  // namespace lab
