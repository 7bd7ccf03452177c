#include "step6_engine/server/http/router.h"

#include "step1_layers/core/error.h"

namespace ladder {

void Router::add(Route route) {
  LADDER_CHECK(find(route.method, route.path) == nullptr, "{} {}: there is such a route already",
               route.method, route.path);
  routes_.push_back(std::move(route));
}

const Route* Router::find(std::string_view method, std::string_view path) const {
  for (const Route& route : routes_)
    if (route.path == path && route.method == method) return &route;
  return nullptr;
}

std::string Router::allowed_methods(std::string_view path) const {
  std::string methods;
  for (const Route& route : routes_)
    if (route.path == path) methods += (methods.empty() ? "" : ", ") + route.method;
  return methods;
}

}  // namespace ladder
