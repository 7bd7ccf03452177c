#include "step6_engine/server/http/exchange.h"

#include <algorithm>
#include <cctype>

namespace ladder {

std::string_view HttpRequest::header(std::string_view name) const {
  const auto equal = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  for (const auto& [key, value] : headers)
    if (std::equal(key.begin(), key.end(), name.begin(), name.end(), equal)) return value;
  return {};
}

}  // namespace ladder
