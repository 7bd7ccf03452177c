#pragma once
// The flags of `ladder serve` beside those of the engine. Names are vLLM's where it has the flag.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/flag_values.h"
#include "step6_engine/server/http/http_server.h"
#include "step6_engine/server/openai/tools/tool_call_parser.h"
#include "step6_engine/thread_engine_client.h"

namespace ladder {

class ServerFlags {
 public:
  void add(CLI::App& app);

  // Error naming the flag.
  HttpServerOptions http_options() const;
  // The names that requests may use; not empty: else the model's folder's name.
  std::vector<std::string> model_names(const std::filesystem::path& model) const;
  std::chrono::milliseconds stuck_after() const { return in_milliseconds(stuck_after_); }
  std::chrono::milliseconds drain_time() const { return in_milliseconds(drain_timeout); }
  // Empty: none is wanted. Error naming the flag.
  ToolCallParserMaker tool_call_parser() const;
  EngineClientOptions client_options() const {
    return {.max_num_queued_reqs = max_num_queued_reqs, .max_num_queued_tokens = max_num_queued_tokens};
  }
  // What was given, to be given to an API server.
  std::vector<std::string> arguments() const { return arguments_of(added_); }
  bool is_loopback() const;  // only this machine can connect

  std::string generation_config = "auto";
  std::string metrics_prefix = "ladder:";
  int64_t max_num_queued_reqs = 0, max_num_queued_tokens = 0;  // 0: no limit
  double drain_timeout = 30;                                   // seconds
  int api_server_count = 1;
  std::string disaggregate;  // empty: one server
  std::optional<int64_t> min_remote_tokens;
  std::optional<int> prefill_ranks,
      decode_ranks;  // tensor ranks of such a server, if not --tensor-parallel-size
  bool prefill_first = false;
  bool access_log = false;
  bool engine_process = false;
  bool tokenizer_info = false;  // GET /tokenizer_info

 private:
  static std::chrono::milliseconds in_milliseconds(double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }

  HttpServerOptions http_;
  int io_threads_ = 0;  // by the machine's cores
  std::vector<std::string> served_names_, origins_, methods_, headers_;
  std::string max_body_size_ = "32MiB", max_header_size_ = "64KiB";
  bool auto_tool_choice_ = false;
  std::string tool_call_parser_;
  double idle_timeout_ = 60, header_timeout_ = 10, body_timeout_ = 60, write_timeout_ = 30, stuck_after_ = 60;
  std::vector<const CLI::Option*> added_;  // by add()
};

}  // namespace ladder
