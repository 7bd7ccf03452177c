#pragma once
// What a group of processes that share no memory needs to have: bytes to some peers and bytes from some, all at once, with
// a bound on the time. All collectives stand on it (exchange_communicator.h); MPI and TCP each have it in their way.
#include <cstdint>
#include <span>

#include "step1_layers/core/tensor.h"

namespace ladder {

// Bytes to or from one peer.
struct PeerPiece {
  int peer = 0;
  const void* bytes = nullptr;  // written to if it is a piece to be received
  int64_t count = 0;
};

class PeerExchange {
 public:
  // Pieces of one tag arrive in their order; those of another do not disturb them.
  enum Tag : int { collective, form, message };
  static constexpr size_t kMostPosted = 1000;  // messages that nobody has received

  virtual ~PeerExchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Sends and receives all of them, at most one to and one from each peer, and returns when the memory is the caller's
  // again. Error: not within the timeout; names whom was waited for, and so does every later call.
  virtual void exchange(std::span<const PeerPiece> to, std::span<const PeerPiece> from,
                        Tag tag = collective) = 0;
  // Sends without waiting, up to kMostPosted of them. The exchange owns the bytes until they are gone.
  virtual void post(const Tensor& bytes, int to, Tag tag) = 0;
};

}  // namespace ladder
