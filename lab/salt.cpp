#include "lab/salt.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "lab/lab_error.h"

namespace lab {

std::string derive(std::string_view salt, std::string_view purpose) {
  std::string bytes(32, '\0');
  unsigned size = 0;
  if (HMAC(EVP_sha256(), salt.data(), static_cast<int>(salt.size()),
           reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size(),
           reinterpret_cast<unsigned char*>(bytes.data()), &size) == nullptr)
    throw LabError("OpenSSL has no HMAC-SHA256");
  return bytes;
}

unsigned long long derive_number(std::string_view salt, std::string_view purpose) {
  unsigned long long number = 0;
  for (unsigned char byte : derive(salt, purpose).substr(0, 8)) number = number << 8 | byte;
  return number;
}

std::string to_hex(std::string_view bytes) {
  std::string digits;
  for (unsigned char byte : bytes) {
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

std::string from_hex(std::string_view digits) {
  const auto value = [&](char digit) -> int {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    throw LabError("expected hexadecimal digits, two for a byte");
  };
  if (digits.size() % 2 != 0) throw LabError("expected hexadecimal digits, two for a byte");
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2)
    bytes += static_cast<char>(value(digits[i]) << 4 | value(digits[i + 1]));
  return bytes;
}

}  // namespace lab
