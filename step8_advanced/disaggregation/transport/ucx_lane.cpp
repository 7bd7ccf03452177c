#ifdef LADDER_HAS_UCX
#include "step8_advanced/disaggregation/transport/ucx_lane.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "step7_parallel/hosts/host_secret.h"
#include "step8_advanced/disaggregation/transport/kv_channel.h"
#include "step8_advanced/disaggregation/transport/ucx_library.h"

namespace ladder {

namespace {

constexpr unsigned kPieceId = 1;
constexpr int kIdleBeforeSleep = 64;

ucp_context_h make_context(UcxReach reach) {
  const UcxLibrary& ucx = ucx_library();
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx.config_read(nullptr, nullptr, &config);
  LADDER_CHECK(status == UCS_OK, "UCX cannot read its variables: {}", ucx_text(status));
  // Pieces are copied, so that none is looked at after a call that has failed.
  if (std::getenv("UCX_ZCOPY_THRESH") == nullptr) ucx.config_modify(config, "ZCOPY_THRESH", "inf");
  if (reach == UcxReach::machine) {
    if (std::getenv("UCX_TLS") == nullptr) ucx.config_modify(config, "TLS", "sm,self");
    if (std::getenv("UCX_NET_DEVICES") == nullptr) ucx.config_modify(config, "NET_DEVICES", "lo");
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  status = ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  ucx.config_release(config);
  LADDER_CHECK(status == UCS_OK, "UCX finds no transport that it can use: {} (UCX_TLS={})", ucx_text(status),
               std::getenv("UCX_TLS") == nullptr ? "" : std::getenv("UCX_TLS"));
  return context;
}

[[noreturn]] void fail_with(std::string_view what, ucs_status_t status) {
  throw KvChannelError(fmt::format("UCX {}: {}", what, ucx_text(status)));
}

}  // namespace

UcxWorker::UcxWorker(UcxReach reach) : context_(make_context(reach)) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucx_library().worker_create(context_, &params, &worker_);
  if (status == UCS_OK) status = ucx_library().worker_get_efd(worker_, &descriptor_);
  if (status == UCS_OK) return;
  destroy();
  fail("UCX cannot begin: {}", ucx_text(status));
}

UcxWorker::~UcxWorker() {
  destroy();
}

void UcxWorker::destroy() noexcept {
  if (worker_ != nullptr) ucx_library().worker_destroy(worker_);
  ucx_library().cleanup(context_);
}

std::string UcxWorker::address() const {
  ucp_address_t* bytes = nullptr;
  size_t size = 0;
  const ucs_status_t status = ucx_library().worker_get_address(worker_, &bytes, &size);
  LADDER_CHECK(status == UCS_OK, "UCX has no address: {}", ucx_text(status));
  std::string address(reinterpret_cast<const char*>(bytes), size);
  ucx_library().worker_release_address(worker_, bytes);
  return address;
}

bool UcxWorker::progress() {
  if (ucx_library().worker_progress(worker_) == 0) return false;
  num_idle_ = 0;
  return true;
}

void UcxWorker::wait(UcxPatience& patience) {
  if (progress()) return patience.on_progress();
  if (++num_idle_ < kIdleBeforeSleep) return std::this_thread::yield();
  // Not armed: something has come just now, or something has no room to leave, of which UCX gives no sign when there is.
  patience.sleep(ucx_library().worker_arm(worker_) == UCS_OK ? descriptor_ : -1);
}

UcxWriter::UcxWriter(UcxReach reach) : reach_(reach), worker_(std::make_unique<UcxWorker>(reach)) {}

void UcxWriter::begin(std::string address, const UcxToken& token) {
  address_ = std::move(address);
  header_.token = token;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address_.data());
  params.err_mode = reach_ == UcxReach::machine ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = this;
  params.err_handler.cb = [](void* writer, ucp_ep_h, ucs_status_t status) {
    static_cast<UcxWriter*>(writer)->on_failure(status);
  };
  const ucs_status_t status = ucx_library().ep_create(worker_->handle(), &params, &endpoint_);
  if (status != UCS_OK) fail_with("finds no way to the other end (UCX_TLS=tcp,self may)", status);
  first_ = send(nothing_);
}

bool UcxWriter::has_begun() {
  while (worker_->progress()) {
  }
  if (failure_ != UCS_OK) fail_with("cannot reach the other end", failure_);
  if (first_ == nullptr) return true;
  const ucs_status_t status =
      UCS_PTR_IS_ERR(first_) ? UCS_PTR_STATUS(first_) : ucx_library().request_check_status(first_);
  if (status == UCS_INPROGRESS) return false;
  if (status != UCS_OK) fail_with("cannot reach the other end", status);
  ucx_library().request_free(first_);
  first_ = nullptr;
  return true;
}

