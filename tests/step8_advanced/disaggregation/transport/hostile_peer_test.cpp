// Who may talk, and what comes of those who talk nonsense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <span>

#include "step7_parallel/hosts/host_connections.h"
#include "step8_advanced/disaggregation/transport/kv_frame.h"
#include "step8_advanced/disaggregation/transport/stream_channel.h"
#include "tests/step8_advanced/disaggregation/transport/transport_places.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using FrameBytes = std::array<std::byte, kKvFrameBytes>;

const HostSecret kSecret{"the word"};

KvDeadline far() {
  return Clock::now() + 120s;
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

FrameBytes frame_with(size_t at, uint64_t value) {
  FrameBytes bytes = write_kv_frame({.head_size = 3, .body_size = 5});
  std::memcpy(&bytes[at], &value, sizeof value);
  return bytes;
}

TEST(Task8_7_Frame, SaysWhatFollows) {
  for (const KvFrame frame : {KvFrame{0, 0}, KvFrame{1, 0}, KvFrame{kMaxKvMessageHead, kMaxKvMessageBody}})
    EXPECT_EQ(read_kv_frame(write_kv_frame(frame)), frame);
  EXPECT_THROW(write_kv_frame({kMaxKvMessageHead + 1, 0}), Error);
  EXPECT_THROW(write_kv_frame({0, kMaxKvMessageBody + 1}), Error);
}

TEST(Task8_7_Frame, WhatIsNoneIsAnError) {
  EXPECT_THROW(read_kv_frame(FrameBytes{}), KvChannelError);
  EXPECT_THROW(read_kv_frame(frame_with(0, 0x00000001564b444d)), KvChannelError) << "another first letter";
  EXPECT_THROW(read_kv_frame(frame_with(0, 0x00000002564b444c)), KvChannelError) << "another version";
  EXPECT_EQ(read_kv_frame(frame_with(0, 0x00000001564b444c)), (KvFrame{3, 5}));
  EXPECT_THROW(read_kv_frame(frame_with(8, kMaxKvMessageHead + 1)), KvChannelError);
  EXPECT_THROW(read_kv_frame(frame_with(8, ~uint64_t{0})), KvChannelError);
  EXPECT_THROW(read_kv_frame(frame_with(16, kMaxKvMessageBody + 1)), KvChannelError);
  EXPECT_THROW(read_kv_frame(frame_with(16, ~uint64_t{0} - 7)), KvChannelError);
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
    EXPECT_THAT(error_of([&] { connect_for_kv(listener->address(), Clock::now() + 10s, other); }),
                AllOf(HasSubstr("secret"), HasSubstr(listener->address().substr(6))));
  const auto connected = connect_for_kv(listener->address(), far(), kSecret);
  EXPECT_NE(accepted.get(), nullptr);
}

TEST(Task8_7_Tcp, AListenerWithoutTheSecretGetsNothing) {
  const auto listener = listen_for_kv("tcp://127.0.0.1:0", HostSecret{"a guess"});
  auto accepted = std::async(std::launch::async, [&] { return listener->accept(Clock::now() + 300ms); });
  EXPECT_THAT(error_of([&] { connect_for_kv(listener->address(), Clock::now() + 10s, kSecret); }),
              HasSubstr("secret"));
  EXPECT_EQ(accepted.get(), nullptr);
}

TEST(Task8_7_Tcp, OtherMachinesNeedASecret) {
  EXPECT_THAT(error_of([] { listen_for_kv("tcp://0.0.0.0:0", HostSecret{}); }),
              AllOf(HasSubstr("0.0.0.0"), HasSubstr("secret")));
  EXPECT_EQ(error_of([] { listen_for_kv("tcp://0.0.0.0:0", kSecret); }), "no error");
  EXPECT_THAT(listen_for_kv("tcp://0", HostSecret{})->address(), HasSubstr("tcp://127.0.0.1:"));
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
      HostConnection connection = connect_to_host(address, kSecret, 60s);
      ::send(connection.socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ::shutdown(connection.socket.number(), SHUT_WR);
      char end = 0;
      return ::recv(connection.socket.number(), &end, 1, 0);
    });
    const auto accepted = listener->accept(far());
    ASSERT_NE(accepted, nullptr);
    EXPECT_THROW(accepted->receive_head(far()), KvChannelError);
    EXPECT_LE(peer.get(), 0) << "the connection was not closed";
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
