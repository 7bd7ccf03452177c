#include "step7_parallel/hosts/host_secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "step1_layers/core/error.h"
#include "step7_parallel/hosts/tcp_socket.h"

namespace ladder {

namespace {

constexpr std::streamsize kMostSecretBytes = 4096;

}  // namespace

HostSecret read_host_secret(const std::filesystem::path& file) {
  HostSecret secret;
  if (file.empty()) {
    if (const char* const text = std::getenv(kSecretVariable)) secret.bytes = text;
    return secret;
  }
  LADDER_CHECK(!std::filesystem::is_directory(file), "--secret-file {}: it is a folder", file.string());
  std::ifstream in(file, std::ios::binary);
  LADDER_CHECK(in.is_open(), "--secret-file {}: it cannot be read", file.string());
  secret.bytes.resize(kMostSecretBytes + 1);
  in.read(secret.bytes.data(), std::ssize(secret.bytes));
  LADDER_CHECK(in.gcount() <= kMostSecretBytes, "--secret-file {}: it is larger than {} bytes", file.string(),
               kMostSecretBytes);
  secret.bytes.resize(static_cast<size_t>(in.gcount()));
  while (!secret.bytes.empty() && (secret.bytes.back() == '\n' || secret.bytes.back() == '\r'))
    secret.bytes.pop_back();
  LADDER_CHECK(!secret.bytes.empty(), "--secret-file {}: it is empty, expected the secret of all hosts",
               file.string());
  return secret;
}

void expect_secret_for(const std::string& host, const HostSecret& secret, const std::string& flag) {
  LADDER_CHECK(
      !secret.bytes.empty() || is_loopback(host),
      "{} {}: other machines can reach it, expected a secret that all hosts share: --secret-file FILE, or "
      "the variable {}",
      flag, host, kSecretVariable);
}

Nonce draw_nonce() {
  Nonce nonce;
  LADDER_CHECK(::RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) == 1,
               "OpenSSL could not draw a random number");
  return nonce;
}

Proof prove(const HostSecret& secret, HostRole role, const Nonce& listener, const Nonce& connector,
            const ConnectionNote& note) {
  std::array<unsigned char, 1 + 2 * sizeof(Nonce) + sizeof(ConnectionNote)> text;
  text[0] = static_cast<unsigned char>(role);
  std::copy(listener.begin(), listener.end(), text.begin() + 1);
  std::copy(connector.begin(), connector.end(), text.begin() + 1 + std::ssize(listener));
  std::copy(note.begin(), note.end(), text.end() - std::ssize(note));
  Proof proof;
  unsigned size = 0;
  LADDER_CHECK(::HMAC(EVP_sha256(), secret.bytes.data(), static_cast<int>(secret.bytes.size()), text.data(),
                      text.size(), proof.data(), &size) != nullptr &&
                   size == proof.size(),
               "OpenSSL could not compute an HMAC");
  return proof;
}

bool same(const Proof& a, const Proof& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace ladder
