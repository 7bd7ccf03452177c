#pragma once
// A server without an engine: it answers every completion with as many chunks as tokens were asked for, at a given
// pace. What a client reaches here is the client's own ceiling.
#include <cstdint>
#include <memory>
#include <string>

namespace ladder {

struct CannedOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any that is free
  // All streams get a token together, like from an engine's step, this often; 0: each as soon as it took the one
  // before.
  double step_seconds = 0.0;
  int io_threads = 2;
};

class CannedServer {
 public:
  explicit CannedServer(const CannedOptions& options);  // listens when it returns
  ~CannedServer();
  std::string address() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ladder
