#pragma once
// The one thing that is asked of MPI. Internal to this folder.
#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "step1_layers/core/tensor.h"

namespace ladder {

// Error: `what` failed, with MPI's reason.
void check_mpi(int code, const char* what);

// Bytes to or from one peer.
struct MpiPiece {
  int peer = 0;
  const void* bytes = nullptr;  // written to if it is a piece to be received
  int64_t count = 0;
};

class MpiExchange {
 public:
  enum Tag : int { collective, form, message };

  MpiExchange(MPI_Comm comm, std::chrono::milliseconds timeout);
  MpiExchange(const MpiExchange&) = delete;
  ~MpiExchange();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Sends and receives all of them, and returns when the memory is the caller's again. Error: not within the timeout;
  // names whom was waited for, and so does every later call. MPI may then still write to what was to be received.
  void exchange(std::span<const MpiPiece> to, std::span<const MpiPiece> from, Tag tag = collective);
  // Sends without waiting. The exchange owns the bytes until they are gone.
  void post(const Tensor& bytes, int to, Tag tag);

 private:
  struct Posted {
    Tensor bytes;
    std::vector<MPI_Request> requests;
  };
  void start(const MpiPiece& piece, bool sends, Tag tag, std::vector<MPI_Request>& requests) const;
  void wait(std::vector<MPI_Request>& requests, std::span<const int> peers);
  void forget_what_is_gone();

  MPI_Comm comm_;
  std::chrono::milliseconds timeout_;
  int rank_ = 0, size_ = 1;
  std::deque<Posted> posted_;
  std::string failure_;
};

}  // namespace ladder
