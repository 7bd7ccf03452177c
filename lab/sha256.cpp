#include "lab/sha256.h"

#include <openssl/evp.h>

#include "lab/lab_error.h"
#include "lab/salt.h"

namespace lab {

std::string sha256(std::string_view text) {
  std::string bytes(32, '\0');
  if (EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(bytes.data()), nullptr,
                 EVP_sha256(), nullptr) != 1)
    throw LabError("OpenSSL has no SHA-256");
  return to_hex(bytes);
}

}  // namespace lab
