#include "step6_engine/process/message_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "step1_layers/core/error.h"
#include "step6_engine/process/wire.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

struct Header {
  uint32_t size = 0;
  uint32_t type = 0;
};

constexpr uint32_t kHelloType = 0x4c444452;  // "LDDR"
constexpr uint32_t kVersion = 4;             // of all messages: one more with every change of a wire form

}  // namespace

MessageSocket::MessageSocket(FileDescriptor socket, uint32_t max_message_bytes)
    : socket_(std::move(socket)), max_message_bytes_(max_message_bytes) {}

void MessageSocket::shut_down() {
  ::shutdown(socket_.number(), SHUT_RDWR);
}

bool MessageSocket::wait_for(short events, std::optional<Clock::time_point> deadline) {
  while (true) {
    int timeout = -1;
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()).count();
      timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
    }
    pollfd polled{socket_.number(), events, 0};
    if (::poll(&polled, 1, timeout) > 0)
      return true;  // or the connection has ended, as the next call will say
    if (timeout == 0) return false;
  }
}

// >>> task 6.9: whole messages out of a stream, and into it
size_t MessageSocket::read_bytes(char* to, size_t size) {
  size_t done = 0;
  while (done < size) {
    if (read_deadline_)
      LADDER_CHECK(wait_for(POLLIN, read_deadline_), "the connection: nothing came in time");
    const ssize_t count = ::recv(socket_.number(), to + done, size - done, 0);
    if (count == 0) break;
    if (count > 0) {
      done += static_cast<size_t>(count);
    } else if (errno == ECONNRESET) {  // ended with bytes that were not read
      break;
    } else {
      LADDER_CHECK(errno != EAGAIN, "the connection: nothing came in time");  // SO_RCVTIMEO
      LADDER_CHECK(errno == EINTR, "the connection: {}", std::strerror(errno));
    }
  }
  return done;
}

std::optional<Message> MessageSocket::read_up_to(uint32_t max_bytes) {
  Header header;
  const size_t had = read_bytes(reinterpret_cast<char*>(&header), sizeof header);
  if (had == 0) return {};
  LADDER_CHECK(had == sizeof header, "the connection ended after {} of {} bytes of a message's beginning",
               had, sizeof header);
  LADDER_CHECK(header.size <= max_bytes, "a message of {} bytes: at most {} are expected", header.size,
               max_bytes);
  Message message{header.type, {}};
  // Grows with what really comes, so that a length alone takes no memory.
  constexpr size_t kPiece = 1 << 20;
  while (message.bytes.size() < header.size) {
    const size_t begin = message.bytes.size();
    const size_t piece = std::min(kPiece, header.size - begin);
    message.bytes.resize(begin + piece);
    LADDER_CHECK(read_bytes(message.bytes.data() + begin, piece) == piece,
                 "the connection ended in a message of {} bytes", header.size);
  }
  return message;
}

void MessageSocket::write(uint32_t type, std::string_view bytes,
                          std::optional<std::chrono::milliseconds> timeout) {
  LADDER_CHECK(bytes.size() <= max_message_bytes_, "a message of {} bytes: at most {} may be sent",
               bytes.size(), max_message_bytes_);
  std::optional<Clock::time_point> deadline;
  if (timeout) deadline = Clock::now() + *timeout;
  Header header{static_cast<uint32_t>(bytes.size()), type};
  iovec pieces[2] = {{&header, sizeof header}, {const_cast<char*>(bytes.data()), bytes.size()}};
  msghdr out{};
  out.msg_iov = pieces;
  out.msg_iovlen = 2;

  std::lock_guard lock(write_mutex_);
  LADDER_CHECK(!write_failed_, "the connection has ended");
  const auto failed = [&](const char* why) {
    write_failed_ = true;
    shut_down();
    fail("the connection: {}", why);
  };
  for (size_t left = sizeof header + bytes.size(); left > 0;) {
    const ssize_t count = ::sendmsg(socket_.number(), &out, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) failed(std::strerror(errno));
      if (!wait_for(POLLOUT, deadline)) failed("the other side takes no messages");
      continue;
    }
    left -= static_cast<size_t>(count);
    for (size_t sent = static_cast<size_t>(count); sent > 0;) {
      const size_t of_first = std::min(sent, out.msg_iov->iov_len);
      out.msg_iov->iov_base = static_cast<char*>(out.msg_iov->iov_base) + of_first;
      out.msg_iov->iov_len -= of_first;
      sent -= of_first;
      if (out.msg_iov->iov_len == 0 && out.msg_iovlen > 1) ++out.msg_iov, --out.msg_iovlen;
    }
  }
}
// <<< task 6.9

void MessageSocket::exchange_hello(std::chrono::milliseconds timeout) {
  std::string mine;
  WireWriter{mine}(kVersion);
  write(kHelloType, mine, timeout);
  read_deadline_ = Clock::now() + timeout;
  const std::optional<Message> theirs = read_up_to(64);
  read_deadline_.reset();
  LADDER_CHECK(theirs.has_value(), "the connection ended before the first message");
  LADDER_CHECK(theirs->type == kHelloType, "the other side is not Ladder");
  WireReader reader(theirs->bytes);
  const auto version = reader.value<uint32_t>();
  LADDER_CHECK(version == kVersion,
               "the other side is another version of Ladder: its messages are version {}, expected {}",
               version, kVersion);
  reader.expect_end();
}

}  // namespace ladder
