#pragma once
// One request of a client as two: the prompt's, for the server that computes it, and the rest's, for the one that goes on. The
// form is vLLM's: an object kv_transfer_params in both bodies and in the first one's answer.
//
//   client:   {"prompt": ..., "max_tokens": 100, "stream": true}
//   prefill:  {"prompt": ..., "max_tokens": 1, "stream": false, "n": 1,
//              "kv_transfer_params": {"do_remote_decode": true, "remote_request_id": "5c0..."}}
//   answer:   {..., "kv_transfer_params": {"remote_engine_id": ..., "remote_address": ..., ...}}
//   decode:   {"prompt": ..., "max_tokens": 100, "stream": true,
//              "kv_transfer_params": {"do_remote_prefill": true, "remote_engine_id": ..., ...}}
//
// The decode body may also go out at the same time, where it is known what the answer is going to say: the prefill server's engine
// keeps its name and address as long as it lives, and the request's id was drawn here.
//
// The decode server computes the prompt's last token again and samples the first one itself, so what the prefill server has
// sampled is thrown away, and a request that ends with its first token needs no rule of its own.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "step8_advanced/disaggregation/router/json_members.h"

namespace ladder {

class SplitRequest {
 public:
  // Of a body of /v1/completions or /v1/chat/completions, or of any other bytes: those are for one server, which says what is
  // wrong with them.
  explicit SplitRequest(std::string body);
  SplitRequest(const SplitRequest&) = delete;  // views of its own body

  // Why one server must answer all of it; empty: it can be split. The log probabilities of a prompt are known only to the one
  // that has computed it, and a list of prompts would need a transfer for each.
  const std::string& unsplit_because() const { return unsplit_because_; }

  // For the policy: the prompt's token ids; of a text four bytes stand for one, which is about a token.
  const std::vector<int32_t>& prompt() const { return prompt_; }

  // `request_id`: names the transfer; nobody else may guess it.
  std::string prefill_body(std::string_view request_id) const;
  // `transfer`: of the prefill server's answer; empty: there was none, and this server computes the prompt. What a client says
  // of transfers is left out of both: it would name other clients' keys, or have a server connect to wherever it likes.
  std::string decode_body(std::string_view transfer) const;

 private:
  void read_prompt();

  const std::string body_;
  std::optional<std::vector<JsonMember>> members_;
  std::string unsplit_because_;
  std::vector<int32_t> prompt_;
};

// 128 random bits as hexadecimal digits.
std::string random_request_id();

// From the prefill server's answer, what goes into decode_body(); empty: it keeps nothing for a reader. Error: it is not an
// answer of such a server.
std::string transfer_of_answer(std::string_view answer);

// The engine that a prompt is read from.
struct PromptSource {
  std::string engine_id, address;
  bool operator==(const PromptSource&) const = default;
};
// Of transfer_of_answer(). None: it says more than where the prompt of this request is, which nobody could have known before (in
// vLLM its blocks), or it says another id.
std::optional<PromptSource> source_of_transfer(std::string_view transfer, std::string_view request_id);
// For decode_body(), while the prompt is being computed there: its keys are read as they get ready.
std::string transfer_from(const PromptSource& source, std::string_view request_id);

}  // namespace ladder
