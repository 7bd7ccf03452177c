// Who may ask: keys, CORS, a root path; and that nobody else has a byte of his body read.
#include "tests/step6_engine/server/http_routes.h"

namespace ladder::testing {
namespace {

int ask(const TestServer& test, std::string_view request) {
  RawClient client = test.connect();
  client.send(request);
  client.receive_until("\r\n\r\n");
  return status_of(client.got());
}

TEST(Task6_6_Access, EveryRouteIsOpenByListOrNeedsAKey) {
  HttpServerOptions options = test_options();
  options.api_keys = {"first key", "second"};
  TestServer test(options);
  for (const char* path : {"/plain", "/stream", "/chain", "/forgets", "/throws", "/nothing", "/", "/openx"})
    EXPECT_EQ(ask(test, get(path)), 401) << path;
  for (const char* path : {"/echo", "/echo_worker", "/slow", "/open", "/stream_worker"})
    EXPECT_EQ(ask(test, post(path, "x")), 401) << path;
  EXPECT_EQ(ask(test, "OPTIONS /plain HTTP/1.1\r\nHost: a\r\n\r\n"), 401);
  EXPECT_EQ(ask(test, "HEAD /plain HTTP/1.1\r\nHost: a\r\n\r\n"), 401);
  EXPECT_EQ(ask(test, get("/open")), 200);
  EXPECT_EQ(ask(test, "HEAD /open HTTP/1.1\r\nHost: a\r\n\r\n"), 200);
  EXPECT_EQ(test.num_slow + test.num_echoed + test.stream->num_held, 0);

  for (const char* header :
       {"Authorization: Bearer first key", "Authorization: bearer second", "X-Api-Key: second"})
    EXPECT_EQ(ask(test, get("/plain", std::string(header) + "\r\n")), 200) << header;
  for (const char* header : {"Authorization: Bearer", "Authorization: Bearer ", "Authorization: Bearer first",
                             "Authorization: Basic second", "Authorization: Bearer second ky",
                             "Authorization: second", "X-Api-Key: ", "X-Api-Key: secon", "X-Api-Key: second2",
                             "X-Api-Key: SECOND", "Authorization: Bearer first keysecond"})
    EXPECT_EQ(ask(test, get("/plain", std::string(header) + "\r\n")), 401) << header;
}

TEST(Task6_6_Access, ABodyWithoutAKeyIsNotRead) {
  HttpServerOptions options = test_options();
  options.api_keys = {"key"};
  TestServer test(options);
  RawClient client = test.connect();
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n");
  EXPECT_EQ(status_of(client.rest()), 401);
  EXPECT_NE(client.got().find("WWW-Authenticate: Bearer"), std::string::npos);
  EXPECT_NE(client.got().find("\"type\":\"authentication_error\""), std::string::npos);
}

TEST(Task6_6_Access, ContinueIsSaidToWhoMaySendABody) {
  HttpServerOptions options = test_options();
  options.api_keys = {"key"};
  TestServer test(options);
  const auto head = [](const char* headers, const char* length) {
    return "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: " +
           std::string(length) + "\r\n" + headers + "\r\n";
  };
  RawClient client = test.connect();
  client.send(head("X-Api-Key: key\r\n", "5"));
  ASSERT_TRUE(client.receive_until("HTTP/1.1 100 Continue\r\n\r\n"));
  client.got().clear();
  client.send("hello");
  EXPECT_EQ(body_of(client.answer()), "hello");
  EXPECT_EQ(ask(test, head("", "5")), 401);
  EXPECT_EQ(ask(test, head("X-Api-Key: key\r\n", "99999999")), 413);
}

TEST(Task6_6_Access, OtherSitesMayAskOnlyWhereListed) {
  TestServer closed;
  {
    RawClient client = closed.connect();
    client.send(get("/plain", "Origin: https://a.example\r\n"));
    EXPECT_EQ(client.answer().find("Access-Control"), std::string::npos) << "the default: no site may";
  }
  HttpServerOptions options = test_options();
  options.api_keys = {"key"};
  options.cors.allowed_origins = {"https://a.example"};
  options.cors.allowed_methods = {"GET", "POST"};
  options.cors.allowed_headers = {"Authorization", "content-type"};
  TestServer test(options);
  const auto preflight = [&](const char* origin, const char* method, const char* headers) {
    RawClient client = test.connect();
    client.send("OPTIONS /plain HTTP/1.1\r\nHost: a\r\nOrigin: " + std::string(origin) +
                "\r\nAccess-Control-Request-Method: " + method +
                "\r\nAccess-Control-Request-Headers: " + headers + "\r\n\r\n");
    return client.answer();
  };
  const std::string good = preflight("https://a.example", "POST", "authorization, Content-Type");
  EXPECT_EQ(status_of(good), 200) << "a preflight has no key";
  EXPECT_NE(good.find("Access-Control-Allow-Origin: https://a.example\r\n"), good.npos);
  EXPECT_NE(good.find("Access-Control-Allow-Methods: GET, POST\r\n"), good.npos);
  EXPECT_NE(good.find("Vary: Origin"), good.npos);
  EXPECT_EQ(good.find("Access-Control-Allow-Origin"), good.rfind("Access-Control-Allow-Origin")) << "once";
  for (const std::string& bad :
       {preflight("https://b.example", "POST", ""), preflight("https://a.example", "PUT", ""),
        preflight("https://a.example", "POST", "x-evil"), preflight("null", "POST", "")}) {
    EXPECT_EQ(status_of(bad), 400);
    EXPECT_EQ(body_of(bad).substr(0, 15), "Disallowed CORS");
  }
  for (const char* origin : {"https://a.example", "https://b.example"}) {
    RawClient client = test.connect();
    client.send(get("/plain", "X-Api-Key: key\r\nOrigin: " + std::string(origin) + "\r\n"));
    EXPECT_EQ(client.answer().find("Access-Control-Allow-Origin") != std::string::npos,
              std::string_view(origin) == "https://a.example");
    RawClient refused = test.connect();  // a page may read why
    refused.send(get("/plain", "Origin: " + std::string(origin) + "\r\n"));
    EXPECT_EQ(refused.answer().find("Access-Control-Allow-Origin") != std::string::npos,
              std::string_view(origin) == "https://a.example");
  }
}

TEST(Task6_6_Access, AllSitesWithAndWithoutCredentials) {
  for (const bool credentials : {false, true}) {
    HttpServerOptions options = test_options();
    options.cors.allowed_origins = {"*"};
    options.cors.allow_credentials = credentials;
    TestServer test(options);
    RawClient client = test.connect();
    client.send(get("/plain", "Origin: https://a.example\r\n"));
    const std::string answer = client.answer();
    EXPECT_EQ(answer.find("Access-Control-Allow-Origin: *\r\n") == answer.npos, credentials);
    EXPECT_EQ(answer.find("Access-Control-Allow-Origin: https://a.example\r\n") != answer.npos, credentials);
    EXPECT_EQ(answer.find("Access-Control-Allow-Credentials: true") != answer.npos, credentials);
  }
}

TEST(Task6_6_Access, ARootPathIsTakenOff) {
  HttpServerOptions options = test_options();
  options.root_path = "/llm/";
  TestServer test(options);
  EXPECT_EQ(ask(test, get("/llm/plain")), 200);
  EXPECT_EQ(ask(test, get("/plain")), 200) << "from a proxy that cuts it off";
  EXPECT_EQ(ask(test, get("/llmplain")), 404);
  EXPECT_EQ(ask(test, get("/llm")), 404);
  EXPECT_EQ(ask(test, get("/llm/llm/plain")), 404);
}

}  // namespace
}  // namespace ladder::testing
