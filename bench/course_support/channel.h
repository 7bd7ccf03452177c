#pragma once
// A judge and the worker that it started, at the two ends of a socket: JSON messages, one answer to each request.
//
// The judge is the pristine tree's program; the worker is the same source linked to a student's steps, and runs the
// student's code. So the judge believes nothing but what it can check: an answer carries the random number of its request
// (what was written before cannot), comes within a time limit, and is the only one. What the worker prints goes nowhere.
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace ladder::course {

using nlohmann::json;

// The file descriptor at which a worker finds its end, and the one of shared memory, if there is some.
inline constexpr int kWorkerSocket = 3, kWorkerMemory = 4;

// What the student's build did wrong, in one line: no points, and no defect of the judge.
class WorkerError : public std::runtime_error {
 public:
  explicit WorkerError(const std::string& message) : std::runtime_error(message) {}
};

// The judge's end. Ends the worker, and all that it started, with itself.
class Worker {
 public:
  // `memory`: a descriptor that the worker gets as kWorkerMemory, or -1.
  Worker(const std::vector<std::string>& command, int memory, std::chrono::milliseconds limit);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Error (WorkerError): it ended, took too long, answered out of turn, or says that its code failed.
  json ask(json request);
  // The same in two halves, for a clock between them. The number of the request is the answer's.
  void send(json request);
  json answer();
  // From now on answer() looks for so long before it sleeps: to be woken takes as long as a fast kernel.
  void spin(std::chrono::microseconds before_sleep) { spin_ = before_sleep; }

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
  std::chrono::milliseconds limit_;
  std::chrono::microseconds spin_{0};
  std::string received_;
  uint64_t expected_ = 0;
  std::mt19937_64 random_{std::random_device{}()};
};

// The worker's end: the next request, and its answer. receive() ends the process when the judge has gone. `spin`: as above.
json receive(std::chrono::microseconds spin = {});
void reply(const json& request, json answer);
// Answers with the error that a request ended in.
void reply_error(const json& request, const std::string& error);

}  // namespace ladder::course
