#pragma once
// Short texts between all ranks of a group: addresses, verdicts, reasons.
#include <string>
#include <vector>

#include "step1_layers/distributed/communicator.h"

namespace ladder {

// Every rank tells all others a text, of which at most kMaxTextBytes arrive, through a group on the CPU; by rank.
constexpr int64_t kMaxTextBytes = 1022;
std::vector<std::string> exchange_texts(Communicator& host, const std::string& mine);

}  // namespace ladder
