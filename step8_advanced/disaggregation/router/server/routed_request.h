#pragma once
// One request of a client on its way through a prefill and a decode server.
//
//   attempt --> prefill --- keys ---> decode --- first byte ---> streaming --> ended
//      ^  \        | failed              | failed                   | failed: an error event, and the end
//      |   `-------+-- decode alone -->  |
//      +-----------+---------------------+      with servers that it has not failed at; else an error
//
// At once: where it is known where the prefill server's engine is read, the decode server is asked as soon as the prompt is the next
// one there, and reads what is computed while it is.
//
//   attempt --> prefill ------------------- answer: that engine's ------> (it has all that it needs)
//      ^           | turn                  | another engine's: decode is asked once more, with what the answer says
//      |           `--> decode --- first byte --> streaming --> ended
//      |                  | failed, or prefill failed before the first byte: neither goes on
//      +------------------+
//
// An answer that is no stream goes to the client when all of it is there, so until then it can be begun again elsewhere. A
// client that goes away closes both calls, and the servers abort what they do for it; keys that were kept for a reader that
// never comes are given back by their lease.
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "step6_engine/server/http/exchange.h"
#include "step8_advanced/disaggregation/router/answer_filter.h"
#include "step8_advanced/disaggregation/router/server/answer_relay.h"
#include "step8_advanced/disaggregation/router/server/router_core.h"
#include "step8_advanced/disaggregation/router/split_request.h"

namespace ladder {

class RoutedRequest : public std::enable_shared_from_this<RoutedRequest> {
 public:
  // `generates`: its body asks for a text, which may be split; any other request goes to a decode server as it is. The core
  // outlives it, and counts it as under way already.
  static std::unique_ptr<HttpAnswer> start(RouterCore& core, HttpExchange& exchange, bool generates);

  RoutedRequest(RouterCore& core, const HttpRequest& request, bool generates, std::function<void()> wake);

 private:
  friend class RoutedAnswer;
  using Clock = std::chrono::steady_clock;

  void attempt();
  // None: no decode server takes requests that it has not failed at.
  std::optional<ChosenServers> choose();
  // For the policy: of a request that generates nothing, none.
  std::span<const int32_t> prompt() const {
    return std::span<const int32_t>(split_.prompt()).first(generates_ ? split_.prompt().size() : 0);
  }
  void count_route(const ChosenServers& route);

  void ask_prefill(int server);
  void on_turn();
  void on_prefill_end(HttpCallEnd end, const std::string& why);
  void on_prompt(const std::string& transfer);
  void prefill_failed(const std::string& why);
  void prefill_refused();
  void withdraw();
  void count_transfer();

  void ask_decode(const std::string& transfer);
  void on_decode_head(const ResponseReader& head);
  void on_decode_body(std::string_view bytes);
  void on_decode_end(HttpCallEnd end, const std::string& why);
  void decode_failed(const std::string& why);
  void pass_on(std::string_view bytes);

  HttpCallRequest call_request(std::string body) const;
  void drop_calls();
  // Exactly one of them ends the request.
  void respond(HttpResponse response, const char* outcome);
  void cut(const std::string& why);
  void end(const char* outcome);
  void client_gone();

  RouterCore& core_;
  const std::string method_, target_;
  std::string headers_;  // that servers get too
  const bool generates_;
  const SplitRequest split_;
  const Clock::time_point began_ = Clock::now();
  std::unique_ptr<AnswerRelay> relay_;

  std::vector<bool> tried_prefills_, tried_decodes_;  // it has failed there
  int prefill_failures_ = 0, decode_failures_ = 0;
  int prefill_ = -1, decode_ = -1;  // being asked, or about to be
  int refused_with_ =
      0;  // the status with which the prefill server did, until the decode server has answered
  BackendUse prefill_use_, decode_use_;
  PromptTurns::Place turn_;
  std::shared_ptr<HttpCall> prefill_call_, decode_call_;  // under way
  std::string request_id_;                                // of the transfer
  std::optional<PromptSource> told_;  // to the decode server, that was asked while the prompt was computed
  bool counted_ = false;              // as a transfer
  bool has_transfer_ = false;         // the decode server was told of one
  Clock::time_point prefill_began_{};
  std::optional<Clock::time_point> prompt_ended_;

  HttpResponse prefill_answer_, answer_;  // of the servers that are being asked, as far as they are kept
  AnswerFilter filter_;
  bool is_stream_ = false;     // of events, which are passed on
  bool began_stream_ = false;  // the client has its first byte
  std::string passed_;         // of one piece
  bool ended_ = false;
};

}  // namespace ladder
