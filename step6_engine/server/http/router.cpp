#include "step6_engine/server/http/router.h"

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

bool answers(const Route& route, std::string_view path) {
  std::string_view mine = route.path;
  if (mine == path) return true;
  if (!mine.ends_with("/*")) return false;
  mine.remove_suffix(1);
  return path.starts_with(mine) && path.size() > mine.size();
}

}  // namespace

void Router::add(Route route) {
  LADDER_CHECK(find(route.method, route.path) == nullptr, "{} {}: there is such a route already",
               route.method, route.path);
  routes_.push_back(std::move(route));
}

const Route* Router::find(std::string_view method, std::string_view path) const {
  for (const Route& route : routes_)
    if (answers(route, path) && route.method == method) return &route;
  return nullptr;
}

std::string Router::allowed_methods(std::string_view path) const {
  std::string methods;
  for (const Route& route : routes_)
    if (answers(route, path)) methods += (methods.empty() ? "" : ", ") + route.method;
  return methods;
}

}  // namespace ladder
