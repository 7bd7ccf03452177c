// Who may talk, and what comes of those who talk nonsense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <span>

#include "step7_parallel/hosts/host_connections.h"
#include "step8_advanced/disaggregation/transport/kv_frame.h"
#include "step8_advanced/disaggregation/transport/stream_channel.h"
#include "tests/step8_advanced/disaggregation/transport/transport_places.h"
#include "tests/support/error_of.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::error_of;

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using FrameBytes = std::array<std::byte, kKvFrameBytes>;

const HostSecret kSecret{"the word"};

KvDeadline far() {
  return Clock::now() + 120s;
}

FrameBytes frame_with(size_t at, uint64_t value) {
  FrameBytes bytes = write_kv_frame({.head_size = 3, .body_size = 5});
  std::memcpy(&bytes[at], &value, sizeof value);
  return bytes;
}

TEST(Task8_7_Frame, SaysWhatFollows) {
  for (const KvFrame frame :
       {KvFrame{0, 0}, KvFrame{1, 0}, KvFrame{kMaxKvMessageHead, kMaxKvMessageBody},
        KvFrame{1, 5, KvBodyForm::zstd, 4}, KvFrame{1, 5, KvBodyForm::zstd_of_2_bytes, 1},
        KvFrame{0, kMaxKvMessageBody, KvBodyForm::zstd_of_4_bytes, kMaxKvMessageBody - 1}})
    EXPECT_EQ(read_kv_frame(write_kv_frame(frame)), frame);
  EXPECT_THROW(write_kv_frame({kMaxKvMessageHead + 1, 0}), Error);
  EXPECT_THROW(write_kv_frame({0, kMaxKvMessageBody + 1}), Error);
}

TEST(Task8_7_Frame, WhatIsNoneIsAnError) {
  EXPECT_THROW(read_kv_frame(FrameBytes{}), KvChannelError);
  EXPECT_THROW(read_kv_frame(frame_with(0, 0x00000002564b444d)), KvChannelError) << "another first letter";
  EXPECT_THROW(read_kv_frame(frame_with(0, 0x00000001564b444c)), KvChannelError) << "another version";
  EXPECT_EQ(read_kv_frame(frame_with(0, 0x00000002564b444c)), (KvFrame{3, 5}));
  EXPECT_THROW(read_kv_frame(frame_with(8, kMaxKvMessageHead + 1)), KvChannelError);
  EXPECT_THROW(read_kv_frame(frame_with(8, ~uint64_t{0})), KvChannelError);
  EXPECT_THROW(read_kv_frame(frame_with(16, kMaxKvMessageBody + 1)), KvChannelError);
  EXPECT_THROW(read_kv_frame(frame_with(16, ~uint64_t{0} - 7)), KvChannelError);
  // The packed size, and the form of a body of five bytes.
  const auto form = [](uint64_t form, uint64_t packed_size) {
    return frame_with(24, form << 32 | packed_size);
  };
  EXPECT_EQ(read_kv_frame(form(2, 4)), (KvFrame{3, 5, KvBodyForm::zstd_of_2_bytes, 4}));
  for (const uint64_t other : {3, 5, 255})
    EXPECT_THROW(read_kv_frame(form(other, 4)), KvChannelError) << other;
  EXPECT_THROW(read_kv_frame(form(0, 4)), KvChannelError) << "as it is, and shorter";
  EXPECT_THROW(read_kv_frame(form(1, 0)), KvChannelError) << "nothing that becomes something";
  for (const uint64_t size : {5ULL, 6ULL, 0xffffffffULL})
    EXPECT_THROW(read_kv_frame(form(1, size)), KvChannelError) << "no shorter: " << size;
}

// What came, and nothing more.
class GivenBytes final : public ByteStream {
 public:
  explicit GivenBytes(std::string bytes) : bytes_(std::move(bytes)) {}
  void write(Pieces, KvDeadline) override {}
  void read(std::span<std::byte> to, KvDeadline) override {
    if (bytes_.size() < to.size()) throw KvChannelError("the end");
    std::ranges::copy(std::as_bytes(std::span(bytes_)).first(to.size()), to.begin());
    bytes_.erase(0, to.size());
  }
  void close() noexcept override {}

