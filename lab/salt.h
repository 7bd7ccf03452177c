#pragma once
// What an instructor keeps secret follows from one string, the salt: keys, seeds, workloads, variants.
#include <string>
#include <string_view>

namespace lab {

// HMAC-SHA256(salt, purpose), 32 bytes. The purposes: "key/LAB", "seed/TASK/N", "counts/PROBLEM", "variant/NAME".
std::string derive(std::string_view salt, std::string_view purpose);

// The first eight of these bytes as a number, for seeds and draws.
unsigned long long derive_number(std::string_view salt, std::string_view purpose);

std::string to_hex(std::string_view bytes);
std::string from_hex(std::string_view digits);  // Error (LabError): not pairs of hexadecimal digits

}  // namespace lab
