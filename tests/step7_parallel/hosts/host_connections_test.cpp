// Connections between hosts: who gets one, and what strangers can do.
#include "step7_parallel/hosts/host_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <fstream>
#include <future>
#include <thread>

#include "step1_layers/core/error.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::error_of;

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

const HostSecret kSecret{"the word"};
constexpr HostTimeouts kShort{.handshake = 300ms, .cut = 2s};

FileDescriptor stranger(const HostListener& listener) {
  std::string why;
  FileDescriptor socket = try_to_connect(listener.address(), Clock::now() + 5s, why);
  EXPECT_TRUE(socket) << why;
  set_blocking(socket.number(), true);
  return socket;
}
void say(const FileDescriptor& socket, const std::string& bytes) {
  ::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}
// All that comes until the connection ends.
std::string hear(const FileDescriptor& socket) {
  std::string all;
  char bytes[256];
  for (ssize_t count; (count = ::recv(socket.number(), bytes, sizeof bytes, 0)) > 0;)
    all.append(bytes, static_cast<size_t>(count));
  return all;
}

std::future<std::string> connecting(const HostListener& listener, const HostSecret& secret) {
  return std::async(std::launch::async, [address = listener.address(), secret] {
    return error_of([&] { connect_to_host(address, secret, 30s); });
  });
}

TEST(HostConnections, BothSidesThatKnowTheSecretTalkInMessages) {
  HostListener listener({"127.0.0.1", 0}, kSecret);
  auto theirs = std::async(std::launch::async, [&] {
    const auto socket = message_socket(connect_to_host(listener.address(), kSecret, 5s), 5s);
    socket->write(7, "from the connector");
    return socket->read()->bytes;
  });
  auto connection = listener.accept(5s);
  ASSERT_TRUE(connection);
  EXPECT_EQ(connection->peer.host, "127.0.0.1");
  const auto socket = message_socket(std::move(*connection), 5s);
  EXPECT_EQ(socket->read()->bytes, "from the connector");
  socket->write(8, "from the listener");
  EXPECT_EQ(theirs.get(), "from the listener");
}

TEST(HostConnections, TheConnectorWaitsForAListenerThatComesLater) {
  const int port = HostListener({"127.0.0.1", 0}, kSecret).address().port;
  auto theirs = std::async(std::launch::async, [&] {
    return error_of([&] { connect_to_host({"127.0.0.1", port}, kSecret, 30s); });
  });
  std::this_thread::sleep_for(150ms);
  HostListener listener({"127.0.0.1", port}, kSecret);
  EXPECT_TRUE(listener.accept(30s));
  EXPECT_EQ(theirs.get(), "no error");
}

TEST(HostConnections, NobodyThereIsAnErrorAtTheDeadline) {
  const int port = HostListener({"127.0.0.1", 0}, kSecret).address().port;
  const auto begin = Clock::now();
  const std::string error = error_of([&] { connect_to_host({"127.0.0.1", port}, kSecret, 200ms); });
  EXPECT_THAT(error, HasSubstr("127.0.0.1:" + std::to_string(port)));
  EXPECT_THAT(error, HasSubstr("within 200 ms"));
  EXPECT_LT(Clock::now() - begin, 20s);
}

TEST(HostConnections, AnotherSecretIsRefusedAndBothAreTold) {
  HostListener listener({"127.0.0.1", 0}, kSecret);
  for (const HostSecret& other : {HostSecret{"another word"}, HostSecret{}, HostSecret{"the word "}}) {
    auto theirs = connecting(listener, other);
    while (theirs.wait_for(0s) != std::future_status::ready)  // the listener answers while it accepts
      EXPECT_FALSE(listener.accept(50ms)) << other.bytes;
    EXPECT_THAT(theirs.get(), HasSubstr("another secret"));
  }
}

// A listener that says welcome and knows nothing: all that a stranger at the address can do.
TEST(HostConnections, AListenerThatCannotProveItIsLeft) {
  const FileDescriptor listening = listen_on({"127.0.0.1", 0}, 1);
  set_blocking(listening.number(), true);
  auto theirs = std::async(std::launch::async, [address = local_address(listening.number())] {
    return error_of([&] { connect_to_host(address, kSecret, 30s); });
  });
  const FileDescriptor socket(::accept(listening.number(), nullptr, nullptr));
  std::string greeting = "LADRHOST";
  greeting += std::string("\2\0\0\0", 4) + std::string(32, 'n');
  say(socket, greeting);
  std::string answer(108, '\0');
  ASSERT_EQ(::recv(socket.number(), answer.data(), answer.size(), MSG_WAITALL), 108);
  say(socket, '\0' + answer.substr(76));  // its own proof, sent back
  EXPECT_THAT(theirs.get(), HasSubstr("another secret"));
}