ucs_status_ptr_t UcxWriter::send(std::span<const std::byte> bytes) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  return ucx_library().am_send(endpoint_, kPieceId, &header_, sizeof header_, bytes.data(), bytes.size(),
                               &params);
}

void UcxWriter::finish(ucs_status_ptr_t request, UcxPatience& patience) {
  if (request == nullptr) return;
  if (UCS_PTR_IS_ERR(request)) fail_with("cannot send", UCS_PTR_STATUS(request));
  ucs_status_t status = UCS_OK;
  while ((status = ucx_library().request_check_status(request)) == UCS_INPROGRESS) worker_->wait(patience);
  ucx_library().request_free(request);
  if (status != UCS_OK) fail_with("cannot send", status);
}

void UcxWriter::write(std::span<const std::span<const std::byte>> pieces, UcxPatience& patience) try {
  const auto send_whole = [&](std::span<const std::byte> piece) {
    ++header_.number;
    finish(send(piece), patience);
  };
  for (std::span<const std::byte> rest : pieces)
    for (size_t size = 0; !rest.empty(); rest = rest.subspan(size)) {
      size = std::min(rest.size(), kPiece);
      send_whole(rest.first(size));
    }
  // Of the last piece some may still lie with UCX, which brings it on its way only while somebody calls it. One more is not
  // taken before that has left. (A flush waits, over TCP, for the reader to read.)
  send_whole({});
} catch (...) {
  worker_.reset();  // some of the caller's memory may still be under way
  throw;
}

UcxReader::UcxReader(UcxReach reach) : worker_(reach) {
  const Nonce drawn = draw_nonce();
  std::copy_n(drawn.begin(), token_.size(), token_.begin());
  ucp_am_handler_param_t params{};
  params.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = kPieceId;
  params.cb = &on_piece;
  params.arg = this;
  const ucs_status_t status = ucx_library().worker_set_am_recv_handler(worker_.handle(), &params);
  LADDER_CHECK(status == UCS_OK, "UCX cannot begin: {}", ucx_text(status));
}

// Of whoever reaches the worker: sizes are looked at before bytes are.
ucs_status_t UcxReader::on_piece(void* reader, const void* header, size_t header_size, void* bytes,
                                 size_t size, const ucp_am_recv_param_t* how) {
  auto& self = *static_cast<UcxReader*>(reader);
  uint64_t number = 0;
  if (header_size != sizeof self.token_ + sizeof number || (how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0)
    return UCS_OK;  // a stranger's, who offers memory of his own to be fetched
  if (::CRYPTO_memcmp(header, self.token_.data(), self.token_.size()) != 0) return UCS_OK;
  std::memcpy(&number, static_cast<const std::byte*>(header) + sizeof self.token_, sizeof number);
  self.is_out_of_order_ |= number != self.num_pieces_++;
  if (!self.is_out_of_order_ && number > 0) self.take({static_cast<const std::byte*>(bytes), size});
  return UCS_OK;
}

void UcxReader::take(std::span<const std::byte> piece) {
  const size_t count = std::min(piece.size(), wanted_.size());
  std::copy_n(piece.begin(), count, wanted_.begin());
  wanted_ = wanted_.subspan(count);
  more_.insert(more_.end(), piece.begin() + static_cast<std::ptrdiff_t>(count), piece.end());
}

bool UcxReader::has_begun() {
  while (worker_.progress()) {
  }
  return num_pieces_ > 0;
}

void UcxReader::read(std::span<std::byte> bytes, UcxPatience& patience) try {
  const size_t count = std::min(bytes.size(), more_.size() - num_read_of_more_);
  std::copy_n(more_.begin() + static_cast<std::ptrdiff_t>(num_read_of_more_), count, bytes.begin());
  num_read_of_more_ += count;
  wanted_ = bytes.subspan(count);
  if (wanted_.empty()) return;
  more_.clear();
  num_read_of_more_ = 0;
  while (!wanted_.empty()) {
    const uint64_t before = num_pieces_;
    worker_.wait(patience);
    if (num_pieces_ != before) patience.on_piece();
    if (is_out_of_order_) throw KvChannelError("what came by UCX is not in order");
  }
} catch (...) {
  wanted_ = {};
  throw;
}

}  // namespace ladder
#endif
