#pragma once
// Which pages of other sites a browser lets talk to this server (CORS). The flags are vLLM's, the answers those of its
// web framework; the default is not: no other site may, since a server on the loopback is open to every page that its
// user visits.
#include <optional>
#include <string>
#include <vector>

#include "step6_engine/server/http/exchange.h"

namespace ladder {

struct CorsOptions {
  std::vector<std::string> allowed_origins = {};  // "*": all; empty: no CORS
  std::vector<std::string> allowed_methods = {"*"};
  std::vector<std::string> allowed_headers = {"*"};
  bool allow_credentials = false;
};

class Cors {
 public:
  explicit Cors(CorsOptions options) : options_(std::move(options)) {}

  // A browser's question before the request itself; none: the request is not one. It carries no key.
  std::optional<HttpResponse> preflight(const HttpRequest& request) const;
  // What an answer to the request carries.
  void add_headers(const HttpRequest& request, HttpResponse& response) const;

 private:
  bool allows_origin(std::string_view origin) const;
  // Access-Control-Allow-Origin and what belongs to it.
  void add_origin(std::string_view origin, HttpResponse& response) const;

  CorsOptions options_;
};

}  // namespace ladder
