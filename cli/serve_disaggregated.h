#pragma once
// ladder serve --disaggregate 1P1D: prefill and decode servers on this machine, and the router in front of them.
#include <string>

#include "cli/serve_http.h"

namespace ladder {

struct InstanceCounts {
  int prefill = 1, decode = 1;
};

// "1P1D", "2p4d": 1 to 64 of each. Error naming --disaggregate.
InstanceCounts parse_instances(const std::string& text);

// Returns when it was told to stop and all of it has ended. Error naming the flag: of what does not go with it.
void run_disaggregated(const ServeFlags& flags);

}  // namespace ladder
