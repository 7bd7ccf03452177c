// The counted problems of the course (lab/README.md, "Performance points"): what a student's scheduler, cache or batch
// decides on a secret workload, counted without a clock.
//
//   course_counts judge PROBLEM -- WORKER...    prints {"problem": ..., "counts": {...}} or {..., "error": ...}
//   course_counts work                          the worker: course_counts of the tree that is judged
//
// The judge is the pristine tree's. The workload's seed comes on its standard input, where the worker cannot read it:
//   echo 1 | course_counts judge mixed -- course_counts work
#include <sys/prctl.h>

#include <iostream>
#include <map>

#include "bench/course_counts/judges.h"
#include "bench/course_counts/workers.h"

namespace ladder::course {
namespace {

using Judge = Counts (*)(Worker&, Random&);

const std::map<std::string, Judge> kJudges = {
    {"pool", judge_pool},     {"blocks", judge_blocks},   {"prefix", judge_prefix}, {"batch", judge_batch},
    {"copies", judge_copies}, {"ahead", judge_ahead},     {"static", judge_static}, {"mixed", judge_mixed},
    {"shared", judge_shared}, {"crowded", judge_crowded}, {"turns", judge_turns}};

using Make = std::unique_ptr<CountedWorker> (*)(const json&);

const std::map<std::string, Make> kWorkers = {
    {"pool", make_pool_worker},     {"blocks", make_blocks_worker}, {"batch", make_batch_worker},
    {"copies", make_copies_worker}, {"runner", make_runner_worker}, {"scheduler", make_scheduler_worker}};

int work() {
  std::unique_ptr<CountedWorker> worker;
  for (;;) {
    const json request = receive();
    try {
      if (request.at("do") == "make") {
        worker = kWorkers.at(request.at("worker"))(request);
        reply(request, json::object());
      } else {
        reply(request, worker->handle(request));
      }
    } catch (const std::exception& error) {
      reply_error(request, error.what());
    }
  }
}

int judge(const std::string& problem, const std::vector<std::string>& command) {
  ::prctl(PR_SET_DUMPABLE, 0);  // the worker may neither read nor trace this process
  std::string seed;
  std::getline(std::cin, seed);
  const auto found = kJudges.find(problem);
  if (found == kJudges.end()) {
    std::cerr << "course_counts: no problem '" << problem << "'\n";
    return 2;
  }
  json result = {{"problem", problem}};
  try {
    Worker worker(command, -1, std::chrono::seconds(20));
    std::seed_seq words(seed.begin(), seed.end());
    Random random(words);
    result["counts"] = found->second(worker, random);
  } catch (const WorkerError& error) {
    result["error"] = error.what();
  } catch (const json::exception& error) {  // an answer without what it must have
    result["error"] = std::string("an answer that is none: ") + error.what();
  } catch (const std::logic_error& error) {  // the simulator's
    result["error"] = error.what();
  }
  std::cout << result.dump(-1, ' ', false, json::error_handler_t::replace) << "\n";
  return 0;
}

}  // namespace
}  // namespace ladder::course

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
  if (arguments == std::vector<std::string>{"work"}) return ladder::course::work();
  if (arguments.size() > 3 && arguments[0] == "judge" && arguments[2] == "--")
    return ladder::course::judge(arguments[1], {arguments.begin() + 3, arguments.end()});
  std::cerr << "course_counts judge PROBLEM -- WORKER...      with the workload's seed on standard input\n";
  return 2;
}
