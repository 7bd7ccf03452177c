#pragma once
#include "cli/serve_http.h"

namespace ladder {

// `ladder serve --headless`: replicas behind the door of another machine's server (step7_parallel/data/replica_node.h).
// Returns when it was stopped, or the server has ended as it should. Error: refused, no server in time, a replica that
// cannot be loaded, a server that has failed.
void run_headless(const ServeFlags& flags);

}  // namespace ladder
