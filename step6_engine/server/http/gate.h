#pragma once
// What is decided of a request when its headers are there, before a byte of its body is read: is there such a route,
// and may this client use it? Whoever has no key where one is needed learns nothing but that, not even which routes
// there are.
#include <optional>
#include <string>
#include <string_view>

#include "step6_engine/server/http/api_keys.h"
#include "step6_engine/server/http/cors.h"
#include "step6_engine/server/http/router.h"

namespace ladder {

struct Decision {
  const Route* route = nullptr;  // who answers; null: this is the answer
  std::optional<HttpResponse> answer = {};
};

class Gate {
 public:
  // `root_path`: "" or "/llm". Error: another form.
  Gate(const Router& router, const ApiKeys& keys, const Cors& cors, std::string root_path);

  // Takes the root path off the request's.
  Decision decide(HttpRequest& request) const;

 private:
  const Router& router_;
  const ApiKeys& keys_;
  const Cors& cors_;
  std::string root_path_;
};

}  // namespace ladder
