#pragma once
// Which code answers which path.
#include <string>
#include <string_view>
#include <vector>

#include "step6_engine/server/http/exchange.h"

namespace ladder {

// Who may ask: every route says it, so that none is open by oversight.
enum class Access { anyone, with_key };
// Where the handler runs. What reads a large body, renders a template or tokenises does so on a worker, so that no
// other client of the connection's thread waits for it.
enum class RunsOn { connection, worker };

struct Route {
  std::string method;  // "GET"
  std::string path;    // as HttpRequest::path; "/v1/models/*": every one that begins so and goes on
  Access access = Access::with_key;
  RunsOn runs_on = RunsOn::connection;
  HttpHandler handler;
};

class Router {
 public:
  // Error: there is one of this method and path.
  void add(Route route);
  // Null: no such path, or none of this method (allowed_methods() tells which).
  const Route* find(std::string_view method, std::string_view path) const;
  // "GET, POST"; empty: there is no such path.
  std::string allowed_methods(std::string_view path) const;
  const std::vector<Route>& routes() const { return routes_; }

 private:
  std::vector<Route> routes_;
};

}  // namespace ladder
