#pragma once
// The one thing that is asked of MPI. Internal to this folder.
#include <mpi.h>

#include <chrono>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "step7_parallel/communicators/peer_exchange.h"

namespace ladder {

// Error: `what` failed, with MPI's reason.
void check_mpi(int code, const char* what);

class MpiExchange final : public PeerExchange {
 public:
  MpiExchange(MPI_Comm comm, std::chrono::milliseconds timeout);
  MpiExchange(const MpiExchange&) = delete;
  ~MpiExchange() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  // After an Error MPI may still write to what was to be received.
  void exchange(std::span<const PeerPiece> to, std::span<const PeerPiece> from, Tag tag) override;
  void post(const Tensor& bytes, int to, Tag tag) override;

 private:
  struct Posted {
    Tensor bytes;
    std::vector<MPI_Request> requests;
  };
  void start(const PeerPiece& piece, bool sends, Tag tag, std::vector<MPI_Request>& requests) const;
  void wait(std::vector<MPI_Request>& requests, std::span<const int> peers);
  void forget_what_is_gone();

  MPI_Comm comm_;
  std::chrono::milliseconds timeout_;
  int rank_ = 0, size_ = 1;
  std::deque<Posted> posted_;
  std::string failure_;
};

}  // namespace ladder
