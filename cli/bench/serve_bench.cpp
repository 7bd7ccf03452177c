// ladder bench serve: load on a server that speaks OpenAI's API, ours or another's; ladder bench canned: a server
// without an engine, which shows how much load the client can make.
#include <csignal>
#include <memory>

#include "cli/bench/bench.h"
#include "cli/bench/report.h"
#include "cli/bench/serve_canned.h"
#include "cli/bench/serve_plan.h"
#include "cli/bench/serve_report.h"
#include "cli/bench/workload.h"
#include "cli/flag_values.h"
#include "cli/request_lines.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step6_engine/server/http_client/http_call.h"

namespace ladder {

namespace {

constexpr int64_t kMaxCount = 1 << 24;

struct ServeBenchFlags {
  std::string base_url, host = "127.0.0.1", model, api_key, prompts, extra_body, json;
  int port = 8000;
  Workload workload;
  int64_t prompt_len = 0, output_len = 0;  // 0: as the workload's ranges say
  int64_t vocab_size = 10000;
  bool chat = false, text = false, ignore_eos = false, save_detailed = false, canned = false;
  int64_t max_concurrency = 0, num_warmups = 1, threads = 2;
  double request_rate = 0.0, burstiness = 1.0, timeout = 600.0, canned_step_us = 0.0;
  std::string arrivals = "poisson";
  std::vector<std::string> goodput;
};

// What the server calls its model: the first of its list.
std::string first_model(const HttpAddress& address, const std::string& api_key) {
  const HttpReply reply = http_get(address, "/v1/models", authorization(api_key), std::chrono::seconds(10));
  LADDER_CHECK(reply.status == 200, "http://{}:{}{}/v1/models: HTTP {}: {}", address.host, address.port,
               address.path, reply.status, reply.body.substr(0, 200));
  const Json body = Json::parse(reply.body, nullptr, false);
  const Json::json_pointer name("/data/0/id");
  LADDER_CHECK(body.is_object() && body.contains(name) && body[name].is_string(),
               "http://{}:{}{}/v1/models names no model; --model does", address.host, address.port,
               address.path);
  return body[name].get<std::string>();
}

std::vector<Request> requests_of(const ServeBenchFlags& flags, const Workload& workload) {
  if (!flags.prompts.empty()) {
    SamplingParams defaults;
    defaults.max_tokens = flags.output_len > 0 ? flags.output_len : 128;
    defaults.temperature = workload.temperature;
    defaults.ignore_eos = flags.ignore_eos;
    std::vector<Request> requests;
    for (RequestLine& line : read_request_lines(flags.prompts, defaults))
      requests.push_back(std::move(line.request));
    const size_t read = requests.size(), wanted = static_cast<size_t>(workload.num_requests);
    for (size_t i = read; i < wanted; ++i) requests.push_back(requests[i % read]);
    requests.resize(wanted);
    return requests;
  }
  std::vector<Request> requests = make_requests(workload, flags.vocab_size);
  if (flags.text || flags.chat) words_for_ids(requests);
  return requests;
}

std::vector<ServeRequest> messages_of(const std::vector<Request>& requests, const MessageOptions& options) {
  std::vector<ServeRequest> messages;
  messages.reserve(requests.size());
  for (const Request& request : requests) messages.push_back(make_message(request, options));
  return messages;
}

Workload workload_of(const ServeBenchFlags& flags) {
  Workload workload = flags.workload;
  if (flags.prompt_len > 0) workload.min_prompt_len = workload.max_prompt_len = flags.prompt_len;
  if (flags.output_len > 0) workload.min_output_len = workload.max_output_len = flags.output_len;
  return workload;
}

MessageOptions message_options(const ServeBenchFlags& flags, const std::string& url) {
  MessageOptions options;
  options.address = parse_base_url(url);
  options.chat = flags.chat;
  options.api_key = flags.api_key;
  if (!flags.extra_body.empty()) {
    options.extra_body = Json::parse(flags.extra_body, nullptr, false);
    LADDER_CHECK(options.extra_body.is_object(), "--extra-body {}: expected a JSON object", flags.extra_body);
  }
  options.model = flags.model.empty() ? first_model(options.address, flags.api_key) : flags.model;
  return options;
}

void run_serve_bench(const ServeBenchFlags& flags) {
  check_report_file(flags.json);
  const ServeObjective objective = parse_goodput(flags.goodput);
  std::unique_ptr<CannedServer> canned;
  if (flags.canned) {
    CannedOptions options;
    options.step_seconds = 1e-6 * flags.canned_step_us;
    options.io_threads = static_cast<int>(flags.threads);
    canned = std::make_unique<CannedServer>(options);
  }
  const bool is_ipv6 = flags.host.find(':') != std::string::npos;
  const std::string url = canned                    ? canned->address()
                          : !flags.base_url.empty() ? flags.base_url
                          : is_ipv6                 ? fmt::format("http://[{}]:{}", flags.host, flags.port)
                                                    : fmt::format("http://{}:{}", flags.host, flags.port);
  const MessageOptions message = message_options(flags, url);
  const Workload workload = workload_of(flags);
  const std::vector<ServeRequest> requests = messages_of(requests_of(flags, workload), message);

  LoadOptions options;
  options.address = message.address;
  options.num_threads = static_cast<int>(flags.threads);
  options.max_concurrency = flags.max_concurrency;
  options.timeout = flags.timeout;
  if (flags.num_warmups > 0) {
    Workload before = workload;
    before.seed ^= 0x5bd1e995;  // other tokens: none of these prompts is cached when it is measured
    before.num_requests = flags.num_warmups;
    const LoadResult warm = run_load(messages_of(requests_of(flags, before), message), options);
    for (const ServeRecord& record : warm.records)
      LADDER_CHECK(record.error.empty(), "{}: a warm-up request failed: {}: {}", url, record.error,
                   record.detail);
  }
  options.arrivals = arrival_times(workload.num_requests, flags.request_rate,
                                   flags.arrivals == "constant" ? 0.0 : flags.burstiness, workload.seed);
  ProgressBar bar("serve", workload.num_requests, "requests");
  options.on_progress = [&](int64_t done) { bar.set(done); };
  const LoadResult result = run_load(requests, options);
  bar.clear();

  const ServeSummary summary = summarise(result, objective);
  Json entry = {{"name", "serve"},
                {"url", url},
                {"model", message.model},
                {"endpoint", flags.chat ? "chat" : "completions"},
                {"max_concurrency", flags.max_concurrency > 0 ? Json(flags.max_concurrency) : Json()},
                {"request_rate", flags.request_rate > 0.0 ? Json(flags.request_rate) : Json()}};
  entry.update(summary_json(summary));
  entry["requests"] = requests_json(result, flags.save_detailed);
  write_report(flags.json, Json::array({std::move(entry)}),
               {Device{}, static_cast<int>(result.cpu_seconds.size()), 0.0});
  write_out(fmt::format("{}, model {}\n", url, message.model) + format_summary(summary));
  for (const ServeRecord& record : result.records)
    LADDER_CHECK(record.error.empty() || summary.completed > 0, "all requests failed; the first: {}: {}",
                 record.error, record.detail);
}

struct CannedFlags {
  CannedOptions options;
  double step_us = 0.0;
};

void run_canned(const CannedFlags& flags) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread is started: they inherit it
  CannedOptions options = flags.options;
  options.step_seconds = 1e-6 * flags.step_us;
  const CannedServer server(options);
  write_out(fmt::format("listening on {} (ctrl-C ends)\n", server.address()));
  int signal = 0;
  sigwait(&signals, &signal);
}

}  // namespace

