#pragma once
// What a request says about keys and values that another engine computes for it, or goes on with (step 8,
// disaggregation). In a request and in its answer it is vLLM's object kv_transfer_params. Plain and serialisable.
#include <cstdint>
#include <string>

namespace ladder {

struct KvTransferParams {
  // To the engine that computes the prompt: when the request has ended, keep its blocks for a reader, and say in the answer
  // where they are.
  bool do_remote_decode = false;
  // To the engine that goes on: the keys and values of the prompt are at the place that the rest names.
  bool do_remote_prefill = false;

  // Of the engine that computes the prompt, a new one each time it starts.
  std::string remote_engine_id;
  // Names the transfer there. Whoever knows it may read: where the request did not choose it, it is random.
  std::string remote_request_id;
  // Where that engine answers readers: an address of one of the transports, as "tcp://127.0.0.1:14579".
  std::string remote_address;
  int64_t remote_num_tokens = 0;  // of the prompt, that are computed there; 0: all, as they get ready

  bool operator==(const KvTransferParams&) const = default;
};

}  // namespace ladder
