#pragma once
// Where another HTTP server is.
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace ladder {

// Only http: what this program asks over it (its benchmark, its router) stands in the same machine room.
struct HttpAddress {
  std::string host;
  uint16_t port = 0;
  std::string path;       // what the base URL has behind the port: "" or "/llm"
  std::string authority;  // "127.0.0.1:8000", "[::1]:8000": the header Host

  bool operator==(const HttpAddress&) const = default;
};

// "http://127.0.0.1:8000/llm". Error: another scheme, no host, a port that is none, characters that no path has.
HttpAddress parse_base_url(const std::string& url);

// Not empty. Error: the host's name is unknown.
std::vector<boost::asio::ip::tcp::endpoint> resolve(const HttpAddress& address);

}  // namespace ladder
