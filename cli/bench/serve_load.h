#pragma once
// Load on a server: requests sent at given times by a few threads, and when what came back. Each thread has an
// io_context and streams of its own; a stream sends one request at a time over its connection, which it keeps. All
// times are seconds of one steady clock since the load began.
//
//   thread:  [ stream: wait for the request's time -> send -> read events ... -> next request ]  x its share
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "step6_engine/server/http_client/http_address.h"

namespace ladder {

struct ServeRequest {
  std::string message;             // head and body, as they are sent
  int64_t num_prompt_tokens = -1;  // -1: not known (text)
  int64_t max_tokens = 0;
  bool exact = false;  // end tokens are ignored, so max_tokens must come
};

// What became of one request.
struct ServeRecord {
  double scheduled = 0.0;   // when it was to be sent
  double free = 0.0;        // when its stream had ended the request before
  double sent = 0.0;        // when the first byte was written; connecting, where needed, comes after this
  double first = 0.0;       // the first token came (0: none did)
  double last = 0.0;        // the last one
  double end = 0.0;         // the answer was over
  std::vector<float> gaps;  // between the chunks that brought tokens, one fewer than those
  int64_t num_prompt_tokens = -1, num_output_tokens = -1, num_cached_tokens = -1;  // the server's usage
  int status = 0;                                                                  // of HTTP; 0: no answer
  std::string finish_reason;
  // What went wrong, empty if nothing: "connect", "closed", "timeout", "HTTP 429", "in-stream error", "not an event
  // stream", "no [DONE]", "no usage", "token count"; and how.
  std::string error, detail;

  // How much later than it could the client sent it: a figure of the client, not of the server.
  double late() const { return sent - (scheduled > free ? scheduled : free); }
};

struct LoadOptions {
  HttpAddress address;
  int num_threads = 2;
  int64_t max_concurrency = 0;   // requests under way; 0: any number
  double timeout = 600.0;        // seconds, for one request
  std::vector<double> arrivals;  // when each request is sent, ascending; empty: all at once
  std::function<void(int64_t done)> on_progress = {};  // now and then, on the caller's thread
};

struct LoadResult {
  std::vector<ServeRecord> records;  // in the requests' order
  double seconds = 0.0;              // from the begin to the last answer's end
  std::vector<double> cpu_seconds;   // of each thread
  std::chrono::steady_clock::time_point begin;
};

// Sends all of them; returns when all are over. Error: the host's name is unknown.
LoadResult run_load(const std::vector<ServeRequest>& requests, const LoadOptions& options);

}  // namespace ladder
