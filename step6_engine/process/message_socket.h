#pragma once
// Whole messages over a stream socket between two processes of this program.
//
//   | size: u32 | type: u32 | size bytes |   and the next one
//
// One thread may read while others write; writes are whole, one after the other. Whatever goes wrong, also for one
// side only, ends the connection for both: in the middle of a stream there is no way back to a message's beginning.
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "step6_engine/process/file_descriptor.h"

namespace ladder {

struct Message {
  uint32_t type = 0;
  std::string bytes;
};

class MessageSocket {
 public:
  // Larger messages are an Error on both sides.
  static constexpr uint32_t kMaxMessageBytes = 1u << 30;

  explicit MessageSocket(FileDescriptor socket, uint32_t max_message_bytes = kMaxMessageBytes);

  // Waits for a message. None: the connection has ended, between two messages. Error: in the middle of one, or a
  // message is larger than it may be.
  std::optional<Message> read() { return read_up_to(max_message_bytes_); }

  // Error: the message is too large, and nothing was sent; or the connection has ended, or the peer has not taken the
  // whole message in time: that ends the connection, and every later write is an Error at once, since nothing may
  // follow a part of a message. A peer that always reads takes it at once; one that was stopped holds its writers up
  // for no longer than that. No timeout: waits until it is taken or the connection ends. Raises no SIGPIPE.
  void write(uint32_t type, std::string_view bytes, std::optional<std::chrono::milliseconds> timeout = {});

  // Ends the connection for both sides and wakes who reads or writes. From any thread, any number of times.
  void shut_down();

  // The first message of each side says which program it is: Error where the other is no Ladder, or one whose
  // messages are others. Each side sends and reads one.
  void exchange_hello(std::chrono::milliseconds timeout);

 private:
  // read(), whose size may be at most max_bytes. Memory grows with what has come, by a MiB at a time, and never by what
  // a length says.
  std::optional<Message> read_up_to(uint32_t max_bytes);
  // Reads `size` bytes, in as many pieces as they come, and goes on after a signal (EINTR). Returns how many there
  // were; fewer: the connection has ended, or was reset (ECONNRESET). Error: any other failure, or read_deadline_ has
  // come, where there is one.
  size_t read_bytes(char* to, size_t size);
  // Waits until the socket can be read (POLLIN) or written (POLLOUT), or its connection has ended. False: the deadline
  // has come.
  bool wait_for(short events, std::optional<std::chrono::steady_clock::time_point> deadline);

  const FileDescriptor socket_;
  const uint32_t max_message_bytes_;
  std::mutex write_mutex_;
  bool write_failed_ = false;  // under write_mutex_: part of a message may be out
  std::optional<std::chrono::steady_clock::time_point> read_deadline_;
};

}  // namespace ladder
