#include "cli/bench/serve_stream.h"

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <cstring>

namespace ladder {

namespace http = boost::beast::http;
namespace asio = boost::asio;

namespace {

constexpr size_t kBufferBytes = 16 * 1024;  // a head must fit; what is larger of a body comes in pieces
constexpr size_t kShownBytes = 400;         // of an answer that says what is wrong

}  // namespace

LoadStream::LoadStream(asio::io_context& context, LoadState& load)
    : load_(load), socket_(context), timer_(context), buffer_(kBufferBytes) {}

void LoadStream::start() {
  take_request();
}

void LoadStream::take_request() {
  index_ = load_.next.fetch_add(1);
  if (index_ >= static_cast<int64_t>(load_.requests.size())) {
    Failure ignored;
    socket_.close(ignored);
    return;
  }
  ++generation_;
  ServeRecord& record = this->record();
  record.free = free_;
  record.gaps.reserve(static_cast<size_t>(std::max<int64_t>(request().max_tokens, 1)));
  if (!load_.options.arrivals.empty()) record.scheduled = load_.options.arrivals[static_cast<size_t>(index_)];
  if (record.scheduled <= load_.now()) return send();
  timer_.expires_at(load_.begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                      std::chrono::duration<double>(record.scheduled)));
  timer_.async_wait([this](const Failure& failure) {
    if (!failure) send();
  });
}

void LoadStream::send() {
  record().sent = load_.now();
  arm(load_.options.timeout);
  response_.emplace(&body_to_);
  events_.reset();
  other_body_.clear();
  filled_ = 0;
  done_seen_ = usage_seen_ = stream_error_ = false;
  reused_ = socket_.is_open();
  if (reused_) {
    write();
  } else {
    connect(0);
  }
}

void LoadStream::connect(size_t endpoint) {
  socket_.async_connect(load_.endpoints[endpoint],
                        [this, endpoint, generation = generation_](const Failure& failure) {
                          if (generation != generation_) return;
                          if (failure) {
                            Failure ignored;
                            socket_.close(ignored);
                            if (endpoint + 1 < load_.endpoints.size()) return connect(endpoint + 1);
                            return end("connect", failure.message());
                          }
                          Failure ignored;
                          socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
                          write();
                        });
}

void LoadStream::write() {
  asio::async_write(socket_, asio::buffer(request().message),
                    [this, generation = generation_](const Failure& failure, size_t) {
                      if (generation != generation_) return;
                      // The server may have said why before it closed; so reading goes on.
                      if (failure && reused_) return on_lost("closed", failure);
                      read();
                    });
}

void LoadStream::read() {
  socket_.async_read_some(asio::buffer(buffer_.data() + filled_, buffer_.size() - filled_),
                          [this, generation = generation_](const Failure& failure, size_t count) {
                            if (generation != generation_) return;
                            read_at_ = load_.now();
                            if (!failure) return on_bytes(count);
                            if (failure == asio::error::eof && response_->got_some()) {
                              boost::beast::error_code none;
                              response_->put_eof(none);
                              if (!none) return on_complete();
                            }
                            on_lost("closed", failure);
                          });
}

// A server may close a connection that rests; whoever used it again just then tries once more, with a new one.
void LoadStream::on_lost(const char* kind, const Failure& failure) {
  Failure ignored;
  socket_.close(ignored);
  if (reused_ && !response_->got_some()) {
    reused_ = false;
    response_.emplace(&body_to_);
    filled_ = 0;
    return connect(0);
  }
  end(kind, failure.message());
}

