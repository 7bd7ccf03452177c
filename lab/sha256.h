#pragma once
// SHA-256 (FIPS 180-4) as 64 hexadecimal digits: names a region's text, and a release.
#include <string>
#include <string_view>

namespace lab {

std::string sha256(std::string_view text);

}  // namespace lab
