#pragma once
// One way between two processes, carried by UCX: bytes in order from a UcxWriter to a UcxReader. Internal to this folder; there
// where the build has UCX.
//
//   UcxWriter                                               UcxReader
//   context, worker, endpoint ---- active messages ------>  context, worker, callback
//
//     | token | number | up to 64 KiB |                     token and number as expected? into the reader's memory
//
// UCX offers three ways to send what has a sender who knows where it goes:
//   streams        bytes in order, which is what is wanted. But when an endpoint fails, UCX drops what has come and was not asked
//                  for yet (ucp_stream_ep_cleanup): the last message of an end that closed in good order would be lost.
//   tag matching   large bodies by rendezvous: the reader fetches them from the sender's memory by itself. A sender whose
//                  deadline is over has by then given the memory to something else, and a fetch cannot be refused.
//   active messages, eager only: taken here. Each piece is handed to a callback when it comes, so that nothing that has
//                  come can be lost, and is copied on the way: when write() returns, or throws, nobody looks at the body any more.
//                  The price is a copy more than rendezvous between machines with RDMA.
//
// A worker has one direction and is only touched by the thread that sends, or receives: no locks, and no progress is made on what
// comes unless somebody reads. What was sent and not read is in UCX's queues and the kernel's, which are bounded; then the writer waits.
//
// Who has died: within this machine endpoints have UCP_ERR_HANDLING_MODE_NONE, since the other mode, PEER, leaves no shared
// memory to choose ("no peer failure handler", UCX 1.13); between machines they have PEER. Neither is relied on: a request whose
// peer is gone may never complete. Whoever waits has a Patience, which knows by other means; and a writer that gives up destroys
// its worker, and with it all that was under way.
//
// UCX cannot be used in a child of fork() while the parent has a lane: its thread, which accepts connections, is not in the
// child. Without lanes it has no thread.
#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ladder {

// machine: shared memory, unless UCX_TLS names others; no port of UCX's is open. network: whatever UCX finds (RDMA, TCP), and any
// machine that reaches its ports talks to UCX itself, before anything here is asked.
enum class UcxReach : uint8_t { machine, network };

// Drawn by who reads and told to who writes: pieces without it are not looked at.
using UcxToken = std::array<unsigned char, 16>;

// Of whoever waits in a lane. All throw where there is nothing to wait for any more.
class UcxPatience {
 public:
  virtual ~UcxPatience() = default;
  virtual void on_progress() = 0;  // UCX had something to do, which need not be what is waited for
  virtual void on_piece() {}       // what is read has come, or some of it
  // There was none: sleeps until the descriptor can be read, or for a moment. -1: for a short one.
  virtual void sleep(int descriptor) = 0;
};

class UcxWorker {
 public:
  // Error: UCX cannot be used, or has none of the transports that UCX_TLS names.
  explicit UcxWorker(UcxReach reach);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;

  ucp_worker_h handle() const { return worker_; }
  std::string address() const;
  bool progress();                   // whether there was something to do
  void wait(UcxPatience& patience);  // some progress, or a sleep

 private:
  void destroy() noexcept;

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
  int num_idle_ = 0;
};

class UcxWriter {
 public:
  explicit UcxWriter(UcxReach reach);

  // Once, before anything else, with what the reader says of itself. Sends a first piece that says nothing, since UCX makes its
  // connections when they are first used: not for the shortest messages, so the piece has some length. KvChannelError: the reader
  // cannot be reached.
  void begin(std::string address, const UcxToken& token);
  // That piece has left, which it does when the two workers have told each other all they need.
  bool has_begun();

  // KvChannelError: it failed; or what patience throws. Either way nothing can be sent any more.
  void write(std::span<const std::span<const std::byte>> pieces, UcxPatience& patience);

 private:
  static constexpr size_t kPiece = size_t{1} << 16;

  ucs_status_ptr_t send(std::span<const std::byte> bytes);
  void finish(ucs_status_ptr_t request, UcxPatience& patience);
  void on_failure(ucs_status_t status) { failure_ = status; }

  struct Header {
    UcxToken token{};
    uint64_t number = 0;
  };

  const UcxReach reach_;
  std::unique_ptr<UcxWorker> worker_;  // none: writing has failed
  std::string address_;                // the reader's
  ucp_ep_h endpoint_ = nullptr;
  const std::array<std::byte, 8192> nothing_{};
  Header header_;  // of the piece that is being sent: UCX reads it until that has left
  ucs_status_ptr_t first_ = nullptr;
  ucs_status_t failure_ = UCS_OK;
};

class UcxReader {
 public:
  explicit UcxReader(UcxReach reach);

  std::string address() const { return worker_.address(); }
  const UcxToken& token() const { return token_; }
  // The writer's first piece has come.
  bool has_begun();

  // Fills all of `bytes`. KvChannelError: what came is not in order; or what patience throws. Then it is not touched any more.
  void read(std::span<std::byte> bytes, UcxPatience& patience);

 private:
  static ucs_status_t on_piece(void* reader, const void* header, size_t header_size, void* bytes, size_t size,
                               const ucp_am_recv_param_t* how);
  void take(std::span<const std::byte> piece);

  UcxToken token_;
  uint64_t num_pieces_ = 0;
  bool is_out_of_order_ = false;
  std::span<std::byte> wanted_;  // what is left of a reader's memory
  std::vector<std::byte> more_;  // what has come beyond it, and how much of that was read
  size_t num_read_of_more_ = 0;
  UcxWorker worker_;  // last: it calls on_piece()
};

}  // namespace ladder