TEST(HostConnections, WhatIsNoLadderIsNamed) {
  const FileDescriptor listening = listen_on({"127.0.0.1", 0}, 1);
  set_blocking(listening.number(), true);
  const HostAddress address = local_address(listening.number());
  for (const auto& [greeting, error] :
       {std::pair<std::string, std::string>{"HTTP/1.1 400 Bad Request\r\n" + std::string(40, ' '),
                                            "is not Ladder"},
        {"LADRHOST\x63" + std::string(35, '\0'), "handshake is version 99"}}) {
    auto theirs = std::async(std::launch::async,
                             [&] { return error_of([&] { connect_to_host(address, kSecret, 30s); }); });
    const FileDescriptor socket(::accept(listening.number(), nullptr, nullptr));
    say(socket, greeting);
    EXPECT_THAT(theirs.get(), HasSubstr(error));
  }
}

TEST(HostConnections, ASilentListenerIsGivenUp) {
  const FileDescriptor listening = listen_on({"127.0.0.1", 0}, 8);
  const auto begin = Clock::now();
  EXPECT_THAT(error_of([&] { connect_to_host(local_address(listening.number()), kSecret, 400ms, kShort); }),
              HasSubstr("within 400 ms"));
  EXPECT_LT(Clock::now() - begin, 20s);
}

// Silence, a byte now and then, noise, an early end: none of it keeps the others out, though it may last for a minute, or
// outlives its time.
TEST(HostConnections, StrangersKeepNobodyOut) {
  for (const HostTimeouts& timeouts : {HostTimeouts{.handshake = 60s, .cut = 2s}, kShort}) {
    HostListener listener({"127.0.0.1", 0}, kSecret, timeouts);
    const FileDescriptor silent = stranger(listener), drips = stranger(listener), noise = stranger(listener);
    say(noise, std::string(5000, '\xff'));
    stranger(listener);  // and gone
    say(stranger(listener), "LADRHOST");
    std::thread dripping([&] {
      for (const char c : std::string("LADRHOST\2\0\0\0\0\0", 14)) {
        say(drips, std::string(1, c));
        std::this_thread::sleep_for(50ms);
      }
    });
    auto theirs = connecting(listener, kSecret);
    EXPECT_TRUE(listener.accept(30s)) << "who knows the secret waited for strangers";
    EXPECT_EQ(theirs.get(), "no error");
    if (timeouts.handshake == kShort.handshake) {
      EXPECT_FALSE(listener.accept(600ms));
      for (const FileDescriptor* const socket : {&silent, &drips, &noise})
        EXPECT_LE(hear(*socket).size(), 44u) << "more than the greeting";  // and ends: they were dropped
    }
    dripping.join();
  }
}

TEST(HostConnections, AnAnswerOfAnotherVersionIsToldSo) {
  HostListener listener({"127.0.0.1", 0}, kSecret);
  const FileDescriptor socket = stranger(listener);
  say(socket, "LADRHOST\1" + std::string(3 + 96, '\0'));
  EXPECT_FALSE(listener.accept(1s));
  const std::string heard = hear(socket);
  ASSERT_EQ(heard.size(), 44u + 33u);
  EXPECT_EQ(heard[44], '\1');
  EXPECT_EQ(heard.substr(45), std::string(32, '\0')) << "a proof for a stranger";
}

TEST(HostConnections, ManyStrangersPushOutTheOldestOfThem) {
  HostListener listener({"127.0.0.1", 0}, kSecret, {.handshake = 60s, .cut = 2s});
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < HostListener::kMostUnproved + 6; ++i) strangers.push_back(stranger(listener));
  auto theirs = connecting(listener, kSecret);
  EXPECT_TRUE(listener.accept(30s));
  EXPECT_EQ(theirs.get(), "no error");
  EXPECT_EQ(hear(strangers.front()).size(), 44u);  // dropped
}

