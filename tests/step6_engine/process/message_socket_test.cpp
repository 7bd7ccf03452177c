#include "step6_engine/process/message_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <csignal>
#include <thread>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step6_engine/process/wire.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;

std::pair<FileDescriptor, FileDescriptor> socket_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw Error("socketpair");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::string frame(uint32_t size, uint32_t type, const std::string& bytes) {
  std::string result;
  WireWriter{result}(size, type);
  return result + bytes;
}

void send_raw(const FileDescriptor& socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Task6_9_MessageSocket, MessagesComeWholeAndInOrder) {
  auto [one, other] = socket_pair();
  MessageSocket writer(std::move(one)), reader(std::move(other));
  std::vector<std::string> sent = {"", "a", std::string(70'000, 'b'), std::string(5'000'000, 'c'), "end"};
  std::thread thread([&] {
    for (size_t i = 0; i < sent.size(); ++i) writer.write(static_cast<uint32_t>(i), sent[i]);
    writer.shut_down();
  });
  for (size_t i = 0; i < sent.size(); ++i) {
    const auto message = reader.read();
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->type, i);
    EXPECT_EQ(message->bytes, sent[i]);
  }
  EXPECT_FALSE(reader.read().has_value()) << "the end between two messages is no error";
  thread.join();
}

// Byte by byte, with a signal in between that interrupts the calls.
TEST(Task6_9_MessageSocket, PartialReadsAndInterruptedCallsAreTakenUpAgain) {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};  // no SA_RESTART: calls return EINTR
  sigaction(SIGUSR1, &action, &before);
  auto [raw, end] = socket_pair();
  MessageSocket reader(std::move(end));
  const pthread_t reading = pthread_self();
  std::thread thread([&, socket = std::move(raw)] {
    for (const char byte : frame(5, 7, "hello")) {
      send_raw(socket, {&byte, 1});
      std::this_thread::sleep_for(1ms);
      pthread_kill(reading, SIGUSR1);
    }
  });
  const auto message = reader.read();
  thread.join();
  sigaction(SIGUSR1, &before, nullptr);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->type, 7u);
  EXPECT_EQ(message->bytes, "hello");
}

TEST(Task6_9_MessageSocket, AMessageCutAtAnyByteIsAnErrorAndAnEndBetweenTwoIsNone) {
  const std::string whole = frame(5, 7, "hello");
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    auto [raw, end] = socket_pair();
    MessageSocket reader(std::move(end));
    send_raw(raw, std::string_view(whole).substr(0, cut));
    raw.close();
    if (cut == 0) {
      EXPECT_FALSE(reader.read().has_value());
    } else if (cut == whole.size()) {
      EXPECT_EQ(reader.read()->bytes, "hello");
      EXPECT_FALSE(reader.read().has_value());
    } else {
      EXPECT_THROW(reader.read(), Error) << cut;
    }
  }
}

TEST(Task6_9_MessageSocket, ALengthAloneTakesNoMemory) {
  auto [raw, end] = socket_pair();
  MessageSocket reader(std::move(end));
  send_raw(raw, frame(0xffffffff, 1, ""));
  EXPECT_EQ(error_of([&] { reader.read(); }),
            "a message of 4294967295 bytes: at most 1073741824 are expected");

  auto [small, small_end] = socket_pair();
  MessageSocket limited(std::move(small_end), 10), sender(std::move(small), 10);
  EXPECT_THROW(sender.write(1, std::string(11, 'x')), Error);
  sender.write(1, std::string(10, 'x'));
  EXPECT_EQ(limited.read()->bytes.size(), 10u) << "the refusal has sent nothing";
}

TEST(Task6_9_MessageSocket, AWriterIsNotHeldUpForEver) {
  auto [one, other] = socket_pair();
  MessageSocket writer(std::move(one)), stopped(std::move(other));
  const std::string large(4 << 20, 'x');
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(error_of([&] { writer.write(1, large, 100ms); }),
            "the connection: the other side takes no messages");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  EXPECT_EQ(error_of([&] { writer.write(1, "x", 100ms); }), "the connection has ended")
      << "half a message is out: nothing may follow it";
  writer.shut_down();  // as write() has, if it is right: the reader must not wait for a wrong one
  EXPECT_THROW(stopped.read(), Error) << "and the reader does not take the half for a whole";
}

TEST(Task6_9_MessageSocket, ShutDownWakesWhoReadsAndWhoWrites) {
  auto [one, other] = socket_pair();
  MessageSocket socket(std::move(one)), peer(std::move(other));
  std::thread reads([&] { EXPECT_FALSE(socket.read().has_value()); });
  std::thread writes([&] { EXPECT_THROW(socket.write(1, std::string(4 << 20, 'x')), Error); });
  std::this_thread::sleep_for(20ms);
  socket.shut_down();
  reads.join();
  writes.join();
}

