#include "step7_parallel/hosts/rendezvous.h"

#include <algorithm>
#include <optional>

#include "step1_layers/core/error.h"
#include "step6_engine/process/wire.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kFirstWords{5};  // of who has proved the secret
constexpr std::chrono::seconds kSlack{5};       // rank 0 began to wait later, a node's second rank came later

enum class Kind : uint32_t { join = 100, roster, refused };

// What a rank says of itself.
struct Join {
  int num_nodes = 0, node = 0, ranks_per_node = 0, local_rank = 0;
  std::string arguments;
  int port = 0;  // of its mesh
};
LADDER_WIRE_FORM(Join) {
  auto& [num_nodes, node, ranks_per_node, local_rank, arguments, port] = value;
  wire(num_nodes, node, ranks_per_node, local_rank, arguments, port);
}

// By rank, one after another.
struct Roster {
  std::vector<std::string> hosts, names;
  std::vector<int> ports;
};
LADDER_WIRE_FORM(Roster) {
  auto& [hosts, names, ports] = value;
  wire(hosts, names, ports);
}

double seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::string name_of(int rank, int node, const std::string& host) {
  return fmt::format("rank {} (node {}, {})", rank, node, host);
}

template <class T>
void send(MessageSocket& socket, Kind kind, const T& value) {
  socket.write(static_cast<uint32_t>(kind), to_bytes(value), kFirstWords);
}

struct Arrival {
  std::unique_ptr<MessageSocket> socket;
  Join join;
  std::string host;
  int rank = 0;
};

// None: it went away, or is no rank of Ladder.
std::optional<Arrival> hear(HostConnection connection, std::chrono::milliseconds silence) {
  Arrival arrival;
  arrival.host = connection.peer.host;
  try {
    // Of the rendezvous, and then of the watch.
    set_read_timeout(connection.socket.number(), silence);
    arrival.socket = message_socket(std::move(connection), kFirstWords);
    const std::optional<Message> message = arrival.socket->read();
    if (!message || message->type != static_cast<uint32_t>(Kind::join)) return {};
    arrival.join = from_bytes<Join>(message->bytes);
  } catch (const Error&) {
    return {};
  }
  arrival.rank = arrival.join.node * arrival.join.ranks_per_node + arrival.join.local_rank;
  return arrival;
}

// Why a rank was started otherwise than rank 0; empty: it was not.
std::string misfit(const HostPlace& place, const Join& join) {
  const auto differs = [&](const char* flag, int theirs, int mine) {
    return fmt::format("node {} was started with {} {}, node 0 with {}: expected the same on all nodes",
                       join.node, flag, theirs, mine);
  };
  if (join.num_nodes != place.num_nodes) return differs("--nnodes", join.num_nodes, place.num_nodes);
  if (join.ranks_per_node != place.ranks_per_node)
    return fmt::format(
        "node {} has {} ranks and node 0 has {}: expected the same --tensor-parallel-size and "
        "--pipeline-parallel-size on all nodes",
        join.node, join.ranks_per_node, place.ranks_per_node);
  if (join.node < 0 || join.node >= place.num_nodes || join.local_rank < 0 ||
      join.local_rank >= place.ranks_per_node)
    return fmt::format("--node-rank {}: expected less than --nnodes, which is {}", join.node,
                       place.num_nodes);
  if (join.arguments != place.arguments)
    return fmt::format(
        "the arguments of node {} are others than node 0's: expected the same, but for --node-rank",
        join.node);
  return {};
}

// Whether of each node that has come all ranks have.
bool all_ranks_of_them(const std::vector<Arrival>& arrivals) {
  return std::all_of(arrivals.begin(), arrivals.end(), [&](const Arrival& one) {
    const auto here = std::count_if(arrivals.begin(), arrivals.end(),
                                    [&](const Arrival& other) { return other.join.node == one.join.node; });
    return here + (one.join.node == 0 ? 1 : 0) >= one.join.ranks_per_node;
  });
}

// Which nodes are not complete.
std::string missing(const HostPlace& place, const std::vector<Arrival>& arrivals) {
  std::string nodes;
  for (int node = 0; node < place.num_nodes; ++node) {
    const auto here = std::count_if(arrivals.begin(), arrivals.end(),
                                    [&](const Arrival& arrival) { return arrival.join.node == node; });
    if (here + (node == 0 ? 1 : 0) < place.ranks_per_node)
      nodes += fmt::format("{}node {}", nodes.empty() ? "" : ", ", node);
  }
  return nodes;
}

std::vector<TcpPlace> places_of(const Roster& roster) {
  std::vector<TcpPlace> places;
  for (size_t rank = 0; rank < roster.hosts.size(); ++rank)
    places.push_back({{roster.hosts[rank], roster.ports.at(rank)}, roster.names.at(rank)});
  return places;
}

}  // namespace

