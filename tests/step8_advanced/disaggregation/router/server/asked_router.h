#pragma once
// A router, and what clients ask it.
#include "step8_advanced/disaggregation/router/server/route_server.h"

#include "tests/step8_advanced/disaggregation/router/server/fake_backend.h"

namespace ladder::testing {

using Urls = std::vector<std::string>;

inline RouteServerOptions options_of(Urls prefills, Urls decodes) {
  RouteServerOptions options;
  options.http.port = 0;
  options.http.io_threads = 1;
  options.prefill_urls = std::move(prefills);
  options.decode_urls = std::move(decodes);
  options.policy.min_remote_tokens = 1;
  options.check_interval = 20ms;
  return options;
}

// A prompt that no server has cached.
inline Json body_of_request(bool stream, int number = 0) {
  return {{"prompt", std::to_string(number) + " a prompt"}, {"max_tokens", 5}, {"stream", stream}};
}

inline std::string request_text(const Json& body, std::string_view headers = {},
                                std::string_view path = "/v1/completions") {
  const std::string text = body.dump();
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n" +
         std::string(headers) + "Content-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text;
}

inline std::string ask(const RouteServer& router, const Json& body, std::string_view headers = {}) {
  RawClient client(router.port());
  if (!client.send(request_text(body, headers))) return {};
  return client.rest();
}

inline std::string get(const RouteServer& router, const std::string& path) {
  RawClient client(router.port());
  client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  return client.rest();
}

// "retries" of one label, as the router's page has it; -1: it has not.
inline double metric(const RouteServer& router, const std::string& sample) {
  const std::string text = get(router, "/metrics"), line = "ladder:router_" + sample + " ";
  const size_t at = text.find("\n" + line);
  return at == text.npos ? -1 : std::stod(text.substr(at + 1 + line.size()));
}

// The events' data, without chunks' sizes.
inline std::vector<std::string> events_of(const std::string& answer) {
  std::vector<std::string> events;
  for (size_t at = answer.find("data: "); at != answer.npos; at = answer.find("data: ", at + 1))
    events.push_back(answer.substr(at + 6, answer.find('\n', at) - at - 6));
  return events;
}

// What decodes({"One", " day"}) answers, as a client gets it.
inline const std::vector<std::string> kStreamed = {R"({"text":"One"})", R"({"text":" day"})",
                                                   R"({"choices":[]})", "[DONE]"};
inline const std::string kWhole = R"({"text": "One day"})";

}  // namespace ladder::testing
