#pragma once
// The OpenAI routes over the tiny model: asked as a client asks, compared with Engine::generate.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "step2_model/json.h"
#include "step6_engine/server/openai/openai_routes.h"
#include "step6_engine/thread_engine_client.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/step6_engine/server/fake_exchange.h"

namespace ladder::testing {

inline constexpr int64_t kServedLength = 256;

inline EngineOptions served_options() {
  EngineOptions options = small_options(tiny_model(), DeviceType::cpu, kServedLength);
  options.runner.threads = 2;
  return options;
}

// Loaded once for all tests of the binary: the engine keeps nothing of a request but its prefix cache, which no
// answer shows in f32 but in cached_tokens.
class OpenAi : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (model_) return;
    const ModelFolder folder = open_model_folder(tiny_model());
    model_ = new std::shared_ptr<const ServedModel>(std::make_shared<const ServedModel>(
        make_served_model(tiny_model(), folder, kServedLength, {"tiny", "other/name"})));
    client_ = new ThreadEngineClient(load_engine(served_options(), folder));
    router_ = new Router();
    add_openai_routes(*router_, *client_, *model_, {.tokenizer_info = true});
  }

  static std::shared_ptr<FakeExchange> post(const std::string& path, const std::string& body) {
    return FakeExchange::ask(*router_, FakeExchange::post(path, body));
  }
  static std::shared_ptr<FakeExchange> get(const std::string& path) {
    return FakeExchange::ask(*router_, FakeExchange::get(path));
  }
  // The JSON of a 200.
  static Json answer(const std::string& path, const std::string& body) {
    const auto exchange = post(path, body);
    EXPECT_EQ(exchange->head.status, 200) << exchange->body();
    return Json::parse(exchange->body());
  }
  // The member "error" of a 400, or of `status`.
  static Json refusal(const std::string& path, const std::string& body, int status = 400) {
    const auto exchange = post(path, body);
    EXPECT_EQ(exchange->head.status, status)
        << body.substr(0, 200) << " gave " << exchange->body().substr(0, 300);
    const Json parsed = Json::parse(exchange->body(), nullptr, false);
    if (!parsed.is_object() || !parsed.contains("error")) {
      ADD_FAILURE() << body.substr(0, 200) << " gave " << exchange->body().substr(0, 300);
      return Json::object();
    }
    EXPECT_EQ(parsed["error"]["code"], status);
    return parsed["error"];
  }
  // The events of a stream: every line `data: {..}` but the last, which is [DONE].
  static std::vector<Json> events(const FakeExchange& exchange) {
    EXPECT_EQ(exchange.head.status, 200) << exchange.body();
    EXPECT_EQ(exchange.head.content_type, "text/event-stream");
    std::vector<Json> found;
    const std::string body = exchange.body();
    bool done = false;
    for (size_t begin = 0; begin < body.size();) {
      const size_t end = body.find("\n\n", begin);
      EXPECT_NE(end, std::string::npos) << "an event without its end";
      if (end == std::string::npos) break;
      const std::string event = body.substr(begin, end - begin);
      begin = end + 2;
      EXPECT_TRUE(event.starts_with("data: ")) << event;
      EXPECT_EQ(event.find('\n'), std::string::npos) << event;
      EXPECT_FALSE(done) << "an event behind [DONE]";
      if (event == "data: [DONE]")
        done = true;
      else
        found.push_back(Json::parse(event.substr(6)));
    }
    EXPECT_TRUE(done) << body.substr(0, 500);
    return found;
  }
  static std::vector<Json> stream(const std::string& path, const std::string& body) {
    return events(*post(path, body));
  }

  // What an engine of its own gives for the same request.
  static RequestOutput generated(const Request& request) {
    static const std::unique_ptr<Engine> engine = engine_with(served_options());
    return engine->generate({request})[0];
  }
  static const ServedModel& model() { return **model_; }
  static ThreadEngineClient& client() { return *client_; }
  static Router& router() { return *router_; }

 private:
  static inline std::shared_ptr<const ServedModel>* model_ = nullptr;
  static inline ThreadEngineClient* client_ = nullptr;
  static inline Router* router_ = nullptr;
};

}  // namespace ladder::testing
