// `ladder route` and `ladder serve --disaggregate`: what they refuse, and the whole on this machine.
#ifdef LADDER_HAS_SERVER
#include <gmock/gmock.h>

#include <algorithm>

#include "step8_advanced/disaggregation/transport/kv_channel.h"
#include "tests/cli/running_server.h"
#include "tests/step8_advanced/disaggregation/router/server/fake_backend.h"

namespace ladder::testing {
namespace {

TEST(Cli_Route, MistakesAreNamed) {
  expect_refused(run_binary({"route"}), "--prefill");
  expect_refused(run_binary({"route", "--prefill", "http://127.0.0.1:1"}), "--decode");
  const auto refused = [](std::vector<std::string> more, const std::string& word) {
    more.insert(more.begin(), {"route", "--port=0"});
    expect_refused(run_binary(more), word);
  };
  const std::string nobody = "http://127.0.0.1:1";
  refused({"--prefill", "ftp://x", "--decode", nobody}, "ftp://x");
  refused({"--prefill", nobody, "--decode", nobody}, nobody);
  FakeBackend good(decodes({})), other(decodes({}));
  other.health = 404;
  refused({"--prefill", good.url(), "--decode", other.url()}, other.url());
  refused({"--prefill", good.url(), "--decode", good.url(), "--max-in-flight=0"}, "--max-in-flight");
  refused({"--prefill", good.url(), "--decode", good.url(), "--retries=-1"}, "--retries");
}

TEST(Cli_Route, RoutesUntilItIsToldToStop) {
  FakeBackend prefill(prefills("P0")), decode(decodes({"One", " day"}));
  RunningServer router(RunningServer::Command{"route"},
                       {"--prefill=" + prefill.url(), "--decode=" + decode.url(), "--min-remote-tokens=1"});
  ASSERT_TRUE(router.ready());
  EXPECT_EQ(body_of(router.post({{"prompt", "a prompt"}, {"max_tokens", 2}})), R"({"text": "One day"})");
  EXPECT_EQ(prefill.num_requests(), 1);
  EXPECT_EQ(router.metric("router_transfers_total"), 1);
  EXPECT_EQ(status_of(router.get("/health")), 200);
  router.kill(SIGTERM);
  EXPECT_EQ(router.exit_code(), 0) << router.err();
}

TEST(Cli_Route, AKeyIsAskedAndPassedOn) {
  FakeBackend prefill(prefills("P0")), decode(decodes({"One", " day"}));
  RunningServer router(
      RunningServer::Command{"route"},
      {"--prefill=" + prefill.url(), "--decode=" + decode.url(), "--min-remote-tokens=1", "--api-key=k"});
  ASSERT_TRUE(router.ready());
  EXPECT_EQ(status_of(router.post({{"prompt", "a prompt"}})), 401);
  RawClient client(router.port());
  std::string request = RunningServer::completion({{"prompt", "a prompt"}});
  client.send(request.insert(request.find("Connection:"), "Authorization: Bearer k\r\n"));
  EXPECT_EQ(body_of(client.rest()), R"({"text": "One day"})");
  EXPECT_EQ(prefill.num_requests(), 1);
  EXPECT_NE(decode.head(0).find("Authorization: Bearer k\r\n"), std::string::npos);
}

TEST(Cli_Disaggregate, MistakesAreNamed) {
  const auto refused = [](std::vector<std::string> more, const std::string& word) {
    more.insert(more.begin(), {"serve", "--device=cpu", "--port=0"});
    expect_refused(run_binary(more), word);
  };
  for (const char* wrong : {"1", "1P", "P1D", "0P1D", "1P0D", "1D1P", "1P1Dx", "65P1D", "-1P1D", "1P 1D"})
    refused({std::string("--disaggregate=") + wrong}, "--disaggregate");
  refused({"--disaggregate=1P1D", "--api-server-count=2"}, "--api-server-count");
  refused({"--disaggregate=1P1D", "--data-parallel-size=2"}, "--data-parallel-size");
  refused({"--disaggregate=1P1D", "--min-remote-tokens=-1"}, "--min-remote-tokens");
  refused({"--disaggregate=1P1D", "--headless"}, "--headless");
  refused({"--disaggregate=1P1D", "--trace=/dev/null"}, "--trace");
  refused({"--disaggregate=1P1D", "--kv-role=both"}, "--kv-role both: --disaggregate");
  refused({"--disaggregate=1P1D", "--kv-listen=nowhere"}, "--kv-listen: nowhere: ");
  for (const char* wrong : {"--disaggregate=1P1D", "--kv-role=producer"})
    refused({wrong, "--kv-listen=shm://a/b"},
            "--kv-listen: shm://a/b: expected a name of 1 to 97 letters, digits");
  refused({"--disaggregate=2P1D", "--kv-listen=shm://a"}, "--kv-listen shm://a");
  refused({"--disaggregate=1P1D", "--kv-max-held=much"}, "--kv-max-held");
  refused({"--kv-lease=3"}, "--kv-lease: expected with --kv-role producer or both");
  refused({"--kv-recompute-threshold=3", "--kv-role=producer"},
          "--kv-recompute-threshold: expected with --kv-role consumer or both");
  refused({"--kv-load-timeout=3"}, "--kv-load-timeout: expected with --kv-role producer or consumer or both");
  refused({"--min-remote-tokens=1"}, "--min-remote-tokens");
  refused({"--prefill-tensor-parallel-size=2"}, "--prefill-tensor-parallel-size");
  refused({"--decode-tensor-parallel-size=2"}, "--decode-tensor-parallel-size");
  refused({"--disaggregate=1P1D", "--decode-tensor-parallel-size=0"}, "--decode-tensor-parallel-size");
  refused({"--disaggregate=1P1D", "--decode-tensor-parallel-size=2", "--enable-expert-parallel"},
          "--enable-expert-parallel");
  refused({"--disaggregate=1P1D", "--prefill-tensor-parallel-size=3", "--num-kv-blocks=128"},
          "--tensor-parallel-size 3");
  refused({"--disaggregate=1P1D", "--prefill-context-parallel-size=2"}, "--prefill-context-parallel-size 2");
  refused({"--disaggregate=1P1D", "--tensor-parallel-size=8", "--decode-context-parallel-size=2"},
          "--decode-context-parallel-size 2");
  refused({"--prefill-first"}, "--prefill-first");
}

// Its prompt is worth a transfer (--min-remote-tokens).
Json body(int number, bool stream) {
  std::string prompt = "One day number " + std::to_string(number) + " went to the market.";
  for (int i = 0; i < 8; ++i) prompt += " On the way there was a long story to be told about it.";
  return {{"prompt", prompt},
          {"max_tokens", 12 + number},
          {"ignore_eos", true},
          {"seed", number},
          {"temperature", number % 2 == 0 ? 0.0 : 1.0},
          {"stream", stream}};
}

std::string text_of(const std::string& answer) {
  std::string text;
  const Json whole = Json::parse(body_of(answer), nullptr, false);
  if (whole.is_object() && whole.contains("choices")) return whole["choices"][0]["text"].get<std::string>();
  for (size_t at = answer.find("data: {"); at != answer.npos; at = answer.find("data: {", at + 1)) {
    const Json event = Json::parse(answer.substr(at + 6, answer.find('\n', at) - at - 6), nullptr, false);
    if (event.is_object() && event.contains("choices") && !event["choices"].empty())
      text += event["choices"][0].value("text", "");
  }
  return text.empty() ? answer : text;
}

std::string ask(const RunningServer& server, const Json& body) {
  RawClient client(server.port());
  client.send(RunningServer::completion(body));
  return text_of(client.rest());
}

TEST(Cli_Disaggregate, AnswersAreThoseOfOneServerAndNothingIsLeft) {
  constexpr int kRequests = 4;
  std::vector<std::string> expected;
  {
    RunningServer one({"--num-kv-blocks=512"});
    ASSERT_TRUE(one.ready());
    for (int i = 0; i < kRequests; ++i) expected.push_back(ask(one, body(i, false)));
  }
  RunningServer server({"--disaggregate=1P1D", "--num-kv-blocks=512", "--drain-timeout=5"});
  ASSERT_TRUE(server.ready());
  for (const bool stream : {false, true})
    for (int i = 0; i < kRequests; ++i)
      EXPECT_EQ(ask(server, body(i, stream)), expected[static_cast<size_t>(i)])
          << i << (stream ? " streamed" : "");
  EXPECT_GT(server.metric("router_transfers_total"), 0) << "a decode server computed all of it";
  EXPECT_EQ(server.metric("router_fallbacks_total"), 0);

  const std::vector<int> children = server.children("disaggregated-server");
  ASSERT_EQ(children.size(), 2u);
  ::kill(children[0], SIGKILL);
  EXPECT_TRUE(eventually([&] { return server.err().find("started again") != std::string::npos; }));
  EXPECT_TRUE(eventually([&] { return ask(server, body(0, false)) == expected[0]; }, kStartPatience))
      << server.err();
  EXPECT_TRUE(eventually([&] { return server.children("disaggregated-server").size() == 2; }));
  const std::vector<int> last = server.children("disaggregated-server");
  server.kill(SIGTERM);
  EXPECT_EQ(server.exit_code(), 0) << server.err();
  for (const int child : last) EXPECT_NE(::kill(child, 0), 0) << child << " is left";
}

TEST(Cli_Disaggregate, WithoutPrefixCachingTheSamePromptIsHandedOverEachTime) {
  RunningServer server(
      {"--disaggregate=1P1D", "--num-kv-blocks=512", "--no-prefix-caching", "--drain-timeout=5"});
  ASSERT_TRUE(server.ready());
  const auto handed_over = [&] { return server.metric("router_transfers_total"); };
  const std::string first = ask(server, body(0, false));
  ASSERT_TRUE(eventually([&] { return ask(server, body(0, false)) == first && handed_over() > 0; }));
  const double before = handed_over();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(server, body(0, false)), first);
  EXPECT_EQ(handed_over(), before + 3);
}

// A prompt of many chunks: the decode server reads what is there of it while the rest is computed. In front of the server that
// computes it stands one that passes on the request when a reader waits for it, and the answer when all has been read.
TEST(Cli_Disaggregate, KeysGoOverWhileThePromptIsComputed) {
  const std::vector<std::string> flags = {"--num-kv-blocks=128", "--no-prefix-caching",
                                          "--max-num-batched-tokens=16"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  RunningServer producer(with({"--kv-role=producer", "--kv-layer-by-layer"}));
  RunningServer consumer(with({"--kv-role=consumer"}));
  ASSERT_TRUE(producer.ready() && consumer.ready());
  std::atomic<bool> holds_back = false;
  FakeBackend between([&](FakeBackend::Connection& connection) {
    const double sent = producer.metric("kv_transfer_sent_bytes_total");
    if (holds_back) {
      EXPECT_TRUE(eventually([&] { return consumer.metric("num_requests_waiting_for_kv") == 1; }))
          << "nobody waits for the prompt before it is computed";
    }
    const std::string answer = body_of(producer.post(connection.json()));
    if (holds_back) {
      EXPECT_TRUE(eventually([&] { return producer.metric("kv_transfer_sent_bytes_total") > sent; }))
          << "nobody reads before the answer is known";
    }
    connection.answer(200, answer);
  });
  between.set_metrics("ladder:num_requests_running{engine=\"0\"} 0\n");
  RunningServer router(
      RunningServer::Command{"route"},
      {"--prefill=" + between.url(), "--decode=http://127.0.0.1:" + std::to_string(consumer.port()),
       "--check-interval=0.05"});
  ASSERT_TRUE(router.ready());
  const std::string first = ask(consumer, body(3, false)), expected = ask(consumer, body(5, false));
  EXPECT_EQ(ask(router, body(3, false)), first);
  EXPECT_EQ(router.metric("router_at_once_transfers_total"), 0) << "where to read was not known";
  const int checks = between.num_checks;
  ASSERT_TRUE(eventually([&] { return between.num_checks > checks + 2; }));
  holds_back = true;
  EXPECT_EQ(ask(router, body(5, true)), expected);
  EXPECT_EQ(router.metric("router_at_once_transfers_total"), 1);
  EXPECT_EQ(router.metric("router_transfers_total"), 2);
  EXPECT_EQ(consumer.metric("kv_transfer_loads_total"), 2);
  EXPECT_EQ(consumer.metric("kv_transfer_failed_loads_total"), 0);
  EXPECT_TRUE(eventually([&] { return producer.metric("num_held_kv_blocks") == 0; }));
}

// Each server gets what its role has a use for; what it gets it also takes.
TEST(Cli_Disaggregate, FlagsOfTransfersReachTheServersOfTheirRole) {
  const std::vector<std::string> of_producer = {"--kv-listen=tcp://127.0.0.1:0?streams=2",
                                                "--kv-compression=zstd", "--kv-lease=20",
                                                "--kv-max-held=64MiB"},
                                 of_consumer = {"--kv-recompute-threshold=3", "--kv-loaders=2",
                                                "--kv-load-failure-policy=recompute"},
                                 of_both = {"--kv-load-timeout=50", "--block-size=8", "--num-kv-blocks=256"};
  std::vector<std::string> flags = {"--disaggregate=1P1D", "--no-prefix-caching"};
  for (const auto& some : {of_producer, of_consumer, of_both})
    flags.insert(flags.end(), some.begin(), some.end());
  RunningServer server(flags);
  ASSERT_TRUE(server.ready());
  int num_producers = 0;
  for (const int child : server.children("disaggregated-server")) {
    const std::string words = read_file(std::filesystem::path("/proc") / std::to_string(child) / "cmdline");
    const auto has = [&](const std::string& word) {
      return words.find(std::string(1, '\0') + word + std::string(1, '\0')) != words.npos;
    };
    const bool is_producer = has("--kv-role=producer");
    num_producers += is_producer ? 1 : 0;
    EXPECT_NE(is_producer, has("--kv-role=consumer"));
    for (const std::string& flag : of_producer) EXPECT_EQ(has(flag), is_producer) << flag;
    for (const std::string& flag : of_consumer) EXPECT_EQ(has(flag), !is_producer) << flag;
    for (const std::string& flag : of_both) EXPECT_TRUE(has(flag)) << flag;
  }
  EXPECT_EQ(num_producers, 1);
  EXPECT_FALSE(ask(server, body(2, false)).empty());
  EXPECT_EQ(server.metric("router_transfers_total"), 1);
  server.kill(SIGTERM);
  EXPECT_EQ(server.exit_code(), 0) << server.err();
  EXPECT_THAT(server.err(), ::testing::HasSubstr("lease 20 s"));
  EXPECT_THAT(server.err(), ::testing::HasSubstr("zstd took")) << "what was sent has been shortened";
}

TEST(Cli_Disaggregate, RanksMayBeProcessesAndTheEndOfOneIsThatOfItsServer) {
  RunningServer server({"--disaggregate=1P1D", "--num-kv-blocks=128", "--no-prefix-caching",
                        "--tensor-parallel-size=2", "--distributed-executor-backend=mp"});
  ASSERT_TRUE(server.ready());
  const std::string handed_over = ask(server, body(2, false));
  EXPECT_EQ(server.metric("router_transfers_total"), 1);
  EXPECT_EQ(server.metric("router_fallbacks_total"), 0);
  const int engine = server.children("disaggregated-server").at(0);
  const std::set<int> workers = children_of(engine);
  ASSERT_EQ(workers.size(), 2u);
  ::kill(*workers.rbegin(), SIGKILL);
  EXPECT_TRUE(eventually([&] { return ::kill(engine, 0) != 0; })) << server.err();
  // Computed by the other one, or by both when both are there again.
  EXPECT_TRUE(eventually([&] { return ask(server, body(2, false)) == handed_over; }, kStartPatience))
      << server.err();
}

// A prefill server of two worker processes, and a decode server of one rank.
TEST(Cli_Disaggregate, ServersOfEachKindMayHaveRanksOfTheirOwn) {
  const std::vector<std::string> flags = {"--num-kv-blocks=128", "--no-prefix-caching"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  RunningServer alone(with({}));
  RunningServer server(with({"--disaggregate=1P1D", "--prefill-tensor-parallel-size=2",
                             "--distributed-executor-backend=mp", "--drain-timeout=5"}));
  ASSERT_TRUE(alone.ready() && server.ready());
  std::map<std::string, size_t> num_workers;  // by --tensor-parallel-size
  for (const int child : server.children("disaggregated-server")) {
    const std::string words = read_file(std::filesystem::path("/proc") / std::to_string(child) / "cmdline");
    const size_t at = words.find("--tensor-parallel-size=");
    ASSERT_NE(at, words.npos);
    num_workers[words.substr(at, words.find('\0', at) - at)] = children_of(child).size();
  }
  EXPECT_EQ(num_workers, (std::map<std::string, size_t>{{"--tensor-parallel-size=1", 1},
                                                        {"--tensor-parallel-size=2", 2}}));
  for (const int number : {2, 3})
    EXPECT_EQ(ask(server, body(number, false)), ask(alone, body(number, false)));
  EXPECT_EQ(server.metric("router_transfers_total"), 2);
  EXPECT_EQ(server.metric("router_fallbacks_total"), 0);
  server.kill(SIGTERM);
  EXPECT_EQ(server.exit_code(), 0) << server.err();
}

// Whoever asks need not know that there are several: an answer names the one that keeps its keys.
TEST(Cli_Disaggregate, ReplicasAreEachAProducerOrAConsumer) {
  for (const char* wrong :
       {"--kv-listen=tcp://127.0.0.1:29999", "--kv-listen=ucx://127.0.0.1:29999", "--kv-listen=shm://a"})
    expect_refused(
        run_binary({"serve", "--device=cpu", "--port=0", "--kv-role=both", "--data-parallel-size=2", wrong}),
        "--kv-listen");
  expect_refused(run_binary({"serve", "--device=cpu", "--port=0", "--kv-role=both", "--data-parallel-size=2",
                             "--data-parallel-split-experts"}),
                 "--data-parallel-split-experts");
  const std::vector<std::string> flags = {"--num-kv-blocks=128", "--no-prefix-caching",
                                          "--data-parallel-size=2", "--data-parallel-balancer=round_robin"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  RunningServer producer(with({"--kv-role=producer"}));
  RunningServer consumer(with({"--kv-role=consumer", "--data-parallel-backend=mp"}));
  ASSERT_TRUE(producer.ready() && consumer.ready());
  std::set<std::string> addresses, engines;
  for (const int number : {2, 4}) {
    Json prompt = body(number, false), answer = body(number, false);
    prompt["max_tokens"] = 1;
    prompt["kv_transfer_params"] = {{"do_remote_decode", true}};
    const Json kept = Json::parse(body_of(producer.post(prompt)))["kv_transfer_params"];
    addresses.insert(kept["remote_address"]);
    engines.insert(kept["remote_engine_id"]);
    const std::string expected = ask(consumer, answer);
    answer["kv_transfer_params"] = kept;
    EXPECT_EQ(ask(consumer, answer), expected) << number;
  }
  EXPECT_EQ(addresses.size(), 2u);
  EXPECT_EQ(engines.size(), 2u);
  EXPECT_EQ(consumer.metric("kv_transfer_loads_total"), 2);
  EXPECT_EQ(consumer.metric("kv_transfer_failed_loads_total"), 0);
}

// Over UCX, and the producer is killed while a prompt is being read from it.
TEST(Cli_Disaggregate, KeysTravelByUcxAndADeadProducersPromptIsComputed) {
  if (std::ranges::none_of(kv_transports(), [](const KvTransport& row) { return row.name == "ucx"; }))
    GTEST_SKIP() << "the build has no UCX";
  const std::vector<std::string> flags = {"--num-kv-blocks=128", "--no-prefix-caching"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  RunningServer producer(with({"--kv-role=producer", "--kv-listen=ucx://127.0.0.1:0"}));
  RunningServer consumer(with({"--kv-role=consumer"}));
  ASSERT_TRUE(producer.ready() && consumer.ready());
  const auto handed_over = [&](int number) {
    Json prompt = body(number, false), answer = body(number, false);
    prompt["max_tokens"] = 1;
    prompt["kv_transfer_params"] = {{"do_remote_decode", true}};
    answer["kv_transfer_params"] = Json::parse(body_of(producer.post(prompt)))["kv_transfer_params"];
    EXPECT_THAT(answer["kv_transfer_params"].value("remote_address", ""),
                ::testing::StartsWith("ucx://127.0.0.1:"));
    return answer;
  };
  for (const int number : {2, 3}) {
    const std::string expected = ask(consumer, body(number, false));
    EXPECT_EQ(ask(consumer, handed_over(number)), expected) << number;
  }
  EXPECT_EQ(consumer.metric("kv_transfer_loads_total"), 2);
  EXPECT_EQ(consumer.metric("kv_transfer_failed_loads_total"), 0);

  const std::string expected = ask(consumer, body(4, false));
  const Json last = handed_over(4);
  producer.kill(SIGSTOP);  // it hears what is asked, and sends nothing
  RawClient client(consumer.port());
  client.send(RunningServer::completion(last));
  EXPECT_TRUE(eventually([&] { return consumer.metric("num_requests_waiting_for_kv") > 0; }));
  producer.kill(SIGKILL);
  EXPECT_EQ(text_of(client.rest()), expected);
  EXPECT_EQ(consumer.metric("kv_transfer_failed_loads_total"), 1);
}

}  // namespace
}  // namespace ladder::testing
#endif
