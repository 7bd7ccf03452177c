// Task 6.4: from argv to a command, and from an exception to an exit code.
#include <csignal>
#include <cstdio>
#include <new>
#include <sstream>

#include "step1_layers/core/error.h"
#include "step6_engine/cli/commands.h"
#include "step6_engine/cli/terminal.h"

namespace ladder {

namespace {

int report(const char* kind, std::string message, int code) {
  for (char& c : message)
    if (c == '\n' || c == '\r') c = ' ';
  while (!message.empty() && message.back() == ' ') message.pop_back();
  std::fprintf(stderr, "ladder: %s: %s\n", kind, message.c_str());
  return code;
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Ladder: an inference engine for large language models, built step by step.", "ladder");
  app.footer("`ladder COMMAND --help` explains a command. step6_engine/README.md has an example of each.");
  app.require_subcommand(1);
  struct Command {
    const char* name;
    const char* help;
    RunCommand (*add)(CLI::App&);
  };
  const Command commands[] = {
      {"generate", "continue prompts: one, or a file of them as one batch", add_generate_command},
      {"chat", "hold a conversation in the terminal", add_chat_command},
      {"score", "the log probability of every token of given texts, and their perplexity", add_score_command},
      {"tokenize", "texts to token ids and back, as JSON lines", add_tokenize_command},
      {"info", "what a model is, and what of it fits this machine", add_info_command},
      {"bench", "throughput, latency, and what each optimisation is worth", add_bench_command},
      {"demo", "eight prompts answered together by the tiny model", add_demo_command},
  };
  std::vector<std::pair<CLI::App*, RunCommand>> added;
  for (const Command& command : commands) {
    CLI::App* subcommand = app.add_subcommand(command.name, command.help);
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
    if (app.get_subcommands().empty()) {
      std::string names;
      for (const Command& command : commands)
        names += (names.empty() ? "" : ", ") + std::string(command.name);
      return report("error",
                    fmt::format("{}expected a command, one of {} (see ladder --help)",
                                argc > 1 ? fmt::format("\"{}\": ", argv[1]) : "", names),
                    2);
    }
    return report(
        "error", fmt::format("{} (see ladder {} --help)", error.what(), app.get_subcommands()[0]->get_name()),
        2);
  }
  for (const auto& [subcommand, run] : added)
    if (subcommand->parsed()) run();
  return 0;
}

}  // namespace

int run_command_line(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of write(), see write_out
  try {
    return parse_and_run(argc, argv);
  } catch (const OutputClosed&) {
    return 0;
  } catch (const Error& error) {
    return report("error", error.what(), 2);
  } catch (const std::bad_alloc&) {
    return report("error", "out of memory", 2);
  } catch (const std::exception& error) {
    return report("internal error", error.what(), 1);
  }
}

}  // namespace ladder
