// The page's files and the live feed behind it, without a browser (tests/window/ has one).
#include "step6_engine/server/window/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "step6_engine/server/window/window_files.h"
#include "step6_engine/thread_engine_client.h"
#include "step6_engine/trace/trace_json.h"
#include "step6_engine/trace/trace_state.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/server/fake_exchange.h"

namespace ladder {
namespace {

using testing::FakeExchange;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<Engine> fake_engine() {
  return std::unique_ptr<Engine>(new Engine(testing::make_engine(2)));
}

std::string header_of(const HttpResponse& response, std::string_view name) {
  for (const auto& [key, value] : response.headers)
    if (key == name) return value;
  return "";
}

struct Scene {
  ThreadEngineClient client{fake_engine()};
  Router router;

  explicit Scene(WindowOptions options = {}) { add_window_routes(router, client, options); }
};

TEST(Window, EveryPageMayBeSeenByAnyoneAndRunsItsOwnScriptsAlone) {
  Scene scene;
  int num_pages = 0;
  for (const Route& route : scene.router.routes()) {
    if (route.path == "/window/events") continue;
    ++num_pages;
    const auto exchange = FakeExchange::ask(scene.router, FakeExchange::get(route.path));
    EXPECT_EQ(exchange->head.status, 200) << route.path;
    EXPECT_EQ(route.access, Access::anyone) << route.path;
    EXPECT_EQ(header_of(exchange->head, "X-Content-Type-Options"), "nosniff") << route.path;
    const std::string policy = header_of(exchange->head, "Content-Security-Policy");
    EXPECT_THAT(policy, HasSubstr("default-src 'none'; script-src 'self';")) << route.path;
    EXPECT_THAT(policy, Not(HasSubstr("unsafe"))) << route.path;
    EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'")) << route.path;
  }
  EXPECT_EQ(num_pages, std::ssize(window_files()));
  EXPECT_THAT(FakeExchange::ask(scene.router, FakeExchange::get("/"))->head.content_type,
              HasSubstr("text/html"));
  EXPECT_THAT(FakeExchange::ask(scene.router, FakeExchange::get("/docs"))->body(),
              HasSubstr("/v1/chat/completions"));
  EXPECT_EQ(scene.router.find("GET", "/window/index.html"), nullptr);
}

TEST(Window, NothingComesFromElsewhereAndNoTextBecomesMarkup) {
  for (const WindowFile& file : window_files()) {
    const std::string text(file.text);
    for (const char* forbidden :
         {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
          "DOMParser", "srcdoc", "javascript:", "https://", "//cdn", " style=\"", " onclick="})
      EXPECT_THAT(text, Not(HasSubstr(forbidden))) << file.name;
    // An address of the reader's own machine, as an example.
    for (size_t at = text.find("http:"); at != std::string::npos; at = text.find("http:", at + 1))
      EXPECT_THAT(text.substr(at, 21), HasSubstr("http://localhost")) << file.name;
  }
}

TEST(Window, TheFeedNeedsTheKey) {
  Scene scene;
  const Route* events = scene.router.find("GET", "/window/events");
  ASSERT_NE(events, nullptr);
  EXPECT_EQ(events->access, Access::with_key);
}

// The records of a stream's pieces.
struct Reader {
  std::optional<TraceHeader> header;
  std::optional<TraceState> state;
  int64_t num_steps = 0;
  size_t read = 0;

  // A feed, read until its header has come.
  std::shared_ptr<FakeExchange> begin(const Scene& scene) {
    auto exchange = FakeExchange::get("/window/events");
    scene.router.find("GET", "/window/events")->handler(exchange);
    while (!header && exchange->run_once()) take(exchange->body());
    EXPECT_TRUE(header);
    return exchange;
  }

  void take(const std::string& body) {
    for (size_t end = body.find("\n\n", read); end != std::string::npos; end = body.find("\n\n", read)) {
      const std::string event = body.substr(read, end - read);
      read = end + 2;
      if (event.starts_with(":")) continue;
      ASSERT_TRUE(event.starts_with("data: ")) << event;
      const std::string line = event.substr(6);
      EXPECT_EQ(line.find('\n'), std::string::npos);
      if (line.find("ladder_trace") != std::string::npos) {
        header = parse_trace_header(line, "header");
        state.emplace(header->num_blocks);
        continue;
      }
      ASSERT_TRUE(header);
      const auto record = std::get<TraceRecord>(parse_trace_line(line, *header, "line"));
      num_steps += record.step >= 0;
      state->apply(record);
    }
  }
};

TEST(Window, TheFeedTellsEveryStep) {
  Scene scene;
  Reader reader;
  const auto exchange = reader.begin(scene);
  EXPECT_EQ(exchange->head.content_type, "text/event-stream");
  scene.client.submit(testing::token_request({1, 2, 3}, 40)).output();
  while (reader.num_steps < 40 || !reader.state->sequences().empty()) {
    ASSERT_TRUE(exchange->run_once());
    reader.take(exchange->body());
  }
  EXPECT_EQ(reader.num_steps, 40);
}

TEST(Window, AFeedThatIsNotReadHoldsOnePieceAndGoesOnRight) {
  Scene scene;
  Reader reader;
  const auto exchange = reader.begin(scene);
  for (int i = 0; i < 20; ++i) scene.client.submit(testing::token_request({1, 2, i}, 60)).output();
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  const size_t before = exchange->body().size();
  ASSERT_TRUE(exchange->run_once());
  EXPECT_LT(exchange->body().size() - before, 200'000u) << "1,200 steps have passed, and one piece is kept";
  reader.take(exchange->body());
  while (reader.num_steps < 1200 || !reader.state->sequences().empty()) {
    ASSERT_TRUE(exchange->run_once());
    reader.take(exchange->body());
  }
}

TEST(Window, AsManyMayWatchAsTheOptionsSayAndWhoGoesMakesRoom) {
  Scene scene({.max_watchers = 2});
  const Route* route = scene.router.find("GET", "/window/events");
  auto first = FakeExchange::get("/window/events"), second = FakeExchange::get("/window/events");
  route->handler(first);
  route->handler(second);
  const auto third = FakeExchange::get("/window/events");
  route->handler(third);
  EXPECT_EQ(third->head.status, 503);
  second->drop();
  // The feed may hold the one that has gone for a moment more.
  int status = 503;
  for (int i = 0; i < 3000 && status == 503; ++i) {
    const auto again = FakeExchange::get("/window/events");
    route->handler(again);
    status = again->head.status;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(status, 200);
}

TEST(Window, TheFeedEndsWithTheEngine) {
  Scene scene;
  const auto exchange = FakeExchange::get("/window/events");
  scene.router.find("GET", "/window/events")->handler(exchange);
  ASSERT_TRUE(exchange->run_once());
  scene.client.stop();
  exchange->run();
  EXPECT_TRUE(exchange->ended());
}

}  // namespace
}  // namespace ladder
