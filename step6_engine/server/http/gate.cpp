#include "step6_engine/server/http/gate.h"

#include "step1_layers/core/error.h"
#include "step6_engine/server/http/errors.h"

namespace ladder {

Gate::Gate(const Router& router, const ApiKeys& keys, const Cors& cors, std::string root_path)
    : router_(router), keys_(keys), cors_(cors), root_path_(std::move(root_path)) {
  while (root_path_.ends_with('/')) root_path_.pop_back();
  LADDER_CHECK(root_path_.empty() || root_path_.starts_with('/'), "--root-path {}: expected a path like /llm",
               root_path_);
}

Decision Gate::decide(HttpRequest& request) const {
  if (!root_path_.empty() && request.path.starts_with(root_path_) &&
      (request.path.size() == root_path_.size() || request.path[root_path_.size()] == '/')) {
    request.path.erase(0, root_path_.size());
    if (request.path.empty()) request.path = "/";
  }
  if (auto answer = cors_.preflight(request)) return {.answer = std::move(answer)};

  // HEAD is GET without the body.
  const Route* route = router_.find(request.method == "HEAD" ? "GET" : request.method, request.path);
  const bool open = route != nullptr && route->access == Access::anyone;
  if (!open && !keys_.allow(request)) {
    HttpResponse answer = error_response(401, "a valid API key is needed", "authentication_error");
    answer.headers.emplace_back("WWW-Authenticate", "Bearer");
    return {.answer = std::move(answer)};
  }
  if (route != nullptr) return {.route = route};

  std::string methods = router_.allowed_methods(request.path);
  if (methods.empty()) return {.answer = error_response(404, "there is no such path")};
  if (methods.find("GET") != methods.npos) methods += ", HEAD";
  methods += ", OPTIONS";
  HttpResponse answer = error_response(405, "expected one of these methods: " + methods);
  if (request.method == "OPTIONS") answer = {.status = 204};
  answer.headers.emplace_back("Allow", methods);
  return {.answer = std::move(answer)};
}

}  // namespace ladder
