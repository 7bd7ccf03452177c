// Task 6.6: how an answer reaches a client that reads fast, slowly, or no more.
//
//   woken?  nothing under way?  ->  advance()  ->  piece_  ->  framed in next_  ->  out_  ->  socket
//      ^                                                                               |
//      +-------------------------------  all of it was sent  <-----------------------+
#include "step1_layers/core/error.h"
#include "step6_engine/server/http/connection.h"
#include "step6_engine/server/http/errors.h"
#include "step6_engine/server/http/exchange_of_connection.h"

namespace ladder {

HttpResponse Connection::with_common_headers(HttpResponse response) const {
  response.headers.insert(response.headers.end(), common_.headers.begin(), common_.headers.end());
  return response;
}

void Connection::send(const HttpResponse& response) {
  status_ = response.status;
  keep_alive_ = may_keep_alive();
  append_head(response,
              {.framing = BodyFraming::length,
               .content_length = std::ssize(response.body),
               .keep_alive = keep_alive_},
              next_);
  if (method_ != "HEAD" && response.status != 204) next_ += response.body;
  all_made_ = true;
  write_more();
}

void Connection::respond(uint64_t exchange_number, HttpResponse response) {
  if (phase_ != Phase::answering || exchange_number != exchange_number_ || all_made_ || answer_) return;
  send(with_common_headers(std::move(response)));
}

void Connection::end_with(HttpResponse response) {
  LADDER_CHECK(!began_stream_ && !all_made_, "a stream that has begun cannot respond");
  send(with_common_headers(std::move(response)));
}

// >>> task 6.6: the answer goes on
void Connection::hold(std::shared_ptr<Exchange> exchange, std::unique_ptr<HttpAnswer> answer) {
  if (phase_ != Phase::answering || exchange->number() != exchange_number_) return;
  exchange_ = std::move(exchange);
  answer_ = std::move(answer);
  woken_ = true;
  pump();
}

void Connection::on_wake(uint64_t exchange_number) {
  if (phase_ != Phase::answering || exchange_number != exchange_number_) return;
  woken_ = true;
  pump();
}

void Connection::pump() {
  if (!answer_ || !woken_ || writing_ || in_handler_) return;
  woken_ = false;
  bool failed = false;
  advancing_ = true;
  try {
    answer_->advance(*exchange_);
  } catch (const std::exception& error) {
    log_error(error);
    failed = true;
  }
  advancing_ = false;
  if (failed && !all_made_) {
    if (began_stream_) return close();  // a stream cut short is the only way left to say so
    respond_with_defect();
  }
  frame_piece();
  if (all_made_) answer_.reset();
  if (all_made_ && next_.empty() && !writing_) return all_written();  // its bytes have left before its end
  write_more();
}

// One piece at a time: a connection holds no more of a stream than what its last advance() wrote.
void Connection::frame_piece() {
  const bool chunked = began_stream_ && framing_ == BodyFraming::chunked;
  if (!piece_.empty()) {
    if (chunked) {
      append_chunk(piece_, next_);
    } else {
      next_ += piece_;
    }
    piece_.clear();
  }
  if (all_made_ && chunked && method_ != "HEAD") next_ += kLastChunk;
}

void Connection::client_gone() {
  if (all_made_) {  // it may have closed its side alone, and still read
    keep_alive_ = false;
  } else {
    close();
  }
}
// <<< task 6.6

void Connection::all_written() {
  if (all_made_) return end_answer();
  no_deadline();
  pump();
}

void Connection::log_error(const std::exception& error) const {
  core_.log_error(fmt::format("{} {}: {}", method_, target_, error.what()));
}

void Connection::respond_with_defect() {
  send(with_common_headers(error_response(500, "the server has a defect: see its log")));
}

void Connection::begin_stream(HttpResponse head) {
  LADDER_CHECK(!began_stream_ && !all_made_, "a stream begins once");
  began_stream_ = true;
  status_ = head.status;
  framing_ = is_http_1_0_ ? BodyFraming::until_close : BodyFraming::chunked;
  keep_alive_ = may_keep_alive() && !is_http_1_0_;
  append_head(with_common_headers(std::move(head)), {.framing = framing_, .keep_alive = keep_alive_}, next_);
  if (method_ == "HEAD") all_made_ = true;
}

void Connection::write_stream(std::string_view bytes) {
  LADDER_CHECK(began_stream_, "a stream must begin before it is written");
  if (!all_made_) piece_ += bytes;
}

void Connection::finish_stream() {
  LADDER_CHECK(began_stream_, "a stream must begin before it ends");
  all_made_ = true;
}

}  // namespace ladder
