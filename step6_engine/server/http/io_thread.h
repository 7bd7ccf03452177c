#pragma once
// Task 6.6: one thread, its connections, and how other threads reach them.
//
//   engine's thread:  wake(a) wake(b) wake(c)     three pushes on a list, one word to the sleeping thread
//   this thread:      run_ready(): a, b, c        each connection asks its answer to go on
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "step6_engine/server/http/transport.h"

namespace ladder {

class Connection;

// What wakes one answer of one connection. It may outlive both.
struct Wake {
  std::weak_ptr<Connection> connection;
  uint64_t exchange_number = 0;      // of the connection's exchanges
  std::atomic<bool> pending{false};  // it is on the list, or about to be
};

class IoThread : public std::enable_shared_from_this<IoThread> {
 public:
  using Clock = std::chrono::steady_clock;

  // Connections' deadlines are looked at once per `tick`. `on_error`: something threw that must not.
  IoThread(Clock::duration tick, std::function<void(std::string)> on_error);
  ~IoThread();

  void start();
  // Cuts all connections; returns when the thread has ended. What is posted or woken later is dropped.
  void stop();

  // From any thread.
  bool is_this_thread() const { return std::this_thread::get_id() == id_; }
  void post(std::function<void()> task);  // dropped once the thread is stopped
  // Task 6.6. The wake's connection gets on_wake(), once for all calls until it begins to. Of all wakes that come until
  // the thread gets to them, the first alone posts something to it. Dropped once the thread is stopped.
  void wake(const std::shared_ptr<Wake>& wake);

  // The thread's own.
  asio::io_context& context() { return context_; }
  ReadBuffer& read_buffer() { return read_buffer_; }
  void add(std::shared_ptr<Connection> connection);
  void remove(const std::shared_ptr<Connection>& connection) { connections_.erase(connection); }

 private:
  // Task 6.6. on_wake() of all that is ready and lives, in order, without the lock. What wakes one of them from within
  // its on_wake() is a new wake. What one throws is told to on_error_ and closes that connection; the others still get
  // theirs.
  void run_ready();
  void run();
  void schedule_tick();

  const Clock::duration tick_;
  const std::function<void(std::string)> on_error_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  asio::steady_timer timer_{context_};
  bool ticking_ = false;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  ReadBuffer read_buffer_;

  std::mutex mutex_;  // of what follows
  std::vector<std::shared_ptr<Wake>> ready_;
  bool ready_posted_ = false;  // run_ready() will run
  bool closed_ = false;

  std::vector<std::shared_ptr<Wake>> running_;  // run_ready()'s
  std::atomic<std::thread::id> id_{};
  std::thread thread_;
};

}  // namespace ladder
