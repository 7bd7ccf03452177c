#include "cli/serve_flags.h"

#include <nlohmann/json.hpp>

#include "cli/flag_values.h"
#include "step1_layers/core/error.h"
#include "step6_engine/server/http/io_thread_count.h"
#include "step6_engine/server/openai/tools/tool_call_parsers.h"

namespace ladder {

namespace {

// A value is a text, or as vLLM takes it a JSON list of texts.
std::vector<std::string> texts(const std::vector<std::string>& values, const char* flag) {
  std::vector<std::string> all;
  for (const std::string& value : values) {
    if (!value.starts_with('[')) {
      all.push_back(value);
      continue;
    }
    const auto list = nlohmann::json::parse(value, nullptr, false);
    LADDER_CHECK(list.is_array(), "{} {}: expected a JSON list of texts", flag, value);
    for (const auto& one : list) {
      LADDER_CHECK(one.is_string(), "{} {}: expected a JSON list of texts", flag, value);
      all.push_back(one.get<std::string>());
    }
  }
  return all;
}

}  // namespace

void ServerFlags::add(CLI::App& app) {
  const size_t num_before = app.get_options().size();
  const auto text = [&](const char* group, const char* name, std::string& value, const char* type,
                        const char* help) {
    CLI::Option* option = app.add_option(name, value, help)->type_name(type)->group(group);
    if (!value.empty()) option->capture_default_str();
  };
  const auto list = [&](const char* group, const char* name, std::vector<std::string>& values,
                        const char* type, const char* help) {
    return app.add_option(name, values, help)->type_name(type)->allow_extra_args(false)->group(group);
  };
  const auto number = [&](const char* group, const char* name, int64_t& value, int64_t low, int64_t high,
                          const char* help) {
    app.add_option(name, value, help)
        ->check(whole_in_range(low, high))
        ->type_name("N")
        ->capture_default_str()
        ->group(group);
  };
  const auto seconds = [&](const char* group, const char* name, double& value, double low, const char* help) {
    app.add_option(name, value, help)
        ->check(in_range(low, 1e6))
        ->type_name("SECONDS")
        ->capture_default_str()
        ->group(group);
  };
  constexpr int64_t kMany = int64_t{1} << 40;

  const char* who = "Who may ask";
  text(who, "--host", http_.host, "ADDRESS", "address to listen on; 0.0.0.0: every network of this machine");
  app.add_option("--port", http_.port, "port to listen on; 0: any that is free")
      ->check(whole_in_range(0, 65535))
      ->type_name("N")
      ->capture_default_str()
      ->group(who);
  list(who, "--api-key", http_.api_keys, "KEY",
       "what clients must send as \"Authorization: Bearer KEY\" or \"X-Api-Key: KEY\"; may repeat")
      ->envname("LADDER_API_KEY");
  text(who, "--ssl-certfile", http_.ssl_certfile, "FILE", "certificate chain (PEM): the server speaks TLS");
  text(who, "--ssl-keyfile", http_.ssl_keyfile, "FILE", "the certificate's key (PEM)");
  list(who, "--allowed-origins", origins_, "ORIGINS",
       "sites whose pages a browser lets talk to this server (CORS), one or a JSON list; may repeat [none]");
  list(who, "--allowed-methods", methods_, "METHODS", "of requests from such pages [\"*\"]");
  list(who, "--allowed-headers", headers_, "HEADERS", "of requests from such pages [\"*\"]");
  app.add_flag("--allow-credentials", http_.cors.allow_credentials, "let such pages send cookies")
      ->group(who);
  text(who, "--root-path", http_.root_path, "PATH", "what a proxy puts before every path, e.g. /llm");

  const char* what = "What is served";
  list(what, "--served-model-name", served_names_, "NAME",
       "what requests call the model; may repeat [the folder's name]");
  text(what, "--generation-config", generation_config, "FROM",
       "defaults of sampling: auto (generation_config.json), none, or another folder");

  app.add_flag("--enable-auto-tool-choice", auto_tool_choice_,
               "let models call tools when they choose to: requests with tools need it, or tool_choice none")
      ->group(what);
  text(what, "--tool-call-parser", tool_call_parser_, "NAME",
       "how the model writes a call: hermes (Qwen too) or llama3_json");

  const char* limits = "What one client, or all of them, may take";
  number(limits, "--max-num-queued-reqs", max_num_queued_reqs, 0, kMany,
         "sequences that may wait for their first step; more are answered 429; 0: no limit");
  number(limits, "--max-num-queued-tokens", max_num_queued_tokens, 0, kMany,
         "prompt tokens that may wait for their first step; more are answered 429; 0: no limit");
  number(limits, "--max-connections", http_.max_connections, 1, 1'000'000,
         "connections at the same time, of each API server");
  text(limits, "--max-body-size", max_body_size_, "SIZE", "of a request");
  text(limits, "--max-header-size", max_header_size_, "SIZE", "of a request's headers together");
  number(limits, "--h11-max-header-count", http_.request.max_headers, 1, 10'000, "headers of a request");
  seconds(limits, "--timeout-keep-alive", idle_timeout_, 0.01, "between two requests of a connection");
  seconds(limits, "--timeout-headers", header_timeout_, 0.01, "for a request's headers to arrive");
  seconds(limits, "--timeout-body", body_timeout_, 0.01, "for its body to arrive");
  seconds(limits, "--timeout-write", write_timeout_, 0.01,
          "without reading any of what waits for it, until a client is cut");

  const char* running = "How the server runs";
  app.add_option("--io-threads", io_threads_,
                 "threads for connections; 0: as many as cores, 2 to 16, shared by the API servers")
      ->check(whole_in_range(0, 256))
      ->type_name("N")
      ->capture_default_str()
      ->group(running);
  app.add_option("--worker-threads", http_.worker_threads, "threads that parse, render and tokenise requests")
      ->check(whole_in_range(1, 256))
      ->type_name("N")
      ->capture_default_str()
      ->group(running);
  seconds(running, "--drain-timeout", drain_timeout, 0,
          "for what is under way once the server is asked to stop (SIGTERM, ctrl-C); then it is aborted");
  seconds(running, "--stuck-after", stuck_after_, 0.01,
          "without the end of a step while requests run, until /health says 503");
  app.add_flag("--engine-process", engine_process,
               "run the engine in a process of its own: a crash of one leaves the other to say so")
      ->group(running);
  app.add_option("--api-server-count", api_server_count,
                 "processes that speak HTTP and tokenise, in front of one engine and behind one port")
      ->check(whole_in_range(1, 64))
      ->type_name("N")
      ->capture_default_str()
      ->group(running);
  app.add_option(
         "--disaggregate", disaggregate,
         "1P1D: a server for prompts and one that goes on with them, and a router in front of both; 2P4D and the "
         "like: more of them")
      ->type_name("xPyD")
      ->group(running);
  app.add_option(
         "--min-remote-tokens", min_remote_tokens,
         "with --disaggregate: prompts of which the server that goes on lacks fewer tokens it computes "
         "itself (of a text, four bytes count as one) [64]")
      ->check(whole_in_range(0, int64_t{1} << 40))
      ->type_name("N")
      ->group(running);
  const auto add_ranks = [&](const char* name, std::optional<int>& ranks, const char* whose) {
    app.add_option(name, ranks,
                   fmt::format("with --disaggregate: ranks of each {} server, if there are to be other than "
                               "--tensor-parallel-size",
                               whose))
        ->check(whole_in_range(kTensorParallelSizeRange))
        ->type_name("N")
        ->group(running);
  };
  add_ranks("--prefill-tensor-parallel-size", prefill_ranks, "prefill");
  add_ranks("--decode-tensor-parallel-size", decode_ranks, "decode");
  app.add_flag(
         "--prefill-first", prefill_first,
         "with --disaggregate: the server that goes on is asked when the prompt is computed; else while it is, so that "
         "keys go over meanwhile")
      ->group(running);
  app.add_flag("--enable-tokenizer-info-endpoint", tokenizer_info,
               "answer GET /tokenizer_info, which shows the chat template")
      ->group(running);
  text(running, "--metrics-prefix", metrics_prefix, "PREFIX",
       "of the names under GET /metrics; vllm: for boards made for vLLM");
  app.add_flag("--access-log", access_log, "one line per answer on standard error")->group(running);
  for (const CLI::Option* added : app.get_options()) added_.push_back(added);
  added_.erase(added_.begin(), added_.begin() + static_cast<std::ptrdiff_t>(num_before));
}

HttpServerOptions ServerFlags::http_options() const {
  HttpServerOptions options = http_;
  options.io_threads = io_threads_ > 0 ? io_threads_ : std::max(2, default_io_threads() / api_server_count);
  options.cors.allowed_origins = texts(origins_, "--allowed-origins");
  if (!methods_.empty()) options.cors.allowed_methods = texts(methods_, "--allowed-methods");
  if (!headers_.empty()) options.cors.allowed_headers = texts(headers_, "--allowed-headers");
  options.request.max_body_bytes = parse_bytes(max_body_size_, "--max-body-size");
  options.request.max_header_bytes = parse_bytes(max_header_size_, "--max-header-size");
  LADDER_CHECK(options.request.max_header_bytes >= 1024 && options.request.max_header_bytes <= (1 << 24),
               "--max-header-size {}: expected 1KiB to 16MiB", max_header_size_);
  options.idle_timeout = in_milliseconds(idle_timeout_);
  options.header_timeout = in_milliseconds(header_timeout_);
  options.body_timeout = in_milliseconds(body_timeout_);
  options.write_timeout = in_milliseconds(write_timeout_);
  return options;
}

std::vector<std::string> ServerFlags::model_names(const std::filesystem::path& model) const {
  if (!served_names_.empty()) return served_names_;
  std::filesystem::path folder = std::filesystem::absolute(model).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  return {folder.filename().string()};
}

ToolCallParserMaker ServerFlags::tool_call_parser() const {
  LADDER_CHECK(!auto_tool_choice_ || !tool_call_parser_.empty(),
               "--enable-auto-tool-choice: it needs --tool-call-parser");
  if (tool_call_parser_.empty()) return {};
  ToolCallParserMaker make = tool_call_parser_of(tool_call_parser_);
  return auto_tool_choice_ ? std::move(make) : ToolCallParserMaker();
}

bool ServerFlags::is_loopback() const {
  return http_.host == "localhost" || http_.host == "::1" || http_.host.starts_with("127.");
}

}  // namespace ladder
