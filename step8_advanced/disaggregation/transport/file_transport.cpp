// file://FOLDER: for machines that share a file system and nothing else. Each message is a file, written beside and renamed, so
// that it is there whole or not at all; whoever waits for one looks again and again, with pauses that grow.
//
//   FOLDER/listener                locked by who listens
//   FOLDER/door                    locked while a channel's folder is being made or looked for
//   FOLDER/channel-8f0a.../        made by who connects
//       connector, listener        each locked by its end as long as it lives; the second one is the answer
//       connector-0, listener-0, listener-1, ...     messages by who sent them: a frame (kv_frame.h), head, body
//
// A message's file goes when it was read. The end that finds the other's lock free when it closes removes the folder; where both
// were killed, the next who listens does.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <random>

#include "step8_advanced/disaggregation/transport/folder_lock.h"
#include "step8_advanced/disaggregation/transport/kv_compression.h"
#include "step8_advanced/disaggregation/transport/kv_deadline.h"
#include "step8_advanced/disaggregation/transport/transport_rows.h"

namespace ladder {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kMostUnread = 4;  // messages of one way that lie in the folder: more wait
constexpr std::chrono::microseconds kFirstPause{100}, kLongestPause{20'000};

// Looks for something until it is there, the time is over, or another thread says that nobody waits any more.
class Lookout {
 public:
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    closed_.notify_all();
  }
  bool is_closed() const {
    const std::lock_guard lock(mutex_);
    return is_closed_;
  }
  // Whether there() became true. It is asked at least once.
  template <class There>
  bool wait(There there, KvDeadline deadline) {
    for (auto pause = kFirstPause; !is_closed(); pause = std::min(2 * pause, kLongestPause)) {
      if (there()) return true;
      if (is_over(deadline)) return false;
      std::unique_lock lock(mutex_);
      closed_.wait_until(lock, std::min<KvDeadline>(deadline, Clock::now() + pause),
                         [&] { return is_closed_; });
    }
    return false;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable closed_;
  bool is_closed_ = false;
};

bool is_there(const fs::path& file) {
  std::error_code error;
  return fs::exists(file, error);
}
void remove_whole(const fs::path& file) {
  std::error_code error;  // it is gone already, or whoever looks next removes it
  fs::remove_all(file, error);
}

[[noreturn]] void fail_at(const fs::path& file, int error) {
  throw KvChannelError(fmt::format("file://{}: {}", file.string(), std::strerror(error)));
}

void write_whole(int file, std::span<const std::byte> bytes, const fs::path& name) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) fail_at(name, errno);
    if (count > 0) bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void read_whole(int file, std::span<std::byte> bytes, const fs::path& name) {
  while (!bytes.empty()) {
    const ssize_t count = ::read(file, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) fail_at(name, errno);
    if (count == 0)
      throw KvChannelError(
          fmt::format("file://{}: it ends {} bytes before its message", name.string(), bytes.size()));
    if (count > 0) bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

constexpr const char* kListener = "listener";
constexpr const char* kConnector = "connector";
constexpr const char* kDoor = "door";

class FolderChannel final : public KvChannel {
  // A message that went wrong has no next one.
  template <class Work>
  auto closing_on_error(Work work) {
    if (lookout_.is_closed()) throw KvChannelError("the channel has failed or was closed");
    try {
      return work();
    } catch (const KvChannelError&) {
      close();
      throw;
    }
  }

 public:
  // `lock`: of the file `mine` in the folder.
  FolderChannel(fs::path folder, FileDescriptor lock, std::string mine, std::string theirs)
      : folder_(std::move(folder)),
        lock_(std::move(lock)),
        mine_(std::move(mine)),
        theirs_(std::move(theirs)) {}

  ~FolderChannel() override {
    lock_.close();
    if (!is_locked(folder_ / theirs_)) remove_whole(folder_);
  }

  void send(std::span<const std::byte> head, std::span<const std::byte> body, KvDeadline deadline) override {
    const KvPackedBody packed = packer_.pack(body, sent_form_, sent_counts_);
    const auto frame = write_kv_frame({head.size(), body.size(), packed.form, packed.packed_size()});
    closing_on_error([&] {
      if (num_sent_ >= kMostUnread)
        wait([&] { return !is_there(message(mine_, num_sent_ - kMostUnread)); }, deadline, "takes no more");
      const fs::path name = message(mine_, num_sent_), begun = name.string() + ".begun";
      const FileDescriptor file(
          ::open(begun.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
      if (!file) fail_at(begun, errno);
      for (const std::span<const std::byte> bytes : {std::span<const std::byte>(frame), head, packed.bytes})
        write_whole(file.number(), bytes, begun);
      if (::rename(begun.c_str(), name.c_str()) != 0) fail_at(name, errno);
      ++num_sent_;
    });
  }

  KvMessageHead receive_head(KvDeadline deadline) override {
    LADDER_CHECK(received_.body_size == 0, "a message's body of {} bytes has not been received yet",
                 received_.body_size);
    return closing_on_error([&] {
      const fs::path name = message(theirs_, num_received_);
      wait([&] { return is_there(name); }, deadline, "sends nothing");
      body_ = FileDescriptor(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      struct stat status {};
      if (!body_ || ::fstat(body_.number(), &status) != 0) fail_at(name, errno);
      std::array<std::byte, kKvFrameBytes> bytes;
      read_whole(body_.number(), bytes, name);
      const KvFrame frame = read_kv_frame(bytes);
      if (static_cast<size_t>(status.st_size) !=
          kKvFrameBytes + frame.head_size + frame.body_size_on_the_way())
        throw KvChannelError(
            fmt::format("file://{}: {} bytes are not those of its message", name.string(), status.st_size));
      KvMessageHead head{std::vector<std::byte>(frame.head_size), frame.body_size};
      read_whole(body_.number(), head.head, name);
      received_ = frame;
      if (frame.body_size == 0) remove_whole(message(theirs_, num_received_++));
      return head;
    });
  }

  void receive_body(std::span<std::byte> body, KvDeadline /*deadline*/) override {
    LADDER_CHECK(body.size() == received_.body_size, "a message's body of {} bytes is read as one of {}",
                 received_.body_size, body.size());
    if (body.empty()) return;
    closing_on_error([&] {
      unpacker_.receive(received_, body, [&](std::span<std::byte> bytes) {
        read_whole(body_.number(), bytes, message(theirs_, num_received_));
      });
    });
    received_ = {};
    body_.close();
    remove_whole(message(theirs_, num_received_++));
  }

  void close() noexcept override { lookout_.close(); }

 private:
  fs::path message(const std::string& from, uint64_t number) const {
    return folder_ / fmt::format("{}-{}", from, number);
  }

  template <class There>
  void wait(There there, KvDeadline deadline, std::string_view what) {
    bool is_gone = false;
    const bool found = lookout_.wait(
        [&] {
          is_gone = !is_locked(folder_ / theirs_);  // first: what it has written before is there
          return there() || is_gone;
        },
        deadline);
    if (found && !is_gone) return;
    if (found && there()) return;
    throw KvChannelError(fmt::format(
        "file://{}: the other end {}", folder_.string(),
        is_gone ? "is gone" : fmt::format("{} and the time is over, or this end was closed", what)));
  }

  const fs::path folder_;
  FileDescriptor lock_;
  const std::string mine_, theirs_;
  Lookout lookout_;
  uint64_t num_sent_ = 0, num_received_ = 0;
  FileDescriptor body_;  // the file whose body was not read yet
  KvFrame received_;     // its message's; without a body once that was read
  KvBodyPacker packer_;
  KvBodyUnpacker unpacker_;
};

class FolderListener final : public KvListener {
 public:
  explicit FolderListener(const fs::path& folder) : folder_(fs::absolute(folder)) {
    std::error_code error;
    fs::create_directories(folder_, error);
    LADDER_CHECK(!error, "{}: the folder cannot be made: {}", address(), error.message());
    // More than once: whoever looks whether it is locked has it for a moment.
    int why = 0;
    const auto is_free = [&] {
      lock_ = try_to_lock(folder_ / kListener);
      why = errno;
      return static_cast<bool>(lock_) || why != EWOULDBLOCK;
    };
    lookout_.wait(is_free, Clock::now() + std::chrono::milliseconds(300));
    LADDER_CHECK(lock_, "{}: {}", address(),
                 why == EWOULDBLOCK ? "another process listens in this folder" : std::strerror(why));
    FileDescriptor door;
    const auto is_mine = [&] { return static_cast<bool>(door = try_to_lock(folder_ / kDoor)); };
    LADDER_CHECK(lookout_.wait(is_mine, Clock::now() + std::chrono::seconds(5)),
                 "{}: another process holds the folder's door", address());
    for (const fs::path& channel : channels())
      if (!is_locked(channel / kConnector) && !is_locked(channel / kListener)) remove_whole(channel);
  }

  std::string address() const override { return "file://" + folder_.string(); }

  std::unique_ptr<KvChannel> accept(KvDeadline deadline) override {
    std::unique_ptr<KvChannel> channel;
    lookout_.wait(
        [&] {
          channel = look();
          return channel != nullptr;
        },
        deadline);
    return channel;
  }

  void close() noexcept override { lookout_.close(); }

 private:
  std::vector<fs::path> channels() const {
    std::vector<fs::path> found;
    std::error_code error;
    for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error))
      if (at->path().filename().string().starts_with("channel-")) found.push_back(at->path());
    return found;
  }

  std::unique_ptr<KvChannel> look() const {
    const FileDescriptor door = try_to_lock(folder_ / kDoor);
    if (!door) return nullptr;
    for (const fs::path& channel : channels()) {
      if (is_there(channel / kListener)) continue;  // has been accepted
      if (!is_locked(channel / kConnector)) {       // who made it is dead: nobody else makes one now
        remove_whole(channel);
        continue;
      }
      const fs::path begun = channel / "listener.begun";
      FileDescriptor lock = try_to_lock(begun);
      if (lock && ::rename(begun.c_str(), (channel / kListener).c_str()) == 0)
        return std::make_unique<FolderChannel>(channel, std::move(lock), kListener, kConnector);
    }
    return nullptr;
  }

  const fs::path folder_;
  FileDescriptor lock_;
  Lookout lookout_;
};

std::string random_name() {
  std::random_device random;
  return fmt::format("channel-{:08x}{:08x}", random(), random());
}

}  // namespace

std::unique_ptr<KvListener> listen_in_folder(std::string_view place, const HostSecret& /*secret*/) {
  LADDER_CHECK(!place.empty(), "file://: expected a folder");
  return std::make_unique<FolderListener>(fs::path(place));
}

std::unique_ptr<KvChannel> connect_in_folder(std::string_view place, KvDeadline deadline,
                                             const HostSecret& /*secret*/, KvListening listening) {
  LADDER_CHECK(!place.empty(), "file://: expected a folder");
  const fs::path folder = fs::absolute(place), channel = folder / random_name();
  Lookout lookout;
  const auto somebody_listens = [&] { return is_locked(folder / kListener); };
  LADDER_CHECK(
      listening == KvListening::has_begun ? somebody_listens() : lookout.wait(somebody_listens, deadline),
      "file://{}: nobody listens in this folder", folder.string());
  FileDescriptor lock;
  {
    FileDescriptor door;
    const auto is_mine = [&] { return static_cast<bool>(door = try_to_lock(folder / kDoor)); };
    LADDER_CHECK(lookout.wait(is_mine, deadline), "file://{}: another process holds the folder's door",
                 folder.string());
    const bool made = ::mkdir(channel.c_str(), 0700) == 0;
    if (made) lock = try_to_lock(channel / kConnector);
    LADDER_CHECK(lock, "file://{}: {}", channel.string(), std::strerror(errno));
  }
  // As its end: where nobody answers, it removes the folder.
  auto mine = std::make_unique<FolderChannel>(channel, std::move(lock), kConnector, kListener);
  LADDER_CHECK(lookout.wait([&] { return is_locked(channel / kListener); }, deadline),
               "file://{}: who listens there has not answered in time", folder.string());
  return mine;
}

}  // namespace ladder
