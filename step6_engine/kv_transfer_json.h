#pragma once
// kv_transfer_params as JSON, in a request and in its answer (step3_sequence/kv_transfer.h has the fields):
//
//   {"do_remote_prefill": true, "remote_engine_id": "6f0e", "remote_request_id": "9a41",
//    "remote_address": "tcp://127.0.0.1:14579", "remote_num_tokens": 513}
#include <string>

#include "step2_model/json.h"
#include "step3_sequence/kv_transfer.h"

namespace ladder {

// A field that is null or absent has its default. Error, beginning with `what`: no object, a field that is not known, a value
// of the wrong type, a negative number, neither of the two that say what is asked for.
KvTransferParams parse_kv_transfer(const Json& value, const std::string& what);
std::string kv_transfer_text(const KvTransferParams& params);

}  // namespace ladder
