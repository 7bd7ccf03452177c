#pragma once
// The half of a counted problem that runs the student's code: does what the judge asks and answers what came of it.
// Decisions are answered, not counts; the judge counts. What only the worker can see (allocations, the host's calls of the
// fake device) it reports, see README.md.
#include <memory>
#include <nlohmann/json.hpp>

namespace ladder::course {

class CountedWorker {
 public:
  virtual ~CountedWorker() = default;
  virtual nlohmann::json handle(const nlohmann::json& request) = 0;  // "do" names what
};

std::unique_ptr<CountedWorker> make_pool_worker(const nlohmann::json& settings);
std::unique_ptr<CountedWorker> make_blocks_worker(const nlohmann::json& settings);
std::unique_ptr<CountedWorker> make_batch_worker(const nlohmann::json& settings);
std::unique_ptr<CountedWorker> make_copies_worker(const nlohmann::json& settings);
std::unique_ptr<CountedWorker> make_runner_worker(const nlohmann::json& settings);
std::unique_ptr<CountedWorker> make_scheduler_worker(const nlohmann::json& settings);

}  // namespace ladder::course