// >>> task 7.8: who has come, until all have, and what they are told
Met receive_ranks(const HostPlace& place) {
  const Clock::time_point deadline = Clock::now() + place.arrival;
  HostListener listener(place.master, place.secret);
  std::vector<Arrival> arrivals;
  // Whoever comes a little later is told too, or would look for a listener until its time is over: above all the first rank of a
  // node, which speaks for it.
  const auto refuse_all = [&](const std::string& why, Clock::time_point until) {
    for (size_t told = 0;;) {
      for (; told < arrivals.size(); ++told) {
        try {
          send(*arrivals[told].socket, Kind::refused, why);
        } catch (const Error&) {  // gone meanwhile
        }
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      const bool are_all = std::ssize(arrivals) >= place.world_size() - 1 && all_ranks_of_them(arrivals);
      if (left.count() <= 0 || are_all) fail("{}", why);
      auto connection = listener.accept(left);
      std::optional<Arrival> late = connection ? hear(std::move(*connection), place.silence) : std::nullopt;
      if (late) arrivals.push_back(std::move(*late));
    }
  };
  while (std::ssize(arrivals) < place.world_size() - 1) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0)
      refuse_all(fmt::format("{} of {} has not arrived at {} within {} s", missing(place, arrivals),
                             place.num_nodes, place.master.str(), seconds(place.arrival)),
                 deadline);
    auto connection = listener.accept(left);
    if (!connection) continue;
    std::optional<Arrival> arrival = hear(std::move(*connection), place.silence);
    if (!arrival) continue;
    const std::string problem = misfit(place, arrival->join);
    const bool is_there =
        arrival->rank == 0 || std::any_of(arrivals.begin(), arrivals.end(),
                                          [&](const Arrival& other) { return other.rank == arrival->rank; });
    if (problem.empty() && is_there) {
      try {
        send(*arrival->socket, Kind::refused,
             fmt::format("--node-rank {}: another node has come with it", arrival->join.node));
      } catch (const Error&) {
      }
      continue;
    }
    arrivals.push_back(std::move(*arrival));
    if (!problem.empty()) refuse_all(problem, Clock::now() + kSlack);
  }
  std::sort(arrivals.begin(), arrivals.end(),
            [](const Arrival& a, const Arrival& b) { return a.rank < b.rank; });
  Met met;
  met.mesh = std::make_unique<TcpMesh>(place.master.host, place.secret);
  Roster roster{{place.master.host}, {name_of(0, 0, place.master.host)}, {met.mesh->address().port}};
  for (const Arrival& arrival : arrivals) {
    roster.hosts.push_back(arrival.host);
    roster.names.push_back(name_of(arrival.rank, arrival.join.node, arrival.host));
    roster.ports.push_back(arrival.join.port);
  }
  for (Arrival& arrival : arrivals) {
    send(*arrival.socket, Kind::roster, roster);
    met.watched.push_back({std::move(arrival.socket), roster.names[static_cast<size_t>(arrival.rank)],
                           arrival.join.local_rank > 0});
  }
  met.places = places_of(roster);
  met.mesh->meet(0, met.places);
  return met;
}
// <<< task 7.8

Met join_ranks(const HostPlace& place) {
  Met met;
  HostConnection connection = connect_to_host(place.master, place.secret, place.arrival);
  const int number = connection.socket.number();
  // The address by which this host reaches node 0 is one by which the others reach it.
  met.mesh = std::make_unique<TcpMesh>(local_address(number).host, place.secret);
  set_read_timeout(number, place.arrival + kSlack);
  auto socket = message_socket(std::move(connection), kFirstWords);
  send(*socket, Kind::join,
       Join{place.num_nodes, place.node, place.ranks_per_node, place.local_rank, place.arguments,
            met.mesh->address().port});
  std::optional<Message> message;
  try {
    message = socket->read();
  } catch (const Error&) {  // said below
  }
  LADDER_CHECK(message.has_value(), "node 0 at {} has ended, or not said within {} s where the others are",
               place.master.str(), seconds(place.arrival + kSlack));
  if (message->type == static_cast<uint32_t>(Kind::refused))
    fail("{}", from_bytes<std::string>(message->bytes));
  LADDER_CHECK(message->type == static_cast<uint32_t>(Kind::roster), "{} is no node of Ladder",
               place.master.str());
  met.places = places_of(from_bytes<Roster>(message->bytes));
  LADDER_CHECK(std::ssize(met.places) == place.world_size(), "node 0 at {} knows of {} ranks, expected {}",
               place.master.str(), met.places.size(), place.world_size());
  set_read_timeout(number, place.silence);
  met.mesh->meet(place.rank(), met.places);
  met.watched.push_back({std::move(socket), met.places[0].name});
  return met;
}

}  // namespace ladder
