#include "step6_engine/server/window/window.h"

#include <algorithm>
#include <string>
#include <utility>

#include "step1_layers/core/error.h"
#include "step6_engine/server/http/errors.h"
#include "step6_engine/server/window/window_feed.h"
#include "step6_engine/server/window/window_files.h"

namespace ladder {

namespace {

// The page runs its own scripts and nothing else, talks to its own server, and cannot be shown inside another page.
constexpr const char* kSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

std::string_view content_type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  return "text/javascript; charset=utf-8";
}

HttpHandler serve_file(const WindowFile& file) {
  return [file](std::shared_ptr<HttpExchange> exchange) {
    exchange->respond({.body = std::string(file.text),
                       .content_type = std::string(content_type_of(file.name)),
                       .headers = {{"Content-Security-Policy", kSecurityPolicy},
                                   {"X-Content-Type-Options", "nosniff"},
                                   {"Referrer-Policy", "no-referrer"},
                                   {"Cache-Control", "no-cache"}}});
  };
}

const WindowFile& file_of(std::string_view name) {
  const auto files = window_files();
  const auto file =
      std::find_if(files.begin(), files.end(), [name](const WindowFile& one) { return one.name == name; });
  LADDER_CHECK(file != files.end(), "the page has no file {}", name);
  return *file;
}

class EventsAnswer final : public HttpAnswer {
 public:
  explicit EventsAnswer(std::shared_ptr<WindowFeed::Watcher> watcher) : watcher_(std::move(watcher)) {}

  void advance(HttpExchange& exchange) override {
    if (!begun_)
      exchange.begin({.content_type = "text/event-stream",
                      .headers = {{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}}});
    begun_ = true;
    const WindowFeed::Watcher::Piece piece = watcher_->take();
    if (!piece.events.empty()) exchange.write(piece.events);
    if (piece.ended) exchange.finish();
  }

 private:
  const std::shared_ptr<WindowFeed::Watcher> watcher_;
  bool begun_ = false;
};

}  // namespace

void add_window_routes(Router& router, EngineClient& client, WindowOptions options) {
  router.add({"GET", "/", Access::anyone, RunsOn::connection, serve_file(file_of("index.html"))});
  router.add({"GET", "/docs", Access::anyone, RunsOn::connection, serve_file(file_of("docs.html"))});
  for (const WindowFile& file : window_files())
    if (!file.name.ends_with(".html"))
      router.add(
          {"GET", "/window/" + std::string(file.name), Access::anyone, RunsOn::connection, serve_file(file)});

  const auto feed = std::make_shared<WindowFeed>(client, options.max_watchers);
  router.add({"GET", "/window/events", Access::with_key, RunsOn::connection,
              [feed](std::shared_ptr<HttpExchange> exchange) {
                auto watcher = feed->watch(exchange->waker());
                if (watcher == nullptr)
                  return exchange->respond(
                      error_response(503, "as many watch this engine as may at the same time"));
                exchange->hold(std::make_unique<EventsAnswer>(std::move(watcher)));
              }});
}

}  // namespace ladder
