#include "step7_parallel/communicators/tcp/peer_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "step1_layers/core/error.h"

namespace ladder {

PeerStream::PeerStream(FileDescriptor socket, std::string name)
    : socket_(std::move(socket)), name_(std::move(name)) {}

void PeerStream::queue(Tag tag, const void* bytes, int64_t count, Tensor owner) {
  outgoing_.push_back({{count, tag}, static_cast<const std::byte*>(bytes), std::move(owner)});
}

void PeerStream::leave() {
  outgoing_.push_back({{0, kLeaves}, nullptr, {}});
}

void PeerStream::fail(const std::string& why) {
  if (!has_ended_ && socket_) {
    // What has begun goes on: the other side would take the words for its bytes.
    if (!outgoing_.empty()) outgoing_.resize(outgoing_.front().sent > 0 ? 1 : 0);
    const int64_t count = std::min<int64_t>(std::ssize(why), kMostWords);
    outgoing_.push_back({{count, kFails}, reinterpret_cast<const std::byte*>(why.data()), {}});
    send_some();
    ::shutdown(socket_.number(), SHUT_RDWR);
  }
  outgoing_.clear();
  wants_ = false;
  has_ended_ = true;
}

void PeerStream::begin_last_words() {
  LADDER_CHECK(header_.count <= (header_.tag == kFails ? kMostWords : 0), "{} sent last words of {} bytes",
               name_, header_.count);
  words_.resize(static_cast<size_t>(header_.count));
  into_ = reinterpret_cast<std::byte*>(words_.data());
}

void PeerStream::end_last_words() {
  if (header_.tag == kLeaves)
    has_left_ = true;
  else
    failure_ = words_;
}

bool PeerStream::send_some() {
  constexpr int64_t kHeader = sizeof(Header);
  while (!outgoing_.empty()) {
    Outgoing& piece = outgoing_.front();
    iovec parts[2];
    msghdr out{};
    out.msg_iov = parts;
    if (piece.sent < kHeader)
      parts[out.msg_iovlen++] = {reinterpret_cast<std::byte*>(&piece.header) + piece.sent,
                                 static_cast<size_t>(kHeader - piece.sent)};
    const int64_t of_bytes = std::max<int64_t>(piece.sent - kHeader, 0);
    if (of_bytes < piece.header.count)
      parts[out.msg_iovlen++] = {const_cast<std::byte*>(piece.bytes) + of_bytes,
                                 static_cast<size_t>(piece.header.count - of_bytes)};
    const ssize_t count = ::sendmsg(socket_.number(), &out, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN;
    piece.sent += count;
    if (piece.sent == kHeader + piece.header.count) outgoing_.pop_front();
  }
  return true;
}

// >>> task 7.8: pieces out of a stream, as they come
bool PeerStream::receive_some() {
  constexpr int64_t kHeader = sizeof(Header);
  for (;;) {
    const bool in_header = got_ < kHeader;
    std::byte* const to =
        in_header ? reinterpret_cast<std::byte*>(&header_) + got_ : into_ + (got_ - kHeader);
    const int64_t left = (in_header ? kHeader : kHeader + header_.count) - got_;
    const ssize_t count = ::recv(socket_.number(), to, static_cast<size_t>(left), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return true;
    if (count <= 0) return false;
    got_ += count;
    if (in_header && got_ == kHeader) begin_piece();
    if (got_ >= kHeader && got_ == kHeader + header_.count) end_piece();
  }
}

// A header is there: where its bytes go. Straight to whoever wants them: had anything older been kept for him, he would
// have it.
void PeerStream::begin_piece() {
  LADDER_CHECK(header_.count >= 0 && header_.count <= kMostBytes && header_.tag >= 0 && header_.tag <= kFails,
               "{} sent what is no piece: {} bytes of tag {}", name_, header_.count, header_.tag);
  if (header_.tag >= kNumTags) return begin_last_words();
  reads_wanted_ = wants_ && header_.tag == wanted_tag_;
  if (reads_wanted_) {
    LADDER_CHECK(header_.count == wanted_count_, "{} sent {} bytes where {} are expected", name_,
                 header_.count, wanted_count_);
    into_ = wanted_into_;
  } else {
    Kept& one = kept(header_.tag).emplace_back(Kept{Tensor::empty({header_.count}, DType::u8)});
    into_ = static_cast<std::byte*>(one.bytes.raw());
  }
}

void PeerStream::end_piece() {
  got_ = 0;
  if (header_.tag >= kNumTags) {
    end_last_words();
  } else if (std::exchange(reads_wanted_, false)) {
    wants_ = false;
  } else {
    kept(header_.tag).back().whole = true;
    if (wants_) wants_ = !take_kept();
  }
}
// <<< task 7.8

bool PeerStream::take_kept() {
  std::deque<Kept>& pieces = kept(wanted_tag_);
  if (pieces.empty() || !pieces.front().whole) return false;
  const Tensor bytes = pieces.front().bytes;
  pieces.pop_front();
  LADDER_CHECK(bytes.nbytes() == wanted_count_, "{} sent {} bytes where {} are expected", name_,
               bytes.nbytes(), wanted_count_);
  if (wanted_count_ > 0) std::memcpy(wanted_into_, bytes.raw(), static_cast<size_t>(wanted_count_));
  return true;
}

void PeerStream::want(Tag tag, void* into, int64_t count) {
  LADDER_CHECK(!wants_, "{}: two pieces are wanted at once", name_);
  wanted_tag_ = tag;
  wanted_into_ = static_cast<std::byte*>(into);
  wanted_count_ = count;
  wants_ = !take_kept();
}

bool PeerStream::pump() {
  if (has_ended_ || !socket_) return !has_ended_;
  // First what has come: a peer's last words stand before the end of the connection that a sender sees.
  const bool both = receive_some() && (has_left_ || send_some());
  has_ended_ = !both;
  return both;
}

}  // namespace ladder