void LoadStream::on_bytes(size_t count) {
  filled_ += count;
  size_t used = 0;
  try {
    while (used < filled_ && !response_->is_done()) {
      boost::beast::error_code failure;
      const size_t taken = response_->put(asio::buffer(buffer_.data() + used, filled_ - used), failure);
      used += taken;
      if (failure == http::error::need_more) break;
      if (failure) return end("not HTTP", failure.message());
      if (taken == 0) break;
    }
  } catch (const Error& error) {
    return end("in-stream error", error.what());
  }
  filled_ -= used;
  if (filled_ > 0 && used > 0) std::memmove(buffer_.data(), buffer_.data() + used, filled_);
  if (response_->is_done()) return on_complete();
  if (filled_ == buffer_.size()) return end("not HTTP", "a head or a chunk's header of more than 16 KiB");
  read();
}

void LoadStream::on_body(std::string_view bytes) {
  if (response_->status == 200 && response_->is_event_stream()) {
    events_.feed(bytes, [this](std::string_view data) { on_event(data); });
  } else {
    other_body_.append(bytes.substr(0, kShownBytes - std::min(kShownBytes, other_body_.size())));
  }
}

void LoadStream::on_event(std::string_view data) {
  const ChunkNews news = read_chunk(data);
  ServeRecord& record = this->record();
  if (news.done) done_seen_ = true;
  if (news.error) {
    stream_error_ = true;
    other_body_ = data.substr(0, kShownBytes);
  }
  if (news.token) {
    if (record.first > 0.0) record.gaps.push_back(static_cast<float>(read_at_ - record.last));
    if (record.first == 0.0) record.first = read_at_;
    record.last = read_at_;
  }
  if (!news.finish_reason.empty()) record.finish_reason = news.finish_reason;
  if (news.usage) {
    usage_seen_ = true;
    record.num_prompt_tokens = news.prompt_tokens;
    record.num_output_tokens = news.completion_tokens;
    record.num_cached_tokens = news.cached_tokens;
  }
}

void LoadStream::on_complete() {
  const ServeRequest& request = this->request();
  const ServeRecord& record = this->record();
  if (!response_->keep_alive()) {
    Failure ignored;
    socket_.close(ignored);
  }
  if (response_->status != 200) return end(fmt::format("HTTP {}", response_->status), other_body_);
  if (!response_->is_event_stream()) return end("not an event stream", other_body_);
  if (stream_error_) return end("in-stream error", other_body_);
  if (!done_seen_ || !events_.between_events()) return end("no [DONE]", "the stream ended early");
  if (!usage_seen_) return end("no usage", "the server sent no usage chunk");
  if (request.num_prompt_tokens >= 0 && record.num_prompt_tokens != request.num_prompt_tokens)
    return end("token count", fmt::format("{} prompt tokens were sent, the server says {}",
                                          request.num_prompt_tokens, record.num_prompt_tokens));
  if (record.num_output_tokens > request.max_tokens ||
      (request.exact && record.num_output_tokens != request.max_tokens))
    return end("token count", fmt::format("{} tokens were asked for, the server says {}", request.max_tokens,
                                          record.num_output_tokens));
  if (record.num_output_tokens > 0 && record.first == 0.0)
    return end("token count", fmt::format("{} tokens by the server's usage, and no chunk brought one",
                                          record.num_output_tokens));
  end({}, {});
}

void LoadStream::end(std::string error, std::string detail) {
  ServeRecord& record = this->record();
  Failure ignored;
  if (!error.empty() && !response_->is_done()) socket_.close(ignored);
  timer_.cancel();
  record.status = response_->status;
  record.end = free_ = load_.now();
  record.error = std::move(error);
  record.detail = std::move(detail);
  ++load_.done;
  // Not from within a handler of this request: a load of short answers would nest.
  ++generation_;
  asio::post(socket_.get_executor(), [this] { take_request(); });
}

void LoadStream::arm(double seconds) {
  timer_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds)));
  timer_.async_wait([this, generation = generation_](const Failure& failure) {
    if (failure || generation != generation_) return;
    Failure ignored;
    socket_.close(ignored);
    end("timeout", fmt::format("not over after {} s", load_.options.timeout));
  });
}

}  // namespace ladder
