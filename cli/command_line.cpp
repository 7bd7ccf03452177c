// From argv to a command, and from an exception to an exit code.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <new>
#include <sstream>
#include <string_view>
#include <system_error>

#include "cli/commands.h"
#include "cli/mpi_launch.h"
#include "cli/node_launch.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/task_not_implemented.h"
#include "step6_engine/process/process_failed.h"

namespace ladder {

namespace {

// One line, whatever a file or an argument put into the message: no line break, and nothing that a terminal
// obeys.
int report(const char* kind, std::string message, int code) {
  for (char& c : message)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  while (!message.empty() && message.back() == ' ') message.pop_back();
  std::fprintf(stderr, "ladder: %s: %s\n", kind, message.c_str());
  return code;
}

// What is wrong with the arguments, and where to read on: the help of the command that they reached.
std::string explain(const CLI::ParseError& error, const CLI::App& app, int argc, char** argv) {
  const CLI::App* command = &app;
  std::string path = "ladder";
  int reached = 1;  // the first argument that is none of the commands reached
  for (; !command->get_subcommands().empty(); ++reached) {
    command = command->get_subcommands()[0];
    path += " " + command->get_name();
  }
  std::string names;
  for (const CLI::App* one :
       command->get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); }))
    names += (names.empty() ? "" : ", ") + one->get_name();
  if (names.empty()) return fmt::format("{} (see {} --help)", error.what(), path);
  return fmt::format("{}expected a command, one of {} (see {} --help)",
                     reached < argc ? fmt::format("\"{}\": ", argv[reached]) : "", names, path);
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Ladder: an inference engine for large language models, built step by step.", "ladder");
  app.footer("`ladder COMMAND --help` explains a command. cli/README.md has an example of each.");
  app.require_subcommand(1);
  struct Command {
    const char* name;
    const char* help;  // empty: not shown
    RunCommand (*add)(CLI::App&);
  };
  const Command commands[] = {
      {"generate", "continue prompts: one, or a file of them as one batch", add_generate_command},
      {"chat", "hold a conversation in the terminal", add_chat_command},
      {"score", "the log probability of every token of given texts, and their perplexity", add_score_command},
      {"eval", "perplexity over a text, and how far a model is from the one it was made of",
       add_eval_command},
      {"quantize", "a dense model's folder becomes a quantized one's", add_quantize_command},
      {"tokenize", "texts to token ids and back, as JSON lines", add_tokenize_command},
      {"info", "what a model is, and what of it fits this machine; or the machine alone", add_info_command},
      {"bench", "throughput, latency, and what each optimisation is worth", add_bench_command},
      {"serve", "answer over HTTP, as OpenAI's API does", add_serve_command},
      {"route", "stand in front of servers that compute prompts and servers that go on with them",
       add_route_command},
      {"demo", "eight prompts answered together by the tiny model", add_demo_command},
      {"trace", "what a trace says that --trace has written; for ui.perfetto.dev", add_trace_command},
      {"plan", "how many instances for prompts and for answers, or when not to separate them",
       add_plan_command},
      {"engine-process", "", add_engine_process_command},
      {"worker-process", "", add_worker_process_command},
      {"launched-rank", "", add_launched_rank_command},
      {"api-server", "", add_api_server_command},
      {"disaggregated-server", "", add_disaggregated_server_command},
  };
  std::vector<std::pair<CLI::App*, RunCommand>> added;
  for (const Command& command : commands) {
    CLI::App* subcommand = app.add_subcommand(command.name, command.help);
    if (*command.help == '\0') subcommand->group("");
    added.emplace_back(subcommand, command.add(*subcommand));
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    std::ostringstream text, none;
    app.exit(help, text, none);
    write_out(text.str());
    return 0;
  } catch (const CLI::ParseError& error) {
    return report("error", explain(error, app, argc, argv), 2);
  }
  for (const auto& [subcommand, run] : added)
    if (subcommand->parsed()) run();
  return 0;
}

}  // namespace

namespace {

int run_and_report(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const OutputClosed&) {
    return 0;
  } catch (const Error& error) {
    return report("error", error.what(), 2);
  } catch (const std::filesystem::filesystem_error& error) {  // a path that cannot even be looked at
    return report("error", fmt::format("{}: {}", error.path1().string(), error.code().message()), 2);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again)
      return report("internal error", error.what(), 1);
    return report(
        "error",
        "no more threads or processes can be started: expected a higher limit (ulimit -u, or that of the "
        "container)",
        2);
  } catch (const std::bad_alloc&) {
    return report("error", "out of memory", 2);
  } catch (const ProcessFailed& failed) {
    return report("error", failed.what(), 1);
  } catch (const TaskNotImplemented& task) {
    return report("error", task.what(), 1);
  } catch (const std::exception& error) {
    return report("internal error", error.what(), 1);
  }
}

// A part of a program that mpirun may have started, and no rank of its own.
bool is_child_of_ours(int argc, char** argv) {
  if (argc < 2) return false;
  const std::string_view command = argv[1];
  return command == "engine-process" || command == "worker-process" || command == "api-server" ||
         command == "disaggregated-server" || command == "launched-rank";
}

}  // namespace

int run_command_line(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write(), see write_out
  const auto run = [argc, argv] { return run_and_report(argc, argv); };
  if (is_child_of_ours(argc, argv)) return run();
  const std::optional<NodeLaunch> nodes = started_on_nodes(argc, argv);
  if (nodes && started_by_mpirun())
    return report("error", "--nnodes: expected without mpirun, which starts the ranks of all hosts itself",
                  2);
  // info says what a rank would have, without any.
  if (nodes && argv[1] != std::string_view("info")) return run_on_nodes(*nodes, argc, argv, run);
  return started_by_mpirun() ? run_as_rank(argc, argv, run) : run();
}

}  // namespace ladder