TEST(Task6_9_MessageSocket, ManyWritersMixNoMessages) {
  auto [one, other] = socket_pair();
  MessageSocket writer(std::move(one)), reader(std::move(other));
  std::vector<std::thread> threads;
  for (char letter = 'a'; letter < 'e'; ++letter)
    threads.emplace_back([&writer, letter] {
      for (size_t i = 0; i < 100; ++i) writer.write(1, std::string(i * 97, letter));
    });
  for (int i = 0; i < 400; ++i) {
    const std::string bytes = reader.read()->bytes;
    EXPECT_EQ(bytes, std::string(bytes.size(), bytes.empty() ? 'x' : bytes[0]));
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Task6_9_MessageSocket, TheFirstMessageSaysWhoIsThere) {
  {
    auto [one, other] = socket_pair();
    MessageSocket left(std::move(one)), right(std::move(other));
    std::thread thread([&] { left.exchange_hello(10s); });
    right.exchange_hello(10s);
    thread.join();
  }
  const auto answer_to = [](const std::string& bytes, std::chrono::milliseconds timeout = 10s) {
    auto [raw, end] = socket_pair();
    MessageSocket reader(std::move(end));
    send_raw(raw, bytes);
    return error_of([&] { reader.exchange_hello(timeout); });
  };
  EXPECT_EQ(answer_to(frame(4, 0x4c444452, std::string("\x63\0\0\0", 4))),
            "the other side is another version of Ladder: its messages are version 99, expected 4");
  EXPECT_EQ(answer_to("GET / HTTP/1.1\r\n\r\n").substr(0, 9), "a message");
  EXPECT_EQ(answer_to(frame(0, 1, "")), "the other side is not Ladder");
  EXPECT_EQ(answer_to("", 50ms), "the connection: nothing came in time");
}

// Whatever comes: a message or an Error.
TEST(Task6_9_MessageSocket, RandomBytes) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 300; ++round) {
    auto [raw, end] = socket_pair();
    MessageSocket reader(std::move(end), 1 << 16);
    std::string bytes;
    for (int64_t i = random.integer(0, 200); i > 0; --i)
      bytes += static_cast<char>(random.integer(0, 3) == 0 ? random.integer(0, 255) : 0);
    send_raw(raw, bytes);
    raw.close();
    try {
      while (reader.read()) {
      }
    } catch (const Error&) {
    }
  }
}

struct Everything {
  bool flag = false;
  int64_t number = 0;
  double real = 0;
  std::string text;
  std::vector<int32_t> ids;
  std::vector<std::string> words;
  std::map<int32_t, double> bias;
  std::optional<uint64_t> seed;
  std::variant<std::monostate, int32_t, std::string> either;
  bool operator==(const Everything&) const = default;
};

template <class Wire, class T>
requires WireForm<T, Everything>
void wire_fields(Wire& wire, T& value) {
  auto& [flag, number, real, text, ids, words, bias, seed, either] = value;
  wire(flag, number, real, text, ids, words, bias, seed, either);
}

TEST(Wire, EveryTypeSurvivesAndEveryCutIsAnError) {
  std::vector<Everything> values(3);
  values[1] = {true, -5, 0.1, std::string("a\0b", 3), {1, 2, 3}, {"", "x"}, {{1, 0.5}, {-7, 2}}, 9, 4};
  values[2].either = "why";
  std::string bytes;
  WireWriter{bytes}(values);
  WireReader reader(bytes);
  EXPECT_EQ(reader.value<std::vector<Everything>>(), values);
  EXPECT_TRUE(reader.at_end());
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    WireReader less(std::string_view(bytes).substr(0, cut));
    EXPECT_THROW(less.value<std::vector<Everything>>(), Error) << cut;
  }
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 3000; ++round) {
    std::string broken = bytes;
    for (int i = 0; i < 3; ++i)
      broken[static_cast<size_t>(random.integer(0, std::ssize(broken) - 1))] =
          static_cast<char>(random.integer(0, 255));
    WireReader at_random(broken);
    try {
      at_random.value<std::vector<Everything>>();
    } catch (const Error&) {
    }
  }
}

TEST(Wire, ALengthThatCannotBeTakesNoMemory) {
  std::string bytes;
  WireWriter{bytes}(uint32_t{0x7fffffff}, uint8_t{1});
  EXPECT_THROW(WireReader(bytes).value<std::vector<Everything>>(), Error);
  EXPECT_THROW(WireReader(bytes).value<std::vector<int64_t>>(), Error);
  EXPECT_THROW(WireReader(bytes).value<std::string>(), Error);
  EXPECT_THROW((WireReader(bytes).value<std::map<int32_t, double>>()), Error);
}

}  // namespace
}  // namespace ladder
