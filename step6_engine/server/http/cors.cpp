#include "step6_engine/server/http/cors.h"

#include <algorithm>

namespace ladder {

namespace {

bool has(const std::vector<std::string>& list, std::string_view value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool equal_in_any_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

std::string joined(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& value : list) text += (text.empty() ? "" : ", ") + value;
  return text;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

bool Cors::allows_origin(std::string_view origin) const {
  return has(options_.allowed_origins, "*") || has(options_.allowed_origins, origin);
}

void Cors::add_origin(std::string_view origin, HttpResponse& response) const {
  // With credentials a browser takes no "*".
  if (has(options_.allowed_origins, "*") && !options_.allow_credentials) {
    response.headers.emplace_back("Access-Control-Allow-Origin", "*");
  } else {
    response.headers.emplace_back("Access-Control-Allow-Origin", origin);
    response.headers.emplace_back("Vary", "Origin");
  }
  if (options_.allow_credentials) response.headers.emplace_back("Access-Control-Allow-Credentials", "true");
}

void Cors::add_headers(const HttpRequest& request, HttpResponse& response) const {
  const std::string_view origin = request.header("Origin");
  if (!origin.empty() && allows_origin(origin)) add_origin(origin, response);
}

std::optional<HttpResponse> Cors::preflight(const HttpRequest& request) const {
  const std::string_view origin = request.header("Origin");
  const std::string_view method = request.header("Access-Control-Request-Method");
  if (options_.allowed_origins.empty() || request.method != "OPTIONS" || origin.empty() || method.empty())
    return {};

  HttpResponse response;
  response.content_type = "text/plain; charset=utf-8";
  std::string refused;
  if (!allows_origin(origin)) refused += "origin";
  const bool all_methods = has(options_.allowed_methods, "*");
  if (!all_methods && !has(options_.allowed_methods, method))
    refused += refused.empty() ? "method" : ", method";
  const std::string_view headers = request.header("Access-Control-Request-Headers");
  const bool all_headers = has(options_.allowed_headers, "*");
  for (size_t begin = 0; !all_headers && begin < headers.size();) {
    const size_t end = std::min(headers.find(',', begin), headers.size());
    const std::string_view name = trimmed(headers.substr(begin, end - begin));
    begin = end + 1;
    const bool allowed =
        std::any_of(options_.allowed_headers.begin(), options_.allowed_headers.end(),
                    [&](const std::string& allowed) { return equal_in_any_case(allowed, name); });
    if (allowed) continue;
    refused += refused.empty() ? "headers" : ", headers";
    break;
  }
  if (!refused.empty()) {
    response.status = 400;
    response.body = "Disallowed CORS " + refused;
    return response;
  }
  add_origin(origin, response);
  response.headers.emplace_back(
      "Access-Control-Allow-Methods",
      all_methods ? "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT" : joined(options_.allowed_methods));
  if (!all_headers) {
    response.headers.emplace_back("Access-Control-Allow-Headers", joined(options_.allowed_headers));
  } else if (!headers.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Headers", headers);
  }
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  response.body = "OK";
  return response;
}

}  // namespace ladder
