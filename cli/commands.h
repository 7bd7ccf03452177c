#pragma once
// The command line. One file per command; each declares its flags on a subcommand and returns what
// to run.
#include <CLI/CLI.hpp>
#include <functional>

namespace ladder {

using RunCommand = std::function<void()>;

RunCommand add_generate_command(CLI::App& app);
RunCommand add_chat_command(CLI::App& app);
RunCommand add_score_command(CLI::App& app);
RunCommand add_eval_command(CLI::App& app);
RunCommand add_quantize_command(CLI::App& app);
RunCommand add_tokenize_command(CLI::App& app);
RunCommand add_info_command(CLI::App& app);
RunCommand add_bench_command(CLI::App& app);
RunCommand add_demo_command(CLI::App& app);
RunCommand add_engine_process_command(CLI::App& app);  // not a user's: `serve --engine-process` starts it
RunCommand add_worker_process_command(CLI::App& app);  // nor this: an engine with several processes does
RunCommand add_api_server_command(CLI::App& app);      // nor this: `serve --api-server-count` does
RunCommand add_disaggregated_server_command(CLI::App& app);  // nor this: `serve --disaggregate` does
RunCommand add_launched_rank_command(CLI::App& app);         // nor this: a node of several does
RunCommand add_serve_command(CLI::App& app);
RunCommand add_route_command(CLI::App& app);
RunCommand add_trace_command(CLI::App& app);
RunCommand add_plan_command(CLI::App& app);

// The whole program. 0: done. 2: the user's mistake, as one line on standard error. 1: a defect of ours.
int run_command_line(int argc, char** argv);

}  // namespace ladder
