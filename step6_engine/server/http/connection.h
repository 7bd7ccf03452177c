#pragma once
// One client's connection, on its thread from begin to end.
//
//   opening -> head <-> body -> answering -> head ...            keep-alive
//                 \________________|______-> lingering -> closed
//
// While it answers it keeps reading, to see at once that the client has gone.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "step6_engine/server/http/io_thread.h"
#include "step6_engine/server/http/response_head.h"
#include "step6_engine/server/http/server_core.h"

namespace ladder {

class Exchange;

class Connection final : public TransportEvents, public std::enable_shared_from_this<Connection> {
 public:
  using Clock = IoThread::Clock;

  // `peer`: for the access log. The core and the thread outlive the connection.
  Connection(ServerCore& core, IoThread& thread, std::unique_ptr<Transport> transport, std::string peer);
  ~Connection() override;

  void start();
  void close();  // at once; nothing more is sent
  Clock::time_point deadline() const { return deadline_; }
  void on_deadline();

  void on_open(ErrorCode code) override;
  void on_read(ErrorCode code, std::string_view bytes) override;
  void on_written(ErrorCode code, size_t num_bytes) override;

  // connection_answer.cpp. An exchange's calls, already on this thread. Those of an exchange that is not the one being
  // answered (any more) do nothing, and what they were given ends.
  void respond(uint64_t exchange_number, HttpResponse response);
  // Task 6.6. Takes the answer and the exchange, which counts as a wake.
  void hold(std::shared_ptr<Exchange> exchange, std::unique_ptr<HttpAnswer> answer);
  void on_wake(uint64_t exchange_number);  // task 6.6
  // Within advance().
  bool is_advancing() const { return advancing_; }
  void end_with(HttpResponse response);
  void begin_stream(HttpResponse head);
  void write_stream(std::string_view bytes);
  void finish_stream();

 private:
  enum class Phase { opening, head, body, answering, lingering, closed };

  void take(std::string_view bytes);  // of a request
  void ask(std::string_view rest);    // the request is complete: who answers it does so
  void refuse(int status, std::string_view why);
  void begin_answer();
  void end_answer();  // all of it was written
  void linger();
  void read_more();
  void set_deadline(std::chrono::milliseconds from_now) { deadline_ = Clock::now() + from_now; }
  void no_deadline() { deadline_ = Clock::time_point::max(); }
  void write_more();
  void log_access() const;

  // connection_answer.cpp.
  // Makes the whole answer and sends it. The connection stays open after it where `keep_alive_` holds.
  void send(const HttpResponse& response);
  void respond_with_defect();
  void log_error(const std::exception& error) const;
  // Task 6.6. Asks the answer to go on, and sends what it writes: if there is one, it was woken since it was last asked,
  // nothing that it wrote is still under way (writing_), and the handler that gave it has returned (in_handler_); else
  // nothing happens, and it is called again when that changes. advancing_ holds during advance() alone. What advance()
  // throws is logged; if the answer is not all made then, a stream that has begun is cut (close()), and any other
  // answer is a 500. An answer that is all made is destroyed, outside advance(); where nothing of it is left to be
  // written (a stream without chunks, whose end has no bytes), all_written() follows.
  void pump();
  // Task 6.6. Moves piece_ to the end of next_: of a stream in chunks as one chunk, and after the last piece (all_made_)
  // what ends the chunks, except for HEAD, whose answer has no body.
  void frame_piece();
  void all_written();
  // Task 6.6. The client has closed its side while answering. An answer that is all made still goes out, and the
  // connection is not kept after it; any other ends here and now.
  void client_gone();
  bool may_keep_alive() const { return keep_alive_ && !core_.draining; }
  HttpResponse with_common_headers(HttpResponse response) const;

  ServerCore& core_;
  IoThread& thread_;
  const std::unique_ptr<Transport> transport_;
  const std::string peer_;
  Phase phase_ = Phase::opening;
  Clock::time_point deadline_ = Clock::time_point::max();
  bool reading_ = false;

  // The request under way.
  std::unique_ptr<RequestReader> reader_;  // from its first byte to its answer
  const Route* route_ = nullptr;
  std::string method_, target_;  // for the log
  HttpResponse common_;          // its headers are part of every answer to this request
  Clock::time_point began_{};
  uint64_t exchange_number_ = 0;  // 0: none yet

  // Its answer.
  std::shared_ptr<Exchange> exchange_;  // while an answer is held
  std::unique_ptr<HttpAnswer> answer_;
  bool counted_ = false;  // in core_.num_requests
  bool keep_alive_ = false, is_http_1_0_ = false;
  bool in_handler_ = false;
  bool woken_ = false, advancing_ = false;
  bool began_stream_ = false;
  bool all_made_ = false;  // all of the answer is in next_, in out_ or sent
  BodyFraming framing_ = BodyFraming::length;
  int status_ = 0;
  int64_t num_sent_ = 0;

  std::string piece_;  // what the answer wrote in this advance()
  std::string next_;   // what will be written, framed
  std::string out_;    // what is being written,
  size_t out_sent_ = 0;
  bool writing_ = false;
  std::string early_;  // bytes of a next request that came when all of the answer was made
};

}  // namespace ladder
