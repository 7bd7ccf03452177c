#pragma once
// The measurements of `ladder bench`, each a subcommand of its own.
#include "cli/commands.h"

namespace ladder {

RunCommand add_bench_throughput(CLI::App& app);
RunCommand add_bench_latency(CLI::App& app);
RunCommand add_bench_progression(CLI::App& app);
RunCommand add_bench_graph_replay(CLI::App& app);
RunCommand add_bench_serve(CLI::App& app);
RunCommand add_bench_canned(CLI::App& app);
RunCommand add_bench_serve_overhead(CLI::App& app);
RunCommand add_bench_balancers(CLI::App& app);

}  // namespace ladder
