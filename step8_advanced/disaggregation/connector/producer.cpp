#include "step8_advanced/disaggregation/connector/producer.h"

#include <algorithm>
#include <limits>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kFirstWords{5};
constexpr std::chrono::minutes kSilence{10};  // of a channel that a reader keeps for its next request
constexpr milliseconds kPollOfGone{200};

KvDeadline after(steady_clock::duration time) {
  return steady_clock::now() + time;
}

// Nobody else decides how long a thread of this engine may wait.
milliseconds within(int64_t patience_ms, milliseconds most) {
  return milliseconds(std::clamp<int64_t>(patience_ms, 0, most.count()));
}

// Codes are bytes that have nothing in common; other numbers have their exponents.
KvBodyForm shortest_form(const KvLayout& layout) {
  if (layout.kept_as != KvCacheDType::automatic) return KvBodyForm::zstd;
  return dtype_size(layout.dtype) == 2 ? KvBodyForm::zstd_of_2_bytes : KvBodyForm::zstd_of_4_bytes;
}

}  // namespace

KvProducer::KvProducer(const KvTransferConfig& config, KvHandshake mine, const KvRanks& ranks)
    : config_(config),
      mine_(std::move(mine)),
      ranks_(ranks),
      leases_(config.lease, config.start_patience, ranks.layout.block_size),
      listener_(listen_for_kv(config.listen)) {
  sweeper_ = std::thread([this] { leases_.sweep_until_closed(); });
  accepting_ = std::thread([this] { accept_readers(); });
}

KvProducer::~KvProducer() {
  stopping_ = true;
  leases_.close();
  listener_->close();
  accepting_.join();
  sweeper_.join();
}

KvBodyCounts KvProducer::compression() const {
  const std::lock_guard lock(compression_mutex_);
  return compression_;
}

void KvProducer::accept_readers() {
  while (!stopping_) {
    std::unique_ptr<KvChannel> channel;
    try {
      channel = listener_->accept(after(kPollOfGone));
    } catch (const Error&) {  // whoever came has gone again
      continue;
    }
    remove_gone();
    // One too many finds its channel closed.
    if (channel == nullptr || std::ssize(readers_) >= config_.max_channels) continue;
    Reader& reader = readers_.emplace_back();
    reader.channel = std::move(channel);
    reader.thread = std::thread([this, &reader] {
      try {
        serve(*reader.channel);
      } catch (const Error&) {  // it has gone, or is no reader of ours; it knows why
      }
      reader.channel->close();
      reader.gone = true;
    });
  }
  for (Reader& reader : readers_) reader.channel->close();
  for (Reader& reader : readers_) reader.thread.join();
}

void KvProducer::remove_gone() {
  std::erase_if(readers_, [](Reader& reader) {
    if (!reader.gone) return false;
    reader.thread.join();
    return true;
  });
}

void KvProducer::serve(KvChannel& channel) {
  // The reader hears what this engine is even where they do not fit, so that it can name what differs.
  const std::string mine = handshake_bytes(mine_);
  channel.send(std::as_bytes(std::span(mine)), {}, after(kFirstWords));
  const KvMessageHead first = channel.receive_head(after(kFirstWords));
  const std::string_view bytes(reinterpret_cast<const char*>(first.head.data()), first.head.size());
  LADDER_CHECK(first.body_size == 0, "a handshake with a body");
  const KvHandshake theirs = check_peer(mine_, bytes);
  const std::vector<KvRead> reads = kv_reads(ranks_.layout, theirs.layout);
  send_kv_message(channel, KvWelcome{config_.lease.count()}, after(kFirstWords));
  if (config_.compress) channel.send_bodies_as(shortest_form(ranks_.layout));
  KvCopier copier;
  while (!stopping_) {
    const ReceivedKvMessage received = receive_kv_message(channel, after(kSilence));
    LADDER_CHECK(received.body_size == 0, "a question with a body");
    if (const auto* request = std::get_if<KvReadRequest>(&received.message)) {
      answer(channel, copier, reads, *request);
    } else if (const auto* done = std::get_if<KvDone>(&received.message)) {
      send_kv_message(channel, KvConfirmed{leases_.done(done->remote_request_id, done->lease)},
                      after(kFirstWords));
    } else if (const auto* heartbeat = std::get_if<KvHeartbeat>(&received.message)) {
      for (const std::string& id : heartbeat->remote_request_ids) leases_.extend(id);
    } else {
      fail("a message that no reader sends");
    }
  }
}

void KvProducer::answer(KvChannel& channel, KvCopier& copier, std::span<const KvRead> reads,
                        const KvReadRequest& request) {
  LADDER_CHECK(request.first_token >= 0 && request.num_tokens >= 1 &&
                   request.first_token <= std::numeric_limits<int32_t>::max() &&
                   request.num_tokens <= std::numeric_limits<int32_t>::max(),
               "tokens {} to {} of a request", request.first_token, request.num_tokens);
  const KvReadEnd end = send_parts(ranks_, reads, request, leases_, copier, channel,
                                   after(within(request.patience_ms, config_.load_timeout)),
                                   after(config_.load_timeout), num_sent_bytes_);
  {
    const std::lock_guard lock(compression_mutex_);
    compression_ += channel.take_sent_counts();
  }
  send_kv_message(channel, end, after(kFirstWords));
}

}  // namespace ladder
