// ladder bench throughput | latency | progression | graph-replay | serve | canned | serve-overhead | balancers
#include "cli/bench/bench.h"

namespace ladder {

RunCommand add_bench_command(CLI::App& app) {
  app.require_subcommand(1);
  CLI::App* throughput = app.add_subcommand("throughput", "many requests at once: tokens per second");
  CLI::App* latency = app.add_subcommand("latency", "one request alone: time to first token, time per token");
  CLI::App* progression = app.add_subcommand(
      "progression", "one small workload, with one optimisation after another switched on");
  CLI::App* graph_replay = app.add_subcommand(
      "graph-replay", "what the host costs: steps of the engine against replays of their graph alone");
  CLI::App* serve =
      app.add_subcommand("serve", "load on a server that speaks OpenAI's API: latencies, goodput");
  CLI::App* canned =
      app.add_subcommand("canned", "a server without an engine: how much load a client can make");
  CLI::App* overhead = app.add_subcommand(
      "serve-overhead", "what the server costs: the same requests by the engine itself and over HTTP");
  CLI::App* balancers =
      app.add_subcommand("balancers", "balancers of replicas in a simulation: tail latency, imbalance, hits");
  const RunCommand run_throughput = add_bench_throughput(*throughput);
  const RunCommand run_latency = add_bench_latency(*latency);
  const RunCommand run_progression = add_bench_progression(*progression);
  const RunCommand run_graph_replay = add_bench_graph_replay(*graph_replay);
  const RunCommand run_serve = add_bench_serve(*serve);
  const RunCommand run_canned = add_bench_canned(*canned);
  const RunCommand run_overhead = add_bench_serve_overhead(*overhead);
  const RunCommand run_balancers = add_bench_balancers(*balancers);
  return [=] {
    if (throughput->parsed()) run_throughput();
    if (latency->parsed()) run_latency();
    if (progression->parsed()) run_progression();
    if (graph_replay->parsed()) run_graph_replay();
    if (serve->parsed()) run_serve();
    if (canned->parsed()) run_canned();
    if (overhead->parsed()) run_overhead();
    if (balancers->parsed()) run_balancers();
  };
}

}  // namespace ladder
