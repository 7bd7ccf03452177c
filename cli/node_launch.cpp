#include "cli/node_launch.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string_view>
#include <thread>

#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/launched_command.h"
#include "step1_layers/core/error.h"
#include "step6_engine/process/child_process.h"
#include "step6_engine/process/parent_socket.h"
#include "step6_engine/process/wire.h"
#include "step7_parallel/hosts/host_world.h"

namespace ladder {

namespace {

constexpr std::chrono::seconds kChildTimeout{10};  // of a child's first and last words
constexpr std::chrono::seconds kSilence{3};        // before a node says that it waits for the others

// A node's first process speaks for the node, once.
class NodeVoice {
 public:
  explicit NodeVoice(bool speaks) : has_spoken_(!speaks) {}
  void say(const std::string& error) {
    if (!has_spoken_.exchange(true)) std::fprintf(stderr, "ladder: error: %s\n", error.c_str());
  }
  void be_silent() { has_spoken_ = true; }

 private:
  std::atomic<bool> has_spoken_;
};

// Until it is destroyed; a node that was started alone would be silent for a minute.
std::jthread say_if_it_waits(const HostPlace& place) {
  if (place.local_rank > 0 || place.arrival <= kSilence) return {};
  const std::string line = fmt::format(
      "ladder: node {} of {} waits for {} at {}, until {:g} s have passed (--node-arrival-timeout)\n",
      place.node, place.num_nodes, place.node == 0 ? "the others" : "node 0", place.master.str(),
      std::chrono::duration<double>(place.arrival).count());
  return std::jthread([line](const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any changed;
    changed.wait_for(lock, stop, kSilence, [] { return false; });
    if (!stop.stop_requested()) std::fputs(line.c_str(), stderr);
  });
}

// Meets the others and lives as one of the ranks; the exit code.
int live_as_rank(const HostPlace& place, const std::function<int()>& command) {
  NodeVoice voice(place.local_rank == 0);
  // Threads may be in any call: nothing of this process is taken down in order. Its children die with it.
  const auto end = [&voice](const std::string& cause) {
    voice.say(cause);
    std::_Exit(2);
  };
  try {
    std::jthread waiting = say_if_it_waits(place);
    HostWorld ranks(place, end);
    waiting = {};
    LaunchedWorld& world = ranks.world();
    if (place.rank() == 0) {
      const int code = run_with_ranks(world, command);
      if (world.broken) {  // the command has said why
        voice.be_silent();
        ranks.watch().fail(fmt::format("{} has failed; node 0 says why", ranks.name()));
      }
      ranks.watch().dismiss(code);
      return code;
    }
    try {
      serve_launched_rank(options_of_rank, world);
    } catch (const std::exception& error) {
      ranks.watch().fail(fmt::format("{} failed: {}", ranks.name(), error.what()));
    }
    const std::optional<int> code = ranks.watch().wait_for_dismissal(place.silence);
    if (code == 0) return 0;
    voice.say(world.agreed_error.empty() ? "node 0 has ended with an error, which it says itself"
                                         : world.agreed_error);
    return code.value_or(2);
  } catch (const Error& error) {
    voice.say(error.what());
    return 2;
  }
}

// What two nodes' arguments may differ in.
bool is_of_one_node(std::string_view word) {
  return word == "--node-rank" || word == "--secret-file";
}

std::string common_arguments(int argc, char** argv) {
  std::string words;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (is_of_one_node(word))
      ++i;  // and its value
    else if (!is_of_one_node(word.substr(0, word.find('='))))
      words += std::string(word) + '\0';
  }
  return words;
}

}  // namespace

LADDER_WIRE_FORM(HostPlace) {
  auto& [num_nodes, node, ranks_per_node, local_rank, master, secret, arguments, arrival, silence] = value;
  auto arrival_ms = arrival.count(), silence_ms = silence.count();
  wire(num_nodes, node, ranks_per_node, local_rank, master.host, master.port, secret.bytes, arguments,
       arrival_ms, silence_ms);
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(value)>>) {
    arrival = std::chrono::milliseconds(arrival_ms);
    silence = std::chrono::milliseconds(silence_ms);
  }
}

std::optional<NodeLaunch> started_on_nodes(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto has = [&](const char* flag) {
    return std::any_of(words.begin(), words.end(),
                       [&](const std::string& word) { return word.substr(0, word.find('=')) == flag; });
  };
  if (!has("--nnodes") || has("--help") || has("-h")) return {};
  NodeLaunch launch;
  int tensor_ranks = 1, stages = 1;
  CLI::App app;
  app.allow_extras();
  app.set_help_flag();
  launch.flags.add(app);
  app.add_option("--tensor-parallel-size", tensor_ranks);
  app.add_option("--pipeline-parallel-size", stages);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ParseError&) {  // the command says it
    return {};
  }
  launch.num_ranks = tensor_ranks * stages;
  if (launch.flags.num_nodes() == 1 || launch.num_ranks < 1) return {};
  return launch;
}

int run_on_nodes(const NodeLaunch& launch, int argc, char** argv, const std::function<int()>& command) {
  HostPlace place;
  std::vector<std::unique_ptr<ChildProcess>> children;
  std::vector<std::unique_ptr<MessageSocket>> sockets;  // a child ends when its parent's end is closed
  try {
    place = launch.flags.place(launch.num_ranks);
    place.arguments = common_arguments(argc, argv);
    for (int local_rank = 1; local_rank < place.ranks_per_node; ++local_rank) {
      HostPlace of_child = place;
      of_child.local_rank = local_rank;
      children.push_back(std::make_unique<ChildProcess>(
          ChildOptions{.name = fmt::format("rank {}", of_child.rank()), .arguments = {"launched-rank"}}));
      sockets.push_back(std::make_unique<MessageSocket>(children.back()->take_socket()));
      sockets.back()->exchange_hello(kChildTimeout);
      sockets.back()->write(0, to_bytes(of_child), kChildTimeout);
    }
  } catch (const Error& error) {
    NodeVoice(true).say(error.what());
    return 2;
  }
  const int code = live_as_rank(place, command);
  for (const auto& child : children) child->end(code == 0 ? kChildTimeout : std::chrono::seconds(0));
  return code;
}

RunCommand add_launched_rank_command(CLI::App& app) {
  auto descriptor = std::make_shared<int>(-1);
  app.add_option("--fd", *descriptor, "the connection")->check(whole_in_range(3, 1 << 20))->required();
  return [descriptor] {
    MessageSocket socket(take_parent_socket(*descriptor, "a node's first rank"));
    socket.exchange_hello(kChildTimeout);
    const std::optional<Message> place = socket.read();
    if (place) live_as_rank(from_bytes<HostPlace>(place->bytes), [] { return 2; });
  };
}

}  // namespace ladder
