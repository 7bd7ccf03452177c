#include "step7_parallel/communicators/mpi/mpi_exchange.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMostAtOnce = int64_t{1} << 30;       // MPI counts in int
constexpr auto kLooks = std::chrono::milliseconds(2);   // without a pause
constexpr auto kPause = std::chrono::microseconds(50);  // between looks, afterwards

}  // namespace

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char reason[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, reason, &length);
  fail("{}: {}", what, reason);
}

MpiExchange::MpiExchange(MPI_Comm comm, std::chrono::milliseconds timeout) : comm_(comm), timeout_(timeout) {
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size_), "MPI_Comm_size");
}

MpiExchange::~MpiExchange() {
  // What was sent and not received would hold MPI_Finalize up. But an error on its way is not to wait for it.
  const Clock::time_point deadline =
      Clock::now() + (std::uncaught_exceptions() > 0 ? Clock::duration(0) : timeout_);
  for (forget_what_is_gone(); !posted_.empty() && failure_.empty() && Clock::now() < deadline;
       forget_what_is_gone())
    std::this_thread::sleep_for(kPause);
  if (failure_.empty() && posted_.empty()) MPI_Comm_free(&comm_);
}

void MpiExchange::start(const PeerPiece& piece, bool sends, Tag tag,
                        std::vector<MPI_Request>& requests) const {
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(piece.bytes));
  int64_t done = 0;
  do {
    const int count = static_cast<int>(std::min(piece.count - done, kMostAtOnce));
    MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
    check_mpi(sends ? MPI_Isend(bytes + done, count, MPI_BYTE, piece.peer, tag, comm_, &request)
                    : MPI_Irecv(bytes + done, count, MPI_BYTE, piece.peer, tag, comm_, &request),
              sends ? "MPI_Isend" : "MPI_Irecv");
    done += count;
  } while (done < piece.count);
}

// `peers`: of the requests, one by one.
void MpiExchange::wait(std::vector<MPI_Request>& requests, std::span<const int> peers) {
  const Clock::time_point begin = Clock::now();
  while (true) {
    int done = 0;
    check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
              "MPI_Testall");
    if (done != 0) return;
    const auto waited = Clock::now() - begin;
    if (waited > timeout_) break;
    if (waited < kLooks)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kPause);
  }
  for (size_t i = 0; i < requests.size() && failure_.empty(); ++i) {
    int done = 0;
    if (requests[i] != MPI_REQUEST_NULL) MPI_Request_get_status(requests[i], &done, MPI_STATUS_IGNORE);
    if (requests[i] != MPI_REQUEST_NULL && done == 0)
      failure_ =
          fmt::format("rank {} did not answer rank {} within {} ms", peers[i], rank_, timeout_.count());
  }
  fail("{}", failure_);
}

void MpiExchange::exchange(std::span<const PeerPiece> to, std::span<const PeerPiece> from, Tag tag) {
  LADDER_CHECK(failure_.empty(), "{}", failure_);
  forget_what_is_gone();
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  for (const PeerPiece& piece : from) {
    start(piece, false, tag, requests);
    peers.resize(requests.size(), piece.peer);
  }
  for (const PeerPiece& piece : to) {
    start(piece, true, tag, requests);
    peers.resize(requests.size(), piece.peer);
  }
  wait(requests, peers);
}

void MpiExchange::post(const Tensor& bytes, int to, Tag tag) {
  LADDER_CHECK(failure_.empty(), "{}", failure_);
  forget_what_is_gone();
  Posted& posted = posted_.emplace_back(Posted{bytes, {}});
  start({to, bytes.raw(), bytes.nbytes()}, true, tag, posted.requests);
  if (posted_.size() < kMostPosted) return;
  const std::vector<int> peers(posted_.front().requests.size(), to);
  wait(posted_.front().requests, peers);
}

void MpiExchange::forget_what_is_gone() {
  std::erase_if(posted_, [](Posted& posted) {
    int done = 0;
    check_mpi(MPI_Testall(static_cast<int>(posted.requests.size()), posted.requests.data(), &done,
                          MPI_STATUSES_IGNORE),
              "MPI_Testall");
    return done != 0;
  });
}

}  // namespace ladder