 private:
  std::string bytes_;
};

TEST(Task8_7_Frame, NothingIsReadBehindAnError) {
  const FrameBytes good = write_kv_frame({0, 0}), bad = frame_with(8, ~uint64_t{0});
  const auto text = [](const FrameBytes& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  StreamChannel channel(std::make_unique<GivenBytes>(text(good) + text(bad) + text(good)));
  channel.receive_head(far());
  EXPECT_THROW(channel.receive_head(far()), KvChannelError);
  EXPECT_THROW(channel.receive_head(far()), KvChannelError) << "a message behind one that was none";
}

TEST(Task8_7_Tcp, BothEndsMustKnowTheSecret) {
  const auto listener = listen_for_kv("tcp://127.0.0.1:0", kSecret);
  auto accepted = std::async(std::launch::async, [&] { return listener->accept(far()); });
  for (const HostSecret& other : {HostSecret{"another"}, HostSecret{}, HostSecret{"the wor"}})
    EXPECT_THAT(error_of([&] { connect_for_kv(listener->address(), far(), other); }),
                AllOf(HasSubstr("secret"), HasSubstr(listener->address().substr(6))));
  const auto connected = connect_for_kv(listener->address(), far(), kSecret);
  EXPECT_NE(accepted.get(), nullptr);
}

TEST(Task8_7_Tcp, AListenerWithoutTheSecretGetsNothing) {
  const auto listener = listen_for_kv("tcp://127.0.0.1:0", HostSecret{"a guess"});
  auto accepted = std::async(std::launch::async, [&] { return listener->accept(far()); });
  EXPECT_THAT(error_of([&] { connect_for_kv(listener->address(), far(), kSecret); }), HasSubstr("secret"));
  listener->close();
  EXPECT_EQ(accepted.get(), nullptr);
}

TEST(Task8_7_Tcp, OtherMachinesNeedASecret) {
  EXPECT_THAT(error_of([] { listen_for_kv("tcp://0.0.0.0:0", HostSecret{}); }),
              AllOf(HasSubstr("0.0.0.0"), HasSubstr("secret")));
  EXPECT_EQ(error_of([] { listen_for_kv("tcp://0.0.0.0:0", kSecret); }), "no error");
  EXPECT_THAT(listen_for_kv("tcp://0", HostSecret{})->address(), HasSubstr("tcp://127.0.0.1:"));
}

// A connection as one of a channel's streams, and what it says by itself.
class RawStream {
 public:
  RawStream(const HostAddress& address, int num_streams, int index, char channel,
            const std::string& magic = "LDKVT1")
      : connection_(connect_to_host(address, kSecret, 60s, {}, note(num_streams, index, channel, magic))) {}

  void say(std::string_view bytes) {
    ::send(connection_.socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void end() { ::shutdown(connection_.socket.number(), SHUT_WR); }
  // All that comes until the connection ends.
  std::string hear() {
    std::string all;
    std::vector<char> bytes(1 << 16);
    for (ssize_t count; (count = ::recv(connection_.socket.number(), bytes.data(), bytes.size(), 0)) > 0;)
      all.append(bytes.data(), static_cast<size_t>(count));
    return all;
  }

 private:
  static ConnectionNote note(int num_streams, int index, char channel, const std::string& magic) {
    ConnectionNote note;
    note.fill(static_cast<unsigned char>(channel));
    std::ranges::copy(magic, note.begin());
    note[6] = static_cast<unsigned char>(num_streams);
    note[7] = static_cast<unsigned char>(index);
    return note;
  }

  HostConnection connection_;
};

struct RawChannel {
  std::vector<std::unique_ptr<RawStream>> streams;
  std::unique_ptr<KvChannel> accepted;
};
RawChannel raw_channel(KvListener& listener, int num_streams) {
  const HostAddress address = parse_host_address(listener.address().substr(6), "tcp://");
  auto streams = std::async(std::launch::async, [&] {
    std::vector<std::unique_ptr<RawStream>> streams;
    for (int i = 0; i < num_streams; ++i)
      streams.push_back(std::make_unique<RawStream>(address, num_streams, i, 'c'));
    return streams;
  });
  auto accepted = listener.accept(far());
  return {streams.get(), std::move(accepted)};
}

constexpr size_t kStripe = 128 << 10;

std::string some_text(testing::Random& random, size_t size) {
  std::string text(size, '\0');
  for (char& byte : text) byte = static_cast<char>(random.integer(0, 255));
  return text;
}
// What each of the streams carries of it.
std::vector<std::string> striped(const std::string& all, size_t num_streams) {
  std::vector<std::string> streams(num_streams);
  for (size_t at = 0; at < all.size(); at += kStripe)
    streams[at / kStripe % num_streams] += all.substr(at, kStripe);
  return streams;
}

TEST(Task8_7_Streams, StripesGoOverOneConnectionAfterAnother) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const auto listener = listen_for_kv("tcp://0", kSecret);
  RawChannel channel = raw_channel(*listener, 3);
  const std::string body = some_text(random, 1'000'000);
  const FrameBytes frame = write_kv_frame({.head_size = 0, .body_size = body.size()});
  std::string all;
  for (int i = 0; i < 2; ++i)
    all.append(reinterpret_cast<const char*>(frame.data()), frame.size()).append(body);
  auto sent = std::async(std::launch::async, [&] {
    for (int i = 0; i < 2; ++i) channel.accepted->send({}, std::as_bytes(std::span(body)), far());
    channel.accepted.reset();
  });
  std::vector<std::future<std::string>> heard;
  for (const auto& stream : channel.streams)
    heard.push_back(std::async(std::launch::async, [&stream] { return stream->hear(); }));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(heard[i].get() == striped(all, 3)[i]) << "connection " << i;
}

TEST(Task8_7_Streams, ALateConnectionIsWaitedFor) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const auto listener = listen_for_kv("tcp://0", kSecret);
  RawChannel channel = raw_channel(*listener, 3);
  const std::string body = some_text(random, 900'000);
  const FrameBytes frame = write_kv_frame({.head_size = 0, .body_size = body.size()});
  const auto parts =
      striped(std::string(reinterpret_cast<const char*>(frame.data()), frame.size()) + body, 3);
  auto sent = std::async(std::launch::async, [&] {
    for (const size_t i : {2, 0, 1}) channel.streams[i]->say(parts[i]);
  });
  ASSERT_EQ(channel.accepted->receive_head(far()).body_size, body.size());
  std::string received(body.size(), '\0');
  channel.accepted->receive_body(std::as_writable_bytes(std::span(received)), far());
  EXPECT_TRUE(received == body);
  sent.get();
}

TEST(Task8_7_Streams, TheEndOfOneIsTheEndOfAll) {
  const auto listener = listen_for_kv("tcp://0", kSecret);
  for (const bool reads : {true, false}) {
    RawChannel channel = raw_channel(*listener, 3);
    const FrameBytes frame = write_kv_frame({.head_size = 0, .body_size = 4 * kStripe});
    channel.streams[1].reset();
    if (reads) {
      channel.streams[0]->say({reinterpret_cast<const char*>(frame.data()), frame.size()});
      std::vector<std::byte> body(channel.accepted->receive_head(far()).body_size);
      EXPECT_THROW(channel.accepted->receive_body(body, far()), KvChannelError);
    } else {
      const std::vector<std::byte> body(64 << 20);
      EXPECT_THROW(channel.accepted->send({}, body, far()), KvChannelError);
    }
    for (const size_t i : {0, 2}) channel.streams[i]->hear();  // ends
    EXPECT_THROW(channel.accepted->send({}, {}, far()), KvChannelError) << "over connections that are whole";
  }
}

// Who knows the secret, and not the channel's number, cannot be among its streams; who says what cannot be is dropped at once.
TEST(Task8_7_Streams, WhoJoinsAnothersStreamsIsDropped) {
  const auto listener = listen_for_kv("tcp://0?streams=2", kSecret);
  const HostAddress address =
      parse_host_address(listener->address().substr(6, listener->address().find('?') - 6), "tcp://");
  std::atomic<bool> is_over = false;
  auto accepting = std::async(std::launch::async, [&] {
    std::vector<std::unique_ptr<KvChannel>> all;
    while (!is_over)
      if (auto channel = listener->accept(Clock::now() + 20ms)) all.push_back(std::move(channel));
    return all;
  });
  RawStream first(address, 3, 0, 'x');
  struct Wrong {
    int num_streams, index;
    char channel;
    std::string magic;
  };
  for (const auto& [num_streams, index, channel, magic] :
       {Wrong{3, 0, 'x', "LDKVT1"}, Wrong{2, 1, 'x', "LDKVT1"}, Wrong{4, 3, 'x', "LDKVT1"},
        Wrong{0, 0, 'y', "LDKVT1"}, Wrong{17, 0, 'y', "LDKVT1"}, Wrong{2, 2, 'y', "LDKVT1"},
        Wrong{255, 255, 'y', "LDKVT1"}, Wrong{1, 0, 'y', "LDKVT2"}}) {
    RawStream wrong(address, num_streams, index, channel, magic);
    EXPECT_EQ(wrong.hear(), "") << num_streams << " " << index << " " << magic;
  }
  RawStream second(address, 3, 1, 'x'), third(address, 3, 2, 'x');
  const FrameBytes message = write_kv_frame({0, 0});
  first.say({reinterpret_cast<const char*>(message.data()), message.size()});
  // Of those that are never completed the oldest makes room.
  std::vector<std::unique_ptr<RawStream>> others;
  for (int i = 0; i < 65; ++i)
    others.push_back(std::make_unique<RawStream>(address, 2, 0, static_cast<char>(i)));
  EXPECT_EQ(others[0]->hear(), "");
  const auto connected = connect_for_kv(listener->address(), far(), kSecret);
  connected->send(std::vector<std::byte>(9), {}, far());
  is_over = true;
  const auto accepted = accepting.get();
  ASSERT_EQ(accepted.size(), 2u) << "channels of those that belong together";
  accepted[0]->receive_head(far());
  EXPECT_EQ(accepted[1]->receive_head(far()).head.size(), 9u);
}

TEST(Task8_7_Streams, AnyBytesAreMessagesAndThenAnError) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const auto listener = listen_for_kv("tcp://0", kSecret);
  for (int round = 0; round < 20; ++round) {
    const auto num_streams = static_cast<int>(random.integer(1, 4));
    RawChannel channel = raw_channel(*listener, num_streams);
    std::string all;
    const auto good = write_kv_frame({.head_size = static_cast<size_t>(random.integer(0, 3)),
                                      .body_size = static_cast<size_t>(random.integer(0, 300'000))});
    all.append(reinterpret_cast<const char*>(good.data()), good.size());
    all += some_text(random, static_cast<size_t>(random.integer(0, 400'000)));
    auto sent = std::async(std::launch::async, [&] {
      const auto parts = striped(all, static_cast<size_t>(num_streams));
      for (size_t i = parts.size(); i-- > 0; channel.streams[i]->end()) channel.streams[i]->say(parts[i]);
    });
    EXPECT_THROW(
        for (;;) {
          const KvMessageHead head = channel.accepted->receive_head(far());
          std::vector<std::byte> body(std::min<size_t>(head.body_size, 1 << 20));
          if (body.size() < head.body_size) throw KvChannelError("its reader has not so much");
          if (!body.empty()) channel.accepted->receive_body(body, far());
        },
        KvChannelError);
    channel.accepted.reset();
    sent.get();
  }
}

// Strangers with nonsense are dropped, and who belongs here gets in meanwhile.
TEST(Task8_7_Tcp, StrangersAreDroppedAndTheListenerGoesOn) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const auto listener = listen_for_kv("tcp://127.0.0.1:0", kSecret);
  const HostAddress address = parse_host_address(listener->address().substr(6), "tcp://");
  const int64_t before = testing::num_descriptors();
  {
    std::vector<FileDescriptor> strangers;
    for (int i = 0; i < 40; ++i) {
      std::string why;
      FileDescriptor socket = try_to_connect(address, far(), why);
      ASSERT_TRUE(socket) << why;
      std::string bytes(static_cast<size_t>(random.integer(0, 300)), '\0');
      for (char& byte : bytes) byte = static_cast<char>(random.integer(0, 255));
      if (i % 3 == 0) bytes = std::string("LADRHOST").substr(0, static_cast<size_t>(i % 9)) + bytes;
      ::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (i % 2 == 0) strangers.push_back(std::move(socket));  // others say no more and stay
    }
    auto connected = std::async(std::launch::async, [&] {
      const auto channel = connect_for_kv(listener->address(), far(), kSecret);
      channel->send(std::vector<std::byte>(7), {}, far());
      error_of([&] { channel->receive_head(far()); });
    });
    const auto accepted = listener->accept(far());
    ASSERT_NE(accepted, nullptr);
    EXPECT_EQ(accepted->receive_head(far()).head.size(), 7u);
    accepted->close();
    connected.get();
  }
  while (testing::num_descriptors() > before)
    listener->accept(Clock::now() + 20ms);  // those who said nothing
}

// Who knows the secret can still be wrong.
TEST(Task8_7_Tcp, BytesThatAreNoMessageCloseTheConnection) {
  const auto listener = listen_for_kv("tcp://127.0.0.1:0", kSecret);
  const HostAddress address = parse_host_address(listener->address().substr(6), "tcp://");
  const auto frame = write_kv_frame({.head_size = 100, .body_size = 0});
  std::vector<std::string> all;
  for (const FrameBytes& bytes :
       {frame_with(0, 0), frame_with(8, ~uint64_t{0}), frame_with(16, ~uint64_t{0})})
    all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  all.emplace_back(reinterpret_cast<const char*>(frame.data()), 10);            // cut off in the frame
  all.emplace_back(reinterpret_cast<const char*>(frame.data()), frame.size());  // ... and before the head
  for (const std::string& bytes : all) {
    auto peer = std::async(std::launch::async, [&] {
      RawStream stream(address, 1, 0, 'c');
      stream.say(bytes);
      stream.end();
      return stream.hear();
    });
    const auto accepted = listener->accept(far());
    ASSERT_NE(accepted, nullptr);
    EXPECT_THROW(accepted->receive_head(far()), KvChannelError);
    EXPECT_EQ(peer.get(), "");  // and the connection was closed
  }
}

TEST(Task8_7_File, AFileThatIsNoMessageIsAnError) {
  const testing::TransportPlace place("file");
  const auto listener = listen_for_kv(place.address());
  const auto text = [](const FrameBytes& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  const std::string frame = text(write_kv_frame({.head_size = 3, .body_size = 5}));
  for (const std::string& bytes : {std::string(), frame.substr(0, 9), frame + "abc1234", frame + "abc123456",
                                   text(frame_with(16, ~uint64_t{0})) + "abc12345"}) {
    auto connecting = std::async(std::launch::async, [&] { return connect_for_kv(place.address(), far()); });
    const auto accepted = listener->accept(far());
    const auto connected = connecting.get();
    ASSERT_EQ(place.left_behind().size(), 1u);
    testing::write_file(std::filesystem::path(*place.left_behind().begin()) / "connector-0", bytes);
    EXPECT_THROW(accepted->receive_head(far()), KvChannelError) << bytes.size() << " bytes";
  }
}

}  // namespace
}  // namespace ladder
