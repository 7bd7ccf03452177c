#include "step8_advanced/disaggregation/router/server/routed_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "step1_layers/core/error.h"
#include "step6_engine/server/http/errors.h"

namespace ladder {

namespace {

constexpr size_t kMostAnswerBytes = size_t{64} << 20;  // of one that is no stream

// What a server needs of the client's headers.
constexpr const char* kPassedHeaders[] = {"Content-Type", "Accept",      "Authorization", "X-Api-Key",
                                          "X-Request-Id", "traceparent", "tracestate"};

std::string passed_headers(const HttpRequest& request) {
  std::string headers;
  for (const char* name : kPassedHeaders)
    if (const std::string_view value = request.header(name); !value.empty())
      headers += fmt::format("{}: {}\r\n", name, value);
  return headers;
}

// Another server may do better: it is too busy, it stops, it has failed, or it says what no server of completions says
// (a proxy in its place sends elsewhere, say).
bool is_servers_trouble(int status) {
  return status < 200 || (status >= 300 && status < 400) || status == 408 || status == 429 || status >= 500;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

// The connection's side. It counts as under way as long as the client waits.
class RoutedAnswer final : public HttpAnswer {
 public:
  explicit RoutedAnswer(std::shared_ptr<RoutedRequest> request) : request_(std::move(request)) {}
  ~RoutedAnswer() override {
    --request_->core_.num_in_flight;
    boost::asio::post(request_->core_.context, [request = request_] { request->client_gone(); });
  }
  void advance(HttpExchange& exchange) override { request_->relay_->advance(exchange); }

 private:
  const std::shared_ptr<RoutedRequest> request_;
};

std::unique_ptr<HttpAnswer> RoutedRequest::start(RouterCore& core, HttpExchange& exchange, bool generates) {
  const auto request = std::make_shared<RoutedRequest>(core, exchange.request(), generates, exchange.waker());
  auto answer = std::make_unique<RoutedAnswer>(request);
  boost::asio::post(core.context, [request] { request->attempt(); });
  return answer;
}

RoutedRequest::RoutedRequest(RouterCore& core, const HttpRequest& request, bool generates,
                             std::function<void()> wake)
    : core_(core),
      method_(request.method),
      target_(request.query.empty() ? request.path : request.path + "?" + request.query),
      headers_(passed_headers(request)),
      generates_(generates),
      split_(request.body),
      tried_prefills_(core.prefills.size()),
      tried_decodes_(core.decodes.size()) {
  relay_ = std::make_unique<AnswerRelay>(std::move(wake), [this] {
    boost::asio::post(core_.context, [self = shared_from_this()] {
      if (self->decode_call_) self->decode_call_->resume();
    });
  });
}

// --- where to ----------------------------------------------------------------------------------------------

void RoutedRequest::attempt() {
  if (ended_) return;
  const std::optional<ChosenServers> route = choose();
  if (!route) {
    if (answer_.status >= 400 && answer_.status < 600)
      return respond(std::move(answer_), "failed");  // what the last one said
    HttpResponse none = error_response(503, "no decode server could answer: ask again later");
    none.headers.emplace_back("Retry-After", "1");
    return respond(std::move(none), "failed");
  }
  count_route(*route);
  decode_ = route->decode;
  decode_use_ = BackendUse(*core_.decodes[static_cast<size_t>(decode_)], 0);
  if (route->prefill < 0) return ask_decode({});
  prefill_use_ = BackendUse(*core_.prefills[static_cast<size_t>(route->prefill)], route->num_to_compute);
  ask_prefill(route->prefill);
}

std::optional<ChosenServers> RoutedRequest::choose() {
  drop_calls();
  std::vector<PrefillLoad> prefills;
  std::vector<DecodeLoad> decodes;
  const bool may_split = generates_ && split_.unsplit_because().empty();
  if (may_split && prefill_failures_ <= core_.limits.retries)
    for (size_t i = 0; i < core_.prefills.size(); ++i)
      prefills.push_back({.takes_requests = core_.prefills[i]->takes_requests() && !tried_prefills_[i],
                          .queued_tokens = core_.prefills[i]->queued_tokens});
  if (decode_failures_ <= core_.limits.retries)
    for (size_t i = 0; i < core_.decodes.size(); ++i) {
      const Backend& server = *core_.decodes[i];
      const int64_t reported = server.report().num_running + server.report().num_waiting;
      decodes.push_back({.takes_requests = server.takes_requests() && !tried_decodes_[i],
                         .num_active = std::max(server.num_in_flight, reported),
                         .kv_usage = server.report().kv_usage});
    }
  return core_.policy->choose(prompt(), prefills, decodes);
}

void RoutedRequest::count_route(const ChosenServers& route) {
  if (!generates_ || route.prefill >= 0 || decode_failures_ > 0) return;
  const auto size = std::ssize(split_.prompt());
  if (!split_.unsplit_because().empty()) {
    ++core_.metrics.skipped_prefills[split_.unsplit_because()];
  } else if (route.wanted_prefill) {
    ++core_.metrics.fallbacks;
  } else {
    ++core_.metrics.skipped_prefills[route.num_to_compute < size ? "cached" : "short"];
  }
}

HttpCallRequest RoutedRequest::call_request(std::string body) const {
  return {.method = method_,
          .target = target_,
          .headers = headers_,
          .body = std::move(body),
          .silence_timeout = core_.limits.silence_timeout};
}

// --- the prompt --------------------------------------------------------------------------------------------

void RoutedRequest::ask_prefill(int server) {
  Backend& asked = *core_.prefills[static_cast<size_t>(server)];
  prefill_ = server;
  core_.policy->sent_to_prefill(server, prompt());
  prefill_began_ = Clock::now();
  prefill_answer_ = {};
  request_id_ = random_request_id();
  HttpCallEvents events;
  events.on_head = [this](const ResponseReader& head) {
    prefill_answer_.status = head.status;
    prefill_answer_.content_type = head.content_type;
  };
  events.on_body = [this](std::string_view bytes) {
    prefill_answer_.body += bytes;
    if (prefill_answer_.body.size() > kMostAnswerBytes) prefill_call_->fail("an answer of more than 64 MiB");
  };
  events.on_end = [self = shared_from_this()](HttpCallEnd end, const std::string& why) {
    self->on_prefill_end(end, why);
  };
  prefill_call_ = asked.call(call_request(split_.prefill_body(request_id_)), std::move(events));
  if (core_.limits.prefill_first) return;
  turn_ = PromptTurns::Place(asked.turns, [this] {
    boost::asio::post(core_.context, [self = shared_from_this(), id = request_id_] {
      if (self->prefill_call_ && self->request_id_ == id)
        self->on_turn();  // else its answer has come meanwhile
    });
  });
  if (turn_.is_first()) on_turn();
}

// Of several engines behind one address nobody knows which one gets the prompt.
void RoutedRequest::on_turn() {
  const Backend& server = *core_.prefills[static_cast<size_t>(prefill_)];
  if (!server.source || server.report().num_engines != 1) return;
  told_ = server.source;
  ask_decode(transfer_from(*told_, request_id_));
}

void RoutedRequest::on_prefill_end(HttpCallEnd end, const std::string& why) {
  prefill_call_ = nullptr;
  prefill_use_ = {};
  turn_ = {};
  if (end != HttpCallEnd::whole) return prefill_failed(why);
  if (is_servers_trouble(prefill_answer_.status))
    return prefill_failed(fmt::format("HTTP {}", prefill_answer_.status));
  if (prefill_answer_.status >= 400) return prefill_refused();
  std::string transfer;
  try {
    transfer = transfer_of_answer(prefill_answer_.body);
  } catch (const Error& error) {
    return prefill_failed(error.what());
  }
  core_.metrics.prefill_seconds.observe(seconds_since(prefill_began_));
  on_prompt(transfer);
}

void RoutedRequest::on_prompt(const std::string& transfer) {
  // Nothing is kept any more of a prompt whose reader has had all of it.
  const std::optional<PromptSource> source =
      told_ && transfer.empty() ? told_ : source_of_transfer(transfer, request_id_);
  core_.prefills[static_cast<size_t>(prefill_)]->source = source;
  prompt_ended_ = Clock::now();
  if (began_stream_) return;
  if (told_) {
    if (source == told_) return count_transfer();
    withdraw();  // it was started again: nobody waits for the one before
  }
  if (transfer.empty())
    ++core_.metrics.empty_transfers;
  else
    count_transfer();
  ask_decode(transfer);
}

void RoutedRequest::prefill_failed(const std::string& why) {
  Backend& server = *core_.prefills[static_cast<size_t>(prefill_)];
  core_.log(fmt::format("prefill server {}: {}", server.url(), why));
  server.source.reset();  // what answers there next may be another one
  ++core_.metrics.failed_calls["prefill"];
  if (began_stream_) return;  // the prompt has been read
  tried_prefills_[static_cast<size_t>(prefill_)] = true;
  ++prefill_failures_;
  if (told_) withdraw();
  answer_ = {};
  attempt();
}

// Of a request that is wrong everywhere the decode server says so too; what this one takes may be less (a shorter sequence, say).
void RoutedRequest::prefill_refused() {
  if (began_stream_) return;
  if (told_) withdraw();
  refused_with_ = prefill_answer_.status;
  ask_decode({});
}

void RoutedRequest::withdraw() {
  told_.reset();
  decode_call_->cancel();
  ++core_.metrics.withdrawn;
}

// What is told at once counts when it was for something: until then the decode server's cache has nothing of it.
void RoutedRequest::count_transfer() {
  if (std::exchange(counted_, true)) return;
  ++core_.metrics.transfers;
  if (!told_) return;
  ++core_.metrics.at_once_transfers;
  core_.policy->sent_to_decode(decode_, prompt());
}

// --- the rest ----------------------------------------------------------------------------------------------

void RoutedRequest::ask_decode(const std::string& transfer) {
  if (!told_) core_.policy->sent_to_decode(decode_, prompt());
  has_transfer_ = !transfer.empty();
  answer_ = {};
  filter_ = {};
  is_stream_ = false;
  HttpCallEvents events;
  events.on_head = [this](const ResponseReader& head) { on_decode_head(head); };
  events.on_body = [this](std::string_view bytes) { on_decode_body(bytes); };
  events.on_end = [self = shared_from_this()](HttpCallEnd end, const std::string& why) {
    self->on_decode_end(end, why);
  };
  decode_call_ = core_.decodes[static_cast<size_t>(decode_)]->call(call_request(split_.decode_body(transfer)),
                                                                   std::move(events));
}

void RoutedRequest::on_decode_head(const ResponseReader& head) {
  answer_.status = head.status;
  answer_.content_type = head.content_type;
  if (!head.retry_after.empty()) answer_.headers = {{"Retry-After", head.retry_after}};
  is_stream_ = head.status == 200 && head.is_event_stream();
  if (const int refused = std::exchange(refused_with_, 0); refused != 0 && head.status == 200) {
    ++core_.metrics.fallbacks;
    core_.log(fmt::format("prefill server {}: HTTP {} to what {} answers",
                          core_.prefills[static_cast<size_t>(prefill_)]->url(), refused,
                          core_.decodes[static_cast<size_t>(decode_)]->url()));
  }
}

void RoutedRequest::on_decode_body(std::string_view bytes) {
  passed_.clear();
  try {
    filter_.feed(bytes, passed_);
  } catch (const Error& error) {
    return decode_call_->fail(error.what());
  }
  if (is_stream_) return pass_on(passed_);
  answer_.body += passed_;
  if (answer_.body.size() > kMostAnswerBytes) decode_call_->fail("an answer of more than 64 MiB");
}

void RoutedRequest::pass_on(std::string_view bytes) {
  if (bytes.empty()) return;
  if (!std::exchange(began_stream_, true)) {
    core_.metrics.first_byte_seconds.observe(seconds_since(began_));
    if (has_transfer_)
      core_.metrics.handover_seconds.observe(prompt_ended_ ? seconds_since(*prompt_ended_) : 0.0);
    if (told_) count_transfer();
    relay_->begin(answer_.content_type);
  }
  if (!relay_->write(bytes)) decode_call_->pause();
}

void RoutedRequest::on_decode_end(HttpCallEnd end, const std::string& why) {
  if (end != HttpCallEnd::whole) {
    answer_ = {.content_type = answer_.content_type};  // half an answer is none
    return decode_failed(why);
  }
  passed_.clear();
  filter_.finish(passed_);
  if (is_stream_) {
    pass_on(passed_);
    if (!began_stream_) return decode_failed("an empty stream");
    relay_->finish();
    return this->end("ok");
  }
  answer_.body += passed_;
  if (is_servers_trouble(answer_.status)) return decode_failed(fmt::format("HTTP {}", answer_.status));
  if (told_ && answer_.status < 400) count_transfer();
  const char* outcome = answer_.status < 400 ? "ok" : "refused";
  respond(std::move(answer_), outcome);
}

void RoutedRequest::decode_failed(const std::string& why) {
  core_.log(fmt::format("decode server {}: {}", core_.decodes[static_cast<size_t>(decode_)]->url(), why));
  if (began_stream_) return cut("the server that was answering has failed");
  tried_decodes_[static_cast<size_t>(decode_)] = true;
  ++decode_failures_;
  ++core_.metrics.failed_calls["decode"];
  attempt();
}

void RoutedRequest::drop_calls() {
  for (std::shared_ptr<HttpCall>* call : {&prefill_call_, &decode_call_})
    if (const std::shared_ptr<HttpCall> dropped = std::exchange(*call, nullptr)) dropped->cancel();
  prefill_use_ = {};
  decode_use_ = {};
  turn_ = {};
  told_.reset();
  prompt_ended_.reset();
  refused_with_ = 0;
  counted_ = false;
}

// --- how it ends -------------------------------------------------------------------------------------------

void RoutedRequest::respond(HttpResponse response, const char* outcome) {
  core_.metrics.first_byte_seconds.observe(seconds_since(began_));
  relay_->respond(std::move(response));
  end(outcome);
}

void RoutedRequest::cut(const std::string& why) {
  // The event before may lack its empty line.
  relay_->write("\ndata: " + error_body(500, why, "InternalServerError") + "\n\ndata: [DONE]\n\n");
  relay_->finish();
  end("cut");
}

void RoutedRequest::end(const char* outcome) {
  if (std::exchange(ended_, true)) return;
  ++core_.metrics.outcomes[outcome];
  core_.metrics.request_seconds.observe(seconds_since(began_));
  drop_calls();
}

void RoutedRequest::client_gone() {
  end("client_gone");
}

}  // namespace ladder
