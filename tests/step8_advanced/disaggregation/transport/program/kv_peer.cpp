// The other end of a channel in a process of its own: a fork would not do, since the driver of a GPU does not survive it.
//
//   kv_peer take ADDRESS GPU          takes body after body to this GPU, and answers each with an empty message; 3: one is wrong
//   kv_peer give ADDRESS GPU BYTES    sends body after body from it
//   kv_peer parts ADDRESS GPU TOKENS  takes over a prompt of so many tokens of Llama-3.1-8B, again and again
//   kv_peer busy ADDRESS GPU          says when it has begun to keep this GPU busy
//
// Until the channel ends, or the process is ended. GPU: its number; -1: the host.
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "tests/step8_advanced/disaggregation/connector/busy_gpu.h"
#include "tests/step8_advanced/disaggregation/connector/played_handover.h"
#include "tests/step8_advanced/disaggregation/transport/bodies.h"

namespace ladder {
namespace {

KvDeadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(120);
}

int run(const std::string& what, const std::string& address, Device device, int64_t number) {
  const std::unique_ptr<KvChannel> channel = connect_for_kv(address, soon());
  if (what == "parts") {
    testing::HandoverEnd end(testing::llama_8b_layout(), number, device);
    for (;;) end.take(*channel, soon());
  }
  if (what == "busy") {
    std::atomic<bool> begun = false, ends = false;
    std::thread busy([&] {
      testing::keep_busy(device, [&] {
        begun = true;
        return ends.load();
      });
    });
    while (!begun) std::this_thread::yield();
    try {
      channel->send({}, {}, soon());
      channel->receive_head(soon());
    } catch (const KvChannelError&) {
    }
    ends = true;
    busy.join();
    return 0;
  }
  KvCopier copier;
  for (uint64_t seed = 1;; ++seed) {
    if (what == "give") {
      testing::send_random_body(*channel, static_cast<size_t>(number), device, seed, soon());
    } else {
      if (!testing::take_random_body(*channel, device, copier, soon())) return 3;
      channel->send({}, {}, soon());
    }
  }
}

}  // namespace
}  // namespace ladder

int main(int count, char** words) try {
  if (count < 4) return 2;
  const int gpu = std::stoi(words[3]);
  const ladder::Device device{gpu < 0 ? ladder::DeviceType::cpu : ladder::DeviceType::cuda, std::max(gpu, 0)};
  const bool has_number = std::string(words[1]) == "give" || std::string(words[1]) == "parts";
  return ladder::run(words[1], words[2], device, has_number && count > 4 ? std::stoll(words[4]) : 0);
} catch (const ladder::KvChannelError&) {
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "kv_peer: %s\n", error.what());
  return 1;
}
