// What UCX adds to what every transport must do (kv_transports_test.cpp): who may connect, who may put pieces into a lane, and
// where the build has no UCX.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <set>
#include <sstream>

#include "step7_parallel/hosts/host_connections.h"
#include "tests/step8_advanced/disaggregation/transport/transport_places.h"
#include "tests/support/error_of.h"
#include "tests/support/numerics.h"
#ifdef LADDER_HAS_UCX
#include "step8_advanced/disaggregation/transport/ucx_lane.h"
#endif

namespace ladder {
namespace {

using testing::error_of;

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

#ifndef LADDER_HAS_UCX
TEST(Task8_7_Ucx, WhereTheBuildHasNoneThePackageIsNamed) {
  EXPECT_THAT(error_of([] { listen_for_kv("ucx://0"); }),
              AllOf(HasSubstr("ucx://0"), HasSubstr("libucx-dev")));
}
#else

const HostSecret kSecret{"the word"};

KvDeadline far() {
  return Clock::now() + 60s;
}

TEST(Task8_7_Ucx, APlaceIsAHostAndAPort) {
  for (const char* const wrong : {"ucx://", "ucx://:5", "ucx://a:b", "ucx://127.0.0.1:70000", "ucx://-1",
                                  "ucx://0?", "ucx://0?streams=2"})
    EXPECT_THAT(error_of([&] { listen_for_kv(wrong); }), HasSubstr("ucx://")) << wrong;
}

TEST(Task8_7_Ucx, WhereUcxHasNothingToUseIsAnErrorAtOnce) {
  ::setenv("UCX_TLS", "nothing", 1);
  const std::string error = error_of([] { listen_for_kv("ucx://0"); });
  ::unsetenv("UCX_TLS");
  EXPECT_THAT(error, AllOf(HasSubstr("ucx://0"), HasSubstr("UCX_TLS=nothing")));
}

TEST(Task8_7_Ucx, BothEndsMustKnowTheSecret) {
  const auto listener = listen_for_kv("ucx://127.0.0.1:0", kSecret);
  auto accepted = std::async(std::launch::async, [&] { return listener->accept(far()); });
  for (const HostSecret& other : {HostSecret{"another"}, HostSecret{}})
    EXPECT_THAT(error_of([&] { connect_for_kv(listener->address(), Clock::now() + 10s, other); }),
                AllOf(HasSubstr("secret"), HasSubstr(listener->address().substr(6))));
  const auto connected = connect_for_kv(listener->address(), far(), kSecret);
  EXPECT_NE(accepted.get(), nullptr);
}

TEST(Task8_7_Ucx, OtherMachinesNeedASecret) {
  EXPECT_THAT(error_of([] { listen_for_kv("ucx://0.0.0.0:0", HostSecret{}); }),
              AllOf(HasSubstr("0.0.0.0"), HasSubstr("secret")));
  EXPECT_EQ(error_of([] { listen_for_kv("ucx://0.0.0.0:0", kSecret); }), "no error");
}

// Of this process, over IPv4.
int num_listening_sockets() {
  std::set<std::string> mine;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    mine.insert(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  std::ifstream table("/proc/self/net/tcp");
  int count = 0;
  std::string line;
  for (std::getline(table, line); std::getline(table, line);) {
    std::istringstream words(line);
    std::vector<std::string> column(std::istream_iterator<std::string>(words), {});
    constexpr size_t kState = 3, kInode = 9;
    if (column.size() > kInode && column[kState] == "0A" && mine.contains("socket:[" + column[kInode] + "]"))
      ++count;
  }
  return count;
}

TEST(Task8_7_Ucx, OnThisMachineUcxOpensNoPort) {
  const int before = num_listening_sockets();
  const auto listener = listen_for_kv("ucx://0", kSecret);
  auto accepted = std::async(std::launch::async, [&] { return listener->accept(far()); });
  const auto connected = connect_for_kv(listener->address(), far(), kSecret);
  const auto channel = accepted.get();
  ASSERT_NE(channel, nullptr);
  EXPECT_EQ(num_listening_sockets(), before + 1);
}

// Of this machine, that is none of it alone; empty: it has none.
std::string own_address() {
  ifaddrs* all = nullptr;
  std::string found;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, text.data(),
                text.size());
    if (!is_loopback(text.data())) found = text.data();
  }
  ::freeifaddrs(all);
  return found;
}

// As between machines: UCX chooses among all it has, and endpoints have the other way to fail.
TEST(Task8_7_Ucx, MessagesAndTheirEndComeOverANetworksAddress) {
  const std::string host = own_address();
  if (host.empty()) GTEST_SKIP() << "this machine has no address but its own";
  const auto listener = listen_for_kv(fmt::format("ucx://{}:0", host), kSecret);
  auto accepting = std::async(std::launch::async, [&] { return listener->accept(far()); });
  auto connected = connect_for_kv(listener->address(), far(), kSecret);
  const auto accepted = accepting.get();
  ASSERT_NE(accepted, nullptr);
  const std::vector<std::byte> sent(3'000'000, std::byte{7});
  auto sending = std::async(std::launch::async, [&] {
    for (int i = 0; i < 5; ++i) connected->send(std::vector<std::byte>(9), sent, far());
    connected.reset();
  });
  for (int i = 0; i < 5; ++i) {
    std::vector<std::byte> body(accepted->receive_head(far()).body_size);
    accepted->receive_body(body, far());
    EXPECT_TRUE(body == sent) << i;
  }
  EXPECT_THAT(error_of([&] { accepted->receive_head(far()); }), HasSubstr("gone"));
  sending.get();
}

// Who knows the secret and talks nonsense is dropped, and who belongs here gets in meanwhile.
TEST(Task8_7_Ucx, WhoGreetsWithNonsenseIsDropped) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const auto listener = listen_for_kv("ucx://0", kSecret);
  const HostAddress address = parse_host_address(listener->address().substr(6), "ucx://");
  auto accepted = std::async(std::launch::async, [&] { return listener->accept(far()); });
  const std::string magic = "LDUCX001";
  const auto sized = [&](uint64_t size) {
    std::string text = magic + std::string(16, 't') + std::string(8, '\0');
    std::memcpy(&text[24], &size, sizeof size);
    return text;
  };
  std::string noise(100, '\0');
  for (char& byte : noise) byte = static_cast<char>(random.integer(0, 255));
  ConnectionNote note{};
  std::memcpy(note.data(), "LDUCX1", 6);
  std::vector<HostConnection> silent;
  silent.push_back(connect_to_host(address, kSecret, 10s, {}, note));  // it says nothing, and stays
  for (const std::string& greeting : {noise, sized(0), sized(~uint64_t{0}), sized((16 << 10) + 1), magic}) {
    const HostConnection stranger = connect_to_host(address, kSecret, 10s, {}, note);
    ::send(stranger.socket.number(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
    ::shutdown(stranger.socket.number(), SHUT_WR);
    std::array<char, 1024> bytes;
    while (::recv(stranger.socket.number(), bytes.data(), bytes.size(), 0) > 0) {
    }  // until it is dropped
  }
  // Of tcp://, say.
  const HostConnection another = connect_to_host(address, kSecret, 10s);
  char byte = 0;
  EXPECT_EQ(::recv(another.socket.number(), &byte, 1, 0), 0);
  const auto connected = connect_for_kv(listener->address(), far(), kSecret);
  connected->send(std::vector<std::byte>(7), {}, far());
  const auto channel = accepted.get();
  ASSERT_NE(channel, nullptr);
  EXPECT_EQ(channel->receive_head(far()).head.size(), 7u);
}

// Nobody to wait for: whoever would sleep is told so.
class Impatience final : public UcxPatience {
 public:
  explicit Impatience(int num_sleeps) : left_(num_sleeps) {}
  void on_progress() override {}
  void sleep(int) override {
    if (--left_ < 0) throw KvChannelError("enough");
  }

 private:
  int left_;
};

std::string what_is_read(UcxReader& reader, size_t size) {
  std::string text(size, '?');
  Impatience patience(2000);
  reader.read(std::as_writable_bytes(std::span(text)), patience);
  return text;
}
void write(UcxWriter& writer, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  Impatience patience(2000);
  writer.write(std::span(&bytes, 1), patience);
}
void begin(UcxWriter& writer, UcxReader& reader, const UcxToken& token) {
  writer.begin(reader.address(), token);
  while (!writer.has_begun()) reader.has_begun();
}

TEST(Task8_7_Ucx, PiecesWithoutTheTokenAreNotRead) {
  UcxReader reader(UcxReach::machine);
  UcxWriter stranger(UcxReach::machine), writer(UcxReach::machine);
  UcxToken guess = reader.token();
  guess[15] ^= 1;
  begin(stranger, reader, guess);
  EXPECT_FALSE(reader.has_begun());
  begin(writer, reader, reader.token());
  EXPECT_TRUE(reader.has_begun());
  write(stranger, "a stranger's");
  write(writer, "its own");
  EXPECT_EQ(what_is_read(reader, 7), "its own");
  EXPECT_THAT(error_of([&] { what_is_read(reader, 1); }), HasSubstr("enough")) << "there is no more";
}

TEST(Task8_7_Ucx, APieceThatIsMissingOrComesTwiceIsAnError) {
  UcxReader reader(UcxReach::machine);
  UcxWriter first(UcxReach::machine), second(UcxReach::machine);
  begin(first, reader, reader.token());
  begin(second, reader, reader.token());  // who knows the token, and counts from the beginning
  write(first, "pieces");
  EXPECT_THAT(error_of([&] { what_is_read(reader, 6); }), HasSubstr("not in order"));
}

TEST(Task8_7_Ucx, WhatComesBeyondARequestWaitsForTheNext) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  UcxReader reader(UcxReach::machine);
  UcxWriter writer(UcxReach::machine);
  begin(writer, reader, reader.token());
  std::string all, read;
  for (int i = 0; i < 20; ++i) {
    std::string some(static_cast<size_t>(random.integer(1, 9000)), '\0');
    for (char& byte : some) byte = static_cast<char>(random.integer(0, 255));
    write(writer, some);
    all += some;
    while (read.size() < all.size() && random.integer(0, 2) > 0)
      read += what_is_read(
          reader, std::min<size_t>(all.size() - read.size(), static_cast<size_t>(random.integer(1, 5000))));
  }
  read += what_is_read(reader, all.size() - read.size());
  EXPECT_TRUE(read == all);
}
#endif

}  // namespace
}  // namespace ladder
