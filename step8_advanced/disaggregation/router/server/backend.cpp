#include "step8_advanced/disaggregation/router/server/backend.h"

#include <fmt/format.h>

#include <utility>

namespace ladder {

namespace {

constexpr size_t kMostMetricsBytes = size_t{16} << 20;

}  // namespace

Backend::Backend(boost::asio::io_context& context, BackendOptions options)
    : context_(context),
      options_(std::move(options)),
      address_(parse_base_url(options_.url)),
      endpoints_(resolve(address_)),
      timer_(context) {}

void Backend::start() {
  check_health();
}

void Backend::stop() {
  stopped_ = true;
  timer_.cancel();
  for (const std::weak_ptr<HttpCall>& one : std::exchange(calls_, {}))
    if (const auto call = one.lock()) call->cancel();
}

std::shared_ptr<HttpCall> Backend::call(HttpCallRequest request, HttpCallEvents events) {
  request.target = address_.path + request.target;
  events.on_end = [this, on_end = std::move(events.on_end)](HttpCallEnd end, const std::string& why) {
    if (end == HttpCallEnd::no_connect) set_up(false, why);
    on_end(end, why);
  };
  auto call = HttpCall::start(context_, address_, endpoints_, std::move(request), std::move(events));
  calls_.push_back(call);
  return call;
}

void Backend::check_health() {
  std::erase_if(calls_, [](const std::weak_ptr<HttpCall>& call) { return call.expired(); });
  const auto status = std::make_shared<int>(0);
  HttpCallEvents events;
  events.on_head = [status](const ResponseReader& head) { *status = head.status; };
  events.on_body = [](std::string_view) {};
  events.on_end = [this, status](HttpCallEnd end, const std::string& why) {
    if (end == HttpCallEnd::no_connect) set_up(false, why);
    if (end != HttpCallEnd::whole) return missed(why);
    num_missed_ = 0;
    ready_ = *status == 200;
    if (ready_) set_up(true, {});
    check_load();
  };
  calls_.push_back(HttpCall::start(context_, address_, endpoints_,
                                   {.target = address_.path + "/health",
                                    .headers = options_.check_headers,
                                    .connect_timeout = options_.check_timeout,
                                    .silence_timeout = options_.check_timeout},
                                   std::move(events)));
}

// Who has no metrics is judged by what this router has sent to it. What a busy one said last is better than nothing.
void Backend::check_load() {
  struct Answer {
    int status = 0;
    std::string body;
  };
  const auto answer = std::make_shared<Answer>();
  HttpCallEvents events;
  events.on_head = [answer](const ResponseReader& head) { answer->status = head.status; };
  events.on_body = [answer](std::string_view bytes) {
    if (answer->body.size() < kMostMetricsBytes) answer->body += bytes;
  };
  events.on_end = [this, answer](HttpCallEnd end, const std::string&) {
    if (end == HttpCallEnd::whole) {
      num_missed_reports_ = 0;
      report_ = answer->status == 200 ? read_load_report(answer->body) : LoadReport();
    } else if (++num_missed_reports_ >= kMissedChecks) {
      report_ = LoadReport();
    }
    check_again();
  };
  calls_.push_back(HttpCall::start(context_, address_, endpoints_,
                                   {.target = address_.path + "/metrics",
                                    .headers = options_.check_headers,
                                    .connect_timeout = options_.check_timeout,
                                    .silence_timeout = options_.check_timeout},
                                   std::move(events)));
}

void Backend::check_again() {
  if (stopped_) return;
  timer_.expires_after(options_.check_interval);
  timer_.async_wait([this](const boost::system::error_code& failure) {
    if (!failure && !stopped_) check_health();
  });
}

void Backend::missed(const std::string& why) {
  if (++num_missed_ >= kMissedChecks) {
    set_up(false, why);
    for (const std::weak_ptr<HttpCall>& one : std::exchange(calls_, {})) {
      const auto call = one.lock();
      if (!call) continue;
      if (!call->has_head()) call->fail("it answers no health check");
      calls_.push_back(call);
    }
  }
  check_again();
}

void Backend::set_up(bool up, const std::string& why) {
  if (std::exchange(up_, up) == up) return;
  source.reset();
  if (options_.log)
    options_.log(up ? fmt::format("{} server {} answers again", options_.role, options_.url)
                    : fmt::format("{} server {} is out: {}", options_.role, options_.url, why));
  if (up && options_.on_back) options_.on_back();
}

}  // namespace ladder
