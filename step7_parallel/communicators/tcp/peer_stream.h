#pragma once
// Pieces of bytes, each with a tag, to and from one peer over one connection, as much at a time as goes without waiting.
//
//   | count: i64 | tag: i64 | count bytes |   and the next one
//
// What comes before it is asked for is kept: reading never stops, so no two peers wait for each other's full buffers.
#include <array>
#include <cstdint>
#include <deque>
#include <string>

#include "step6_engine/process/file_descriptor.h"
#include "step7_parallel/communicators/peer_exchange.h"

namespace ladder {

class PeerStream {
 public:
  using Tag = PeerExchange::Tag;

  // `name`: of the peer, for messages ("rank 1"). No socket: a stream that nobody uses, this rank's own.
  PeerStream(FileDescriptor socket, std::string name);

  // The bytes stay as they are until sends() is false; `owner` keeps them where they are nobody's.
  void queue(Tag tag, const void* bytes, int64_t count, Tensor owner = {});
  // The next piece of that tag goes there. One at a time; Error: it is of another size.
  void want(Tag tag, void* into, int64_t count);

  // Sends and reads what goes. False: the connection has ended.
  bool pump();
  // The last words: without them an end of the connection is a failure. Nothing is queued after them.
  void leave();
  // Tells the peer why, if that goes at once, and ends the connection. No caller's memory is looked at any more.
  void fail(const std::string& why);

  bool wants() const { return wants_; }
  bool sends() const { return !outgoing_.empty(); }
  size_t num_queued() const { return outgoing_.size(); }
  bool has_left() const { return has_left_; }
  bool has_ended() const { return has_ended_; }
  int socket() const { return socket_.number(); }
  const std::string& name() const { return name_; }
  const std::string& failure() const { return failure_; }  // what the peer has failed with; empty: it has not

 private:
  static constexpr int64_t kNumTags = PeerExchange::message + 1;
  static constexpr int64_t kLeaves = kNumTags, kFails = kNumTags + 1;  // the tags of last words
  static constexpr int64_t kMostWords = 4096;
  static constexpr int64_t kMostBytes = int64_t{1} << 36;  // of a piece: a length that is more is no length

  struct Header {
    int64_t count = 0;
    int64_t tag = 0;
  };
  struct Outgoing {
    Header header;
    const std::byte* bytes = nullptr;
    Tensor owner;
    int64_t sent = 0;  // of the header and the bytes
  };
  struct Kept {
    Tensor bytes;
    bool whole = false;
  };

  bool send_some();
  bool receive_some();
  void begin_piece();
  void end_piece();
  bool take_kept();  // of the tag that is wanted
  // begin_piece() and end_piece() of kLeaves and kFails.
  void begin_last_words();
  void end_last_words();
  std::deque<Kept>& kept(int64_t tag) { return kept_[static_cast<size_t>(tag)]; }

  FileDescriptor socket_;
  std::string name_;
  std::deque<Outgoing> outgoing_;
  Header header_;    // of what is just being read,
  int64_t got_ = 0;  // with the header's bytes,
  std::byte* into_ = nullptr;
  std::array<std::deque<Kept>, kNumTags> kept_;
  Tag wanted_tag_ = PeerExchange::collective;
  std::byte* wanted_into_ = nullptr;
  int64_t wanted_count_ = 0;
  std::string words_, failure_;
  bool wants_ = false, reads_wanted_ = false, has_left_ = false, has_ended_ = false;
};

}  // namespace ladder
