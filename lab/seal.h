#pragma once
// A text that only the holder of a key can read or change: AES-256-GCM by OpenSSL.
#include <string>
#include <string_view>

namespace lab {

// Names a key of 32 bytes without telling it.
std::string key_id(std::string_view key);

// `label` says what it is, and is no secret; unseal() needs the same. Each call has a nonce of its own.
std::string seal(std::string_view plain, std::string_view key, std::string_view label);

// Error (LabError), one line: `sealed` is not what seal() made with this key and label.
std::string unseal(std::string_view sealed, std::string_view key, std::string_view label);

}  // namespace lab
