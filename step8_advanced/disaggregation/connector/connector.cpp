#include "step8_advanced/disaggregation/connector/connector.h"

#include <algorithm>
#include <random>
#include <utility>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/connector/messages.h"

namespace ladder {

namespace {

// 128 random bits: nobody guesses another's.
std::string random_name() {
  std::random_device device;
  const auto draw = [&device] { return static_cast<uint64_t>(device()) << 32 | device(); };
  const uint64_t high = draw(), low = draw();
  return fmt::format("{:016x}{:016x}", high, low);
}

}  // namespace

KvTransferConnector::KvTransferConnector(const KvTransferConfig& config, const ModelFingerprint& model,
                                         const KvLayout& layout)
    : config_(config), engine_id_(random_name()), ranks_(layout) {
  if (config.produces()) {
    producer_ =
        std::make_unique<KvProducer>(config, KvHandshake{model, layout, engine_id_, KvRole::gives}, ranks_);
    producer_->leases().on_release([this] { bell_.ring(); });
  }
  if (config.consumes()) {
    consumer_ =
        std::make_unique<KvConsumer>(config, KvHandshake{model, layout, engine_id_, KvRole::wants}, ranks_);
    consumer_->on_finished([this] { bell_.ring(); });
  }
}

KvTransferConnector::~KvTransferConnector() = default;

std::string KvTransferConnector::address() const {
  return producer_ != nullptr ? producer_->address() : std::string();
}

KvBodyCounts KvTransferConnector::compression() const {
  return producer_ != nullptr ? producer_->compression() : KvBodyCounts();
}

void KvTransferConnector::on_failed_load(std::function<void(const std::string&)> say) {
  if (consumer_ != nullptr) consumer_->on_failed_load(std::move(say));
}

KvTransferStats KvTransferConnector::stats() const {
  KvTransferStats stats;
  if (consumer_ != nullptr) consumer_->add_to(stats);
  if (producer_ != nullptr) {
    stats.num_sent_bytes = producer_->num_sent_bytes();
    stats.num_lapsed = producer_->leases().num_lapsed();
    const KvBodyCounts compression = producer_->compression();
    stats.num_uncompressed_bytes = compression.num_bytes;
    stats.num_compressed_bytes = compression.num_packed_bytes;
    stats.compress_seconds = compression.pack_seconds;
  }
  return stats;
}

void KvTransferConnector::register_kv_caches(RankKvCaches caches) {
  const std::lock_guard lock(ranks_mutex_);
  ranks_.add(std::move(caches));
}

void KvTransferConnector::on_queued(const Sequence& sequence) {
  if (consumer_ == nullptr || sequence.kv_transfer->remote_request_id.size() > kMaxKvRequestId) return;
  prompts_[sequence.id] = sequence.prompt_token_ids;
  consumer_->want(*sequence.kv_transfer);
}

void KvTransferConnector::on_unneeded(const Sequence& sequence) {
  if (prompts_.erase(sequence.id) > 0) consumer_->give_up(*sequence.kv_transfer);
}

void KvTransferConnector::begin_step(const SchedulerOutput& step) {
  producer_->leases().begin_step(step);
}

void KvTransferConnector::save_kv_layer(int rank, int64_t layer, int64_t /*launch*/,
                                        std::span<const int64_t> slots) {
  producer_->leases().save_layer(rank, layer, slots);
}

bool KvTransferConnector::may_start(const Sequence& sequence) const {
  if (producer_ == nullptr) return true;
  // A reader can wait for it only where the request has chosen the id.
  const std::string& id = sequence.kv_transfer->remote_request_id;
  if (!id.empty() && id.size() <= kMaxKvRequestId) producer_->leases().expect(sequence, id);
  if (config_.max_held_bytes == 0) return true;
  const int64_t block_size = ranks_.layout.block_size;
  const int64_t kept = producer_->leases().num_kept_blocks();
  const int64_t wanted = (sequence.num_prompt_tokens + block_size - 1) / block_size;
  // One that is too large for the bound comes when nothing else is kept.
  return kept == 0 || (kept + wanted) * bytes_per_block() <= config_.max_held_bytes;
}

int64_t KvTransferConnector::num_external_tokens(const Sequence& sequence, int64_t num_local) const {
  if (!prompts_.contains(sequence.id)) return 0;
  int64_t there = sequence.num_prompt_tokens - 1;
  const int64_t computed = sequence.kv_transfer->remote_num_tokens;
  if (computed > 0) there = std::min(there, computed);
  const int64_t count = there - num_local;
  return count < std::max<int64_t>(1, config_.recompute_threshold) ? 0 : count;
}

void KvTransferConnector::start_load(KvLoad load) {
  auto prompt = prompts_.extract(load.id);
  LADDER_CHECK(!prompt.empty(), "sequence {} loads, and was not queued for it", load.id);
  consumer_->start_load(std::move(load), std::move(prompt.mapped()));
}

void KvTransferConnector::cancel_load(SequenceId id) {
  if (consumer_ != nullptr) consumer_->cancel_load(id);
}

void KvTransferConnector::on_computed(const Sequence& sequence, int64_t num_computed_tokens) {
  if (producer_ == nullptr) return;
  const std::string& chosen = sequence.kv_transfer->remote_request_id;
  if (chosen.size() > kMaxKvRequestId) return;
  if (chosen.empty() && !drawn_ids_.contains(sequence.id)) drawn_ids_[sequence.id] = random_name();
  producer_->leases().computed(sequence, chosen.empty() ? drawn_ids_[sequence.id] : chosen,
                               num_computed_tokens);
}

std::optional<KvTransferParams> KvTransferConnector::hold(const Sequence& sequence) {
  if (producer_ == nullptr) return std::nullopt;
  drawn_ids_.erase(sequence.id);
  if (sequence.finish_reason != FinishReason::length && sequence.finish_reason != FinishReason::stop) {
    producer_->leases().retract(sequence.id);
    return std::nullopt;
  }
  const std::optional<KvLeases::Held> held = producer_->leases().end(sequence.id);
  if (!held) return std::nullopt;
  KvTransferParams params;
  params.do_remote_prefill = true;  // what the other engine is to be told
  params.remote_engine_id = engine_id_;
  params.remote_request_id = held->remote_request_id;
  params.remote_address = producer_->address();
  params.remote_num_tokens = held->num_tokens;
  return params;
}

KvConnectorEvents KvTransferConnector::poll() {
  bell_.silence();
  KvConnectorEvents events;
  if (consumer_ != nullptr) events.loads = consumer_->take_finished();
  if (producer_ != nullptr) events.released = producer_->leases().take_released();
  return events;
}

void KvTransferConnector::wait(std::chrono::milliseconds at_most) {
  bell_.wait(at_most);
}

void KvTransferConnector::on_event(std::function<void()> wake) {
  bell_.on_ring(std::move(wake));
}

void KvTransferConnector::abandon() {
  prompts_.clear();
  drawn_ids_.clear();
  if (consumer_ != nullptr) consumer_->abandon();
  if (producer_ != nullptr) producer_->leases().retract_all();
}

int64_t KvTransferConnector::bytes_per_block() const {
  int64_t bytes = 0;
  for (const RankKvCaches& rank : ranks_.ranks)
    for (const KvCacheView& cache : rank.caches) bytes += cache.nbytes() / cache.num_blocks();
  return bytes;
}

}  // namespace ladder
