#include "step6_engine/server/http_client/http_address.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "step1_layers/core/error.h"

namespace ladder {

HttpAddress parse_base_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  LADDER_CHECK(
      !url.starts_with("https://"),
      "{}: expected http://, since this client speaks no TLS (put a proxy that does in front of that server)",
      url);
  LADDER_CHECK(url.starts_with(kScheme), "{}: expected a URL like http://127.0.0.1:8000", url);
  // It is written into requests as it stands.
  const auto is_of_a_path = [](char c) { return c > ' ' && c < 0x7f && c != '?' && c != '#'; };
  LADDER_CHECK(std::ranges::all_of(url, is_of_a_path),
               "{}: expected a URL like http://127.0.0.1:8000/llm, without spaces, '?' and '#'", url);
  HttpAddress address;
  const size_t slash = std::min(url.find('/', kScheme.size()), url.size());
  const std::string authority = url.substr(kScheme.size(), slash - kScheme.size());
  address.path = url.substr(slash);
  while (address.path.ends_with('/')) address.path.pop_back();
  const size_t bracket = authority.rfind(']');  // [::1]:8000
  const size_t colon = authority.find(':', bracket == std::string::npos ? 0 : bracket);
  address.host = authority.substr(0, colon);
  if (bracket != std::string::npos && address.host.size() >= 2)
    address.host = address.host.substr(1, address.host.size() - 2);
  address.port = 80;
  if (colon != std::string::npos) {
    const char *begin = authority.data() + colon + 1, *end = authority.data() + authority.size();
    const auto [rest, error] = std::from_chars(begin, end, address.port);
    LADDER_CHECK(error == std::errc() && rest == end && address.port > 0,
                 "{}: expected a port behind the colon", url);
  }
  LADDER_CHECK(!address.host.empty(), "{}: expected a host", url);
  address.authority = authority;
  return address;
}

std::vector<boost::asio::ip::tcp::endpoint> resolve(const HttpAddress& address) {
  boost::asio::io_context context;
  boost::system::error_code failure;
  std::vector<boost::asio::ip::tcp::endpoint> endpoints;
  for (const auto& entry :
       boost::asio::ip::tcp::resolver(context).resolve(address.host, std::to_string(address.port), failure))
    endpoints.push_back(entry.endpoint());
  LADDER_CHECK(!failure && !endpoints.empty(), "the host {}: {}", address.host,
               failure ? failure.message() : "has no address");
  return endpoints;
}

}  // namespace ladder
