#include "step8_advanced/disaggregation/store/kv_store.h"

#include <algorithm>
#include <utility>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

KvTransferParams params_of_all() {
  KvTransferParams params;
  params.do_remote_prefill = true;  // it may load
  params.do_remote_decode = true;   // and it is kept until it is stored
  return params;
}

// Before the folder is opened, which removes what its bound has no room for.
int64_t checked_bound(int64_t max_bytes, const KvLayout& layout, const KvBlockShape& shape) {
  const size_t block =
      shape.body_size + kv_block_head_size(static_cast<size_t>(layout.block_size), shape.num_parts);
  LADDER_CHECK(max_bytes >= static_cast<int64_t>(block),
               "{} bytes for a prefix store whose blocks have {}: expected room for one", max_bytes, block);
  return max_bytes;
}

}  // namespace

KvStoreConnector::KvStoreConnector(const KvStoreConfig& config, const ModelFingerprint& model,
                                   const KvLayout& layout)
    : ranks_(layout),
      shape_(kv_block_shape(layout)),
      space_(kv_store_space(model, layout)),
      folder_(config.folder, checked_bound(config.max_bytes, layout, shape_), space_),
      params_(std::make_shared<const KvTransferParams>(params_of_all())),
      hasher_(config.make_hasher()),
      saver_(config, folder_, ranks_, shape_, space_),
      loader_(config, folder_, ranks_, shape_, space_) {
  saver_.on_released([this] { bell_.ring(); });
  loader_.on_finished([this] { bell_.ring(); });
}

KvStoreConnector::~KvStoreConnector() = default;

void KvStoreConnector::register_kv_caches(RankKvCaches caches) {
  const std::lock_guard lock(ranks_mutex_);
  ranks_.add(std::move(caches));
}

std::shared_ptr<const KvTransferParams> KvStoreConnector::params_of(
    std::shared_ptr<const KvTransferParams> asked) const {
  LADDER_CHECK(asked == nullptr, "a prefix store takes no kv_transfer");
  return params_;
}

void KvStoreConnector::on_queued(const Sequence& sequence) {
  Wanted& wanted = wanted_[sequence.id];
  wanted.prompt = sequence.prompt_token_ids;
  wanted.names.root = hasher_->root(sequence.prefix.salt, sequence.prefix.adapter);
}

void KvStoreConnector::on_unneeded(const Sequence& sequence) {
  wanted_.erase(sequence.id);
}

int64_t KvStoreConnector::num_external_tokens(const Sequence& sequence, int64_t num_local) const {
  const auto found = wanted_.find(sequence.id);
  if (found == wanted_.end()) return 0;
  const int64_t block_size = ranks_.layout.block_size;
  look(found->second, num_local / block_size);
  return std::max<int64_t>(0, found->second.num_found * block_size - num_local);
}

// Asked again, as long as there is no room for the sequence, it answers what it has found: a file that has gone since ends the load
// early.
void KvStoreConnector::look(Wanted& wanted, int64_t num_local) const {
  if (wanted.num_local >= 0 && wanted.num_local <= num_local) return;
  const int64_t block_size = ranks_.layout.block_size;
  const std::vector<int32_t>& tokens = *wanted.prompt;
  const int64_t num_full = (std::ssize(tokens) - 1) / block_size;  // the last token is computed here
  const auto tokens_of = [&](size_t block) {
    return std::span(tokens).subspan(block * static_cast<size_t>(block_size),
                                     static_cast<size_t>(block_size));
  };
  std::vector<BlockHash>& names = wanted.names.names;
  wanted.num_local = wanted.num_found = num_local;
  for (; wanted.num_found < num_full; ++wanted.num_found) {
    while (std::ssize(names) <= wanted.num_found) wanted.names.add(*hasher_, tokens_of(names.size()));
    if (!folder_.has(names[static_cast<size_t>(wanted.num_found)])) return;
  }
}

void KvStoreConnector::start_load(KvLoad load) {
  auto wanted = wanted_.extract(load.id);
  LADDER_CHECK(!wanted.empty(), "sequence {} loads, and was not queued for it", load.id);
  loader_.start_load(std::move(load), std::move(wanted.mapped().names), std::move(wanted.mapped().prompt));
}

void KvStoreConnector::cancel_load(SequenceId id) {
  loader_.cancel_load(id);
}

void KvStoreConnector::on_computed(const Sequence& sequence, int64_t num_computed_tokens) {
  if (num_computed_tokens > 0)
    saver_.computed(sequence, num_computed_tokens);
  else
    saver_.forget(sequence.id);
}

std::optional<KvTransferParams> KvStoreConnector::hold(const Sequence& sequence) {
  if (sequence.finish_reason == FinishReason::error) {  // its keys may be none
    saver_.forget(sequence.id);
    return std::nullopt;
  }
  if (!saver_.end(sequence.id)) return std::nullopt;
  return KvTransferParams();  // there is nothing in it that a reader could be told
}

KvConnectorEvents KvStoreConnector::poll() {
  bell_.silence();
  return {loader_.take_finished(), saver_.take_released()};
}

void KvStoreConnector::wait(std::chrono::milliseconds at_most) {
  bell_.wait(at_most);
}

void KvStoreConnector::on_event(std::function<void()> wake) {
  bell_.on_ring(std::move(wake));
}

void KvStoreConnector::abandon() {
  wanted_.clear();
  loader_.abandon();
  saver_.abandon();
}

KvTransferStats KvStoreConnector::stats() const {
  KvTransferStats stats;
  saver_.add_to(stats);
  loader_.add_to(stats);
  stats.num_store_bytes = folder_.num_bytes();
  return stats;
}

}  // namespace ladder
