#pragma once
// What a load sends and when: HTTP messages made beforehand, so that nothing but sending is left while the clock runs.
#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench/serve_load.h"
#include "step2_model/json.h"
#include "step6_engine/request.h"

namespace ladder {

struct MessageOptions {
  HttpAddress address;
  bool chat = false;                 // /v1/chat/completions, with the text as the user's message
  std::string model;                 // as /v1/models names it
  std::string api_key;               // empty: none
  Json extra_body = Json::object();  // fields that every body gets too
};

// "Authorization: Bearer ...\r\n", or nothing.
std::string authorization(const std::string& api_key);

// The request as an HTTP message: its prompt, max_tokens, temperature and ignore_eos, streamed with usage. Error: a
// chat of token ids.
ServeRequest make_message(const Request& request, const MessageOptions& options);

// The same requests with texts of as many words in place of their ids: for a chat, and for servers that take no ids.
// A word is about one token.
void words_for_ids(std::vector<Request>& requests);

// When each of `count` requests is sent, in seconds from the begin: `rate` of them a second, the intervals between them
// gamma distributed with shape `burstiness` (1: a Poisson process; below: in bursts; above: more even). Scaled so that
// the last interval ends at count / rate, as vllm bench serve has it. burstiness 0: one every 1 / rate seconds. rate 0:
// all at once, an empty list.
std::vector<double> arrival_times(int64_t count, double rate, double burstiness, uint64_t seed);

}  // namespace ladder