RunCommand add_bench_serve(CLI::App& app) {
  auto flags = std::make_shared<ServeBenchFlags>();
  ServeBenchFlags& f = *flags;
  const auto text = [&](const char* name, std::string& value, const char* type, const char* help) {
    return app.add_option(name, value, help)->type_name(type);
  };
  const auto count = [&](const char* name, int64_t& value, int64_t least, const char* help) {
    return app.add_option(name, value, help)->check(whole_in_range(least, kMaxCount))->type_name("N");
  };
  text("--base-url", f.base_url, "URL",
       "the server, e.g. http://127.0.0.1:8000; in place of --host and --port");
  text("--host", f.host, "HOST", "the server's host")->capture_default_str();
  app.add_option("--port", f.port, "the server's port")
      ->check(whole_in_range(1, 65535))
      ->type_name("N")
      ->capture_default_str();
  text("--model", f.model, "NAME", "what the server calls the model")->default_str("the first it lists");
  text("--api-key", f.api_key, "KEY", "the server's key");
  app.add_flag("--chat", f.chat, "/v1/chat/completions, and not /v1/completions");
  text("--prompts", f.prompts, "FILE.jsonl",
       "requests as `generate --prompts` reads them, again and again up to --num-prompts");
  app.add_flag("--text", f.text, "words as prompts, and not token ids (a chat always has words)");
  count("--num-prompts", f.workload.num_requests, 1, "requests")->capture_default_str();
  count("--min-prompt-len", f.workload.min_prompt_len, 1, "prompt lengths are uniform from this ...")
      ->capture_default_str();
  count("--max-prompt-len", f.workload.max_prompt_len, 1, "... to this")->capture_default_str();
  count("--min-output-len", f.workload.min_output_len, 1, "output lengths are uniform from this ...")
      ->capture_default_str();
  count("--max-output-len", f.workload.max_output_len, 1, "... to this (end tokens are ignored)")
      ->capture_default_str();
  count("--prompt-len", f.prompt_len, 1, "every prompt's length");
  count("--output-len", f.output_len, 1, "every output's length");
  count("--shared-prefix-len", f.workload.shared_prefix_len, 0, "tokens that all prompts begin with")
      ->capture_default_str();
  count("--vocab-size", f.vocab_size, 1, "token ids are below this")->capture_default_str();
  app.add_option("--temperature", f.workload.temperature, "0 is greedy")
      ->check(in_range(0, 100))
      ->type_name("T")
      ->capture_default_str();
  app.add_option("--seed", f.workload.seed, "of lengths, ids and arrivals")
      ->check(whole_in_range(0, std::numeric_limits<int64_t>::max()))
      ->type_name("S")
      ->capture_default_str();
  app.add_flag("--ignore-eos", f.ignore_eos, "with --prompts: go on after an end token");
  text("--extra-body", f.extra_body, "JSON", "fields that every request gets too");
  count("--max-concurrency", f.max_concurrency, 1, "requests under way at a time")
      ->default_str("all of them");
  app.add_option("--request-rate", f.request_rate, "requests sent per second")
      ->check(above_zero(1e6))
      ->type_name("R")
      ->default_str("all at once");
  app.add_option("--arrivals", f.arrivals, "with --request-rate: poisson, or constant intervals")
      ->check(CLI::IsMember({"poisson", "constant"}))
      ->type_name("KIND")
      ->capture_default_str();
  app.add_option("--burstiness", f.burstiness,
                 "shape of the gamma distributed intervals: 1 is a Poisson process, below 1 come bursts")
      ->check(above_zero(1e6))
      ->type_name("B")
      ->capture_default_str();
  app.add_option("--goodput", f.goodput, "count requests within ttft:MS, tpot:MS, e2el:MS; several of them")
      ->type_name("BOUND");
  count("--num-warmups", f.num_warmups, 0, "requests before those that are measured")->capture_default_str();
  app.add_option("--timeout", f.timeout, "seconds for one request")
      ->check(above_zero(1e6))
      ->type_name("S")
      ->capture_default_str();
  app.add_option("--client-threads", f.threads, "threads that send and read")
      ->check(whole_in_range(1, 256))
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--canned", f.canned,
               "against a server without an engine, in this process: what the client itself can carry");
  app.add_option("--canned-step-us", f.canned_step_us,
                 "with --canned: microseconds between two tokens of a stream; 0: as fast as it goes")
      ->check(in_range(0, 1e7))
      ->type_name("US")
      ->capture_default_str();
  text("--json", f.json, "FILE", "write the figures, also every request's own, to this file too");
  app.add_flag("--save-detailed", f.save_detailed, "in that file also the time between a request's chunks");
  return [flags] { run_serve_bench(*flags); };
}

RunCommand add_bench_canned(CLI::App& app) {
  auto flags = std::make_shared<CannedFlags>();
  app.add_option("--host", flags->options.host, "address to listen on")
      ->type_name("HOST")
      ->capture_default_str();
  app.add_option("--port", flags->options.port, "port to listen on; 0: any that is free")
      ->check(whole_in_range(0, 65535))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--step-us", flags->step_us,
                 "microseconds between two tokens of a stream; 0: as fast as it goes")
      ->check(in_range(0, 1e7))
      ->type_name("US")
      ->capture_default_str();
  app.add_option("--io-threads", flags->options.io_threads, "threads that serve connections")
      ->check(whole_in_range(1, 256))
      ->type_name("N")
      ->capture_default_str();
  return [flags] { run_canned(*flags); };
}

}  // namespace ladder
