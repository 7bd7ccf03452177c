// Input: what comes over a connection from who has proved the secret. Whatever it is, the answer is messages and then a
// KvChannelError, and no more memory is taken than a head may have.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "step8_advanced/disaggregation/transport/kv_frame.h"
#include "step8_advanced/disaggregation/transport/stream_channel.h"

namespace {

class GivenBytes final : public ladder::ByteStream {
 public:
  explicit GivenBytes(std::string_view bytes) : bytes_(bytes) {}
  void write(Pieces, ladder::KvDeadline) override {}
  void read(std::span<std::byte> to, ladder::KvDeadline) override {
    if (bytes_.size() < to.size()) throw ladder::KvChannelError("the end");
    if (!to.empty()) std::memcpy(to.data(), bytes_.data(), to.size());
    bytes_.remove_prefix(to.size());
  }
  void close() noexcept override {}

 private:
  std::string_view bytes_;
};

// What could be read is what would be written.
void read_frame(std::string_view bytes) {
  if (bytes.size() < ladder::kKvFrameBytes) return;
  std::array<std::byte, ladder::kKvFrameBytes> frame;
  std::memcpy(frame.data(), bytes.data(), frame.size());
  if (ladder::write_kv_frame(ladder::read_kv_frame(frame)) != frame) std::abort();
}

void read_messages(std::string_view bytes) {
  ladder::StreamChannel channel(std::make_unique<GivenBytes>(bytes));
  for (;;) {
    const ladder::KvMessageHead head = channel.receive_head({});
    if (head.head.size() > bytes.size() || head.body_size > ladder::kMaxKvMessageBody) std::abort();
    if (head.body_size > std::max<size_t>(bytes.size(), 1 << 20)) return;  // its reader has not so much
    std::vector<std::byte> body(head.body_size);
    channel.receive_body(body, {});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const auto work : {&read_frame, &read_messages}) try {
      work(bytes);
    } catch (const ladder::KvChannelError&) {
    }
  return 0;
}
