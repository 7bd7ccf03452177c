#include "step7_parallel/communicators/mpi/mpi_world.h"

#include <cstdio>
#include <cstdlib>

#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/exchange_communicator.h"
#include "step7_parallel/communicators/mpi/mpi_exchange.h"

namespace ladder {

MpiWorld::MpiWorld() {
  int given = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread");
  LADDER_CHECK(given >= MPI_THREAD_SERIALIZED, "MPI cannot be used from several threads, one at a time");
}

MpiWorld::~MpiWorld() {
  MPI_Finalize();
}

int MpiWorld::rank() const {
  int rank = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  return rank;
}

int MpiWorld::size() const {
  int size = 0;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  return size;
}

std::unique_ptr<Communicator> MpiWorld::group(int colour, std::chrono::milliseconds timeout) {
  LADDER_CHECK(colour >= 0, "an MPI group of colour {}: expected 0 or more", colour);
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, colour, rank(), &comm), "MPI_Comm_split");
  return std::make_unique<ExchangeCommunicator>(std::make_unique<MpiExchange>(comm, timeout));
}

int MpiWorld::run(const std::function<int()>& program) {
  std::string error = "an exception";
  try {
    return program();
  } catch (const std::exception& caught) {
    error = caught.what();
  } catch (...) {
  }
  fmt::print(stderr, "rank {} of {} failed: {}\n", rank(), size(), error);
  abort(2);
}

void MpiWorld::abort(int code) {
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);  // not reached: MPI_Abort has no promise of that in its type
}

}  // namespace ladder
