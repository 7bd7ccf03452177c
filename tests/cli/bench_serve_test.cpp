// ladder bench serve against the canned responder, as a user runs it.
#ifdef LADDER_HAS_SERVER
#include <filesystem>

#include "cli/bench/serve_canned.h"
#include "cli/bench/serve_plan.h"
#include "cli/bench/serve_report.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using testing::expect_refused;
using testing::Json;
using testing::run_binary;

TEST(Cli_BenchServe, EveryRequestIsCountedAndWrittenDown) {
  testing::TemporaryFolder folder;
  const std::string json = (folder / "load.json").string();
  for (const bool chat : {false, true}) {
    std::vector<std::string> arguments = {"bench",
                                          "serve",
                                          "--canned",
                                          "--num-prompts",
                                          "20",
                                          "--min-prompt-len",
                                          "3",
                                          "--max-prompt-len",
                                          "9",
                                          "--min-output-len",
                                          "1",
                                          "--max-output-len",
                                          "30",
                                          "--max-concurrency",
                                          "4",
                                          "--goodput",
                                          "ttft:10000",
                                          "tpot:10000",
                                          "--json",
                                          json,
                                          "--save-detailed"};
    if (chat) arguments.push_back("--chat");
    const BinaryResult run = run_binary(arguments);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_NE(run.out.find("successful requests"), std::string::npos);
    const Json result = Json::parse(testing::read_file(json)).at("results").at(0);
    EXPECT_EQ(result.at("completed"), 20);
    EXPECT_EQ(result.at("failed"), 0);
    EXPECT_LE(result.at("peak_in_flight"), 4);
    EXPECT_EQ(result.at("chunks"), result.at("output_tokens")) << "one chunk a token";
    EXPECT_NEAR(result.at("good_requests_per_second").get<double>(),
                result.at("requests_per_second").get<double>(), 1e-9);
    ASSERT_EQ(result.at("requests").size(), 20u);
    int64_t sum = 0;
    for (const Json& request : result.at("requests")) {
      sum += request.at("output_tokens").get<int64_t>();
      EXPECT_EQ(request.at("finish_reason"), "length");
      EXPECT_EQ(request.at("itl").size() + 1, request.at("output_tokens").get<size_t>());
    }
    EXPECT_EQ(result.at("output_tokens"), sum);
  }
}

TEST(Cli_BenchServe, ARequestIsNotSentBeforeItsTime) {
  const CannedServer server({});
  MessageOptions message;
  message.address = parse_base_url(server.address());
  Request request;
  request.prompt_token_ids = {1};
  request.sampling.max_tokens = 2;
  const std::vector<ServeRequest> requests(20, make_message(request, message));
  LoadOptions options;
  options.address = message.address;
  options.arrivals = arrival_times(20, 200.0, 1.0, 1);
  const LoadResult result = run_load(requests, options);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(result.records[i].error, "") << result.records[i].detail;
    EXPECT_GE(result.records[i].sent, options.arrivals[i]);
    EXPECT_GE(result.records[i].late(), 0.0);
  }
}

TEST(Cli_BenchServe, WhatGoesWrongIsCountedByKind) {
  const CannedServer server({});
  MessageOptions message;
  message.address = parse_base_url(server.address());
  Request request;
  request.prompt_token_ids = {1, 2};
  request.sampling.max_tokens = 3;
  request.sampling.ignore_eos = true;
  std::vector<ServeRequest> requests(5, make_message(request, message));
  requests[1].num_prompt_tokens = 9;  // the server will say 2
  requests[2].max_tokens = 7;         // and 3
  message.extra_body = {{"stream", false}};
  requests[3] = make_message(request, message);
  message.address.path = "/nowhere";
  requests[4] = make_message(request, message);
  LoadOptions options;
  options.address = message.address;
  options.max_concurrency = 1;
  const ServeSummary summary = summarise(run_load(requests, options), {});
  EXPECT_EQ(summary.completed, 1);
  EXPECT_EQ(summary.errors,
            (std::map<std::string, int64_t>{{"token count", 2}, {"HTTP 400", 1}, {"HTTP 404", 1}}));
}

TEST(Cli_BenchServe, AStreamThatIsNotOverInTimeIsATimeOut) {
  const CannedServer server({.step_seconds = 60.0});
  MessageOptions message;
  message.address = parse_base_url(server.address());
  Request request;
  request.prompt_token_ids = {1};
  request.sampling.max_tokens = 2;
  LoadOptions options;
  options.address = message.address;
  options.timeout = 0.1;
  const ServeSummary summary = summarise(run_load({make_message(request, message)}, options), {});
  EXPECT_EQ(summary.errors, (std::map<std::string, int64_t>{{"timeout", 1}}));
}

TEST(Cli_BenchServe, ServerThatIsNotThereIsTheUsersMistake) {
  expect_refused(run_binary({"bench", "serve", "--port", "1", "--num-prompts", "2"}), "no answer");
  expect_refused(run_binary({"bench", "serve", "--base-url", "https://x", "--model", "m"}),
                 "expected http://, since this client speaks no TLS");
  expect_refused(run_binary({"bench", "serve", "--canned", "--goodput", "ttft"}), "--goodput");
  expect_refused(run_binary({"bench", "serve", "--canned", "--extra-body", "[1]"}), "--extra-body");
}

}  // namespace
}  // namespace ladder
#endif