TEST(HostConnections, WhatAConnectionIsForCannotBeChangedOnTheWay) {
  HostListener listener({"127.0.0.1", 0}, kSecret);
  ConnectionNote note{};
  note[3] = 7;
  for (const bool changed : {false, true}) {
    FileDescriptor between = listen_on({"127.0.0.1", 0}, 1);
    set_blocking(between.number(), true);
    auto theirs = std::async(std::launch::async, [&, to = local_address(between.number())] {
      return error_of([&] { connect_to_host(to, kSecret, 10s, {.waits_for_listener = false}, note); });
    });
    const FileDescriptor connector(::accept(between.number(), nullptr, nullptr));
    between.close();  // who is turned away here does not come again
    const FileDescriptor to_listener = stranger(listener);
    EXPECT_FALSE(listener.accept(50ms));
    std::string greeting(44, '\0'), answer(108, '\0');
    ASSERT_EQ(::recv(to_listener.number(), greeting.data(), 44, MSG_WAITALL), 44);
    say(connector, greeting);
    ASSERT_EQ(::recv(connector.number(), answer.data(), 108, MSG_WAITALL), 108);
    if (changed) answer[44 + 3] = 8;
    say(to_listener, answer);
    const auto connection = listener.accept(changed ? 400ms : 10s);
    ASSERT_EQ(connection.has_value(), !changed);
    if (connection) EXPECT_EQ(connection->note, note);
  }
}

TEST(HostConnections, AnAnswerIsWorthNothingASecondTime) {
  // Heard between a listener and one who knows the secret, and said again to the same listener.
  HostListener listener({"127.0.0.1", 0}, kSecret);
  std::string answer(108, '\0');
  {
    FileDescriptor between = listen_on({"127.0.0.1", 0}, 1);
    set_blocking(between.number(), true);
    auto theirs = std::async(std::launch::async, [to = local_address(between.number())] {
      return error_of([&] { connect_to_host(to, kSecret, 30s, {.waits_for_listener = false}); });
    });
    const FileDescriptor connector(::accept(between.number(), nullptr, nullptr));
    between.close();  // who gets no welcome here does not come again
    const FileDescriptor to_listener = stranger(listener);
    EXPECT_FALSE(listener.accept(50ms));
    std::string greeting(44, '\0');
    ASSERT_EQ(::recv(to_listener.number(), greeting.data(), 44, MSG_WAITALL), 44);
    say(connector, greeting);
    ASSERT_EQ(::recv(connector.number(), answer.data(), 108, MSG_WAITALL), 108);
    say(to_listener, answer);
    EXPECT_TRUE(listener.accept(10s)) << "the first time it is right";
  }
  const FileDescriptor again = stranger(listener);
  say(again, answer);
  EXPECT_FALSE(listener.accept(400ms));
}

TEST(HostAddress, IsReadAndWritten) {
  EXPECT_EQ(parse_host_address("node-1:29500", "--x").str(), "node-1:29500");
  EXPECT_EQ(parse_host_address("[fd00::1]:1", "--x").str(), "[fd00::1]:1");
  EXPECT_EQ(parse_host_address("[fd00::1]:1", "--x").host, "fd00::1");
  for (const char* const wrong :
       {"", "host", ":1", "host:", "host:0", "host:65536", "host:1x", "fd00::1:5", "[]:1"})
    EXPECT_THAT(error_of([&] { parse_host_address(wrong, "--x"); }), HasSubstr("--x ")) << wrong;
}

TEST(HostSecret, IsNeededWhereOthersCanReachIt) {
  EXPECT_EQ(error_of([] { expect_secret_for("127.0.0.1", {}, "--master-addr"); }), "no error");
  EXPECT_EQ(error_of([] { expect_secret_for("::1", {}, "--master-addr"); }), "no error");
  EXPECT_EQ(error_of([] { expect_secret_for("10.1.2.3", kSecret, "--master-addr"); }), "no error");
  for (const char* const host : {"10.1.2.3", "0.0.0.0", "::"})
    EXPECT_THAT(
        error_of([&] { expect_secret_for(host, {}, "--master-addr"); }),
        ::testing::AllOf(HasSubstr("--master-addr"), HasSubstr("--secret-file"), HasSubstr("LADDER_SECRET")));
}

TEST(HostSecret, IsAFilesContentWithoutItsLastLinesEnd) {
  const testing::TemporaryFolder folder;
  const auto file = folder.path() / "secret";
  std::ofstream(file) << " a word\r\n";
  EXPECT_EQ(read_host_secret(file).bytes, " a word");
  std::ofstream(file) << "\n";
  EXPECT_THAT(error_of([&] { read_host_secret(file); }), HasSubstr("empty"));
  std::ofstream(file) << std::string(5000, 'x');
  EXPECT_THAT(error_of([&] { read_host_secret(file); }), HasSubstr("larger"));
  EXPECT_THAT(error_of([&] { read_host_secret(folder.path() / "none"); }), HasSubstr("--secret-file"));
}

}  // namespace
}  // namespace ladder
