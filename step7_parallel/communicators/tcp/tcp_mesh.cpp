#include "step7_parallel/communicators/tcp/tcp_mesh.h"

#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/exchange_communicator.h"
#include "step7_parallel/communicators/exchange_texts.h"
#include "step7_parallel/communicators/forked_ranks.h"
#include "step7_parallel/communicators/tcp/tcp_exchange.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kFirstWords{5};  // of a peer that has proved the secret

}  // namespace

TcpMesh::TcpMesh(const std::string& host, const HostSecret& secret)
    : secret_(secret), listener_({host, 0}, secret) {}

void TcpMesh::meet(int rank, std::vector<TcpPlace> places) {
  rank_ = rank;
  places_ = std::move(places);
}

FileDescriptor TcpMesh::wait_for(const Caller& caller, Clock::time_point deadline) {
  for (;;) {
    if (const auto found = early_.find(caller); found != early_.end())
      return std::move(early_.extract(found).mapped());
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    LADDER_CHECK(left.count() > 0, "{} has not connected to rank {} in time",
                 places_[static_cast<size_t>(caller.rank)].name, rank_);
    auto connection = listener_.accept(left);
    Caller came;
    if (connection &&
        receive_whole(connection->socket.number(), &came, sizeof came, Clock::now() + kFirstWords))
      early_.insert_or_assign(came, std::move(connection->socket));
  }
}

std::unique_ptr<Communicator> TcpMesh::group(const std::vector<int>& ranks, std::chrono::milliseconds connect,
                                             std::chrono::milliseconds timeout,
                                             std::function<void(const std::string&)> failed) {
  const Clock::time_point deadline = Clock::now() + connect;
  const int32_t number = num_groups_++;
  std::vector<PeerStream> peers;
  int mine = -1;
  for (const int rank : ranks) {
    const TcpPlace& place = places_[static_cast<size_t>(rank)];
    FileDescriptor socket;
    if (rank == rank_) {
      mine = static_cast<int>(peers.size());
    } else if (rank <
               rank_) {  // each calls those before it: the first waits for nobody, and so none for ever
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      socket = connect_to_host(place.address, secret_, left).socket;
      const Caller me{number, rank_};
      LADDER_CHECK(send_at_once(socket.number(), &me, sizeof me), "{} has gone", place.name);
    } else {
      socket = wait_for({number, rank}, deadline);
    }
    peers.emplace_back(std::move(socket), place.name);
  }
  LADDER_CHECK(mine >= 0, "rank {} is in no group of its own", rank_);
  return std::make_unique<ExchangeCommunicator>(
      std::make_unique<TcpExchange>(mine, std::move(peers), timeout, std::move(failed)));
}

std::vector<std::string> run_tcp_ranks(int size, std::chrono::milliseconds deadline,
                                       const std::function<void(int rank, Communicator& group)>& fn) {
  return run_forked_ranks(
      {.shape = {.size = size}, .patience = {.timeout = deadline}, .deadline = deadline},
      [&](int rank, Communicator& host) {
        TcpMesh mesh("127.0.0.1", {});
        std::vector<TcpPlace> places;
        std::vector<int> ranks;
        for (const std::string& port : exchange_texts(host, std::to_string(mesh.address().port))) {
          ranks.push_back(static_cast<int>(std::ssize(places)));
          places.push_back({{"127.0.0.1", std::stoi(port)}, fmt::format("rank {}", ranks.back())});
        }
        mesh.meet(rank, std::move(places));
        fn(rank, *mesh.group(ranks, deadline, deadline));
      });
}

}  // namespace ladder
