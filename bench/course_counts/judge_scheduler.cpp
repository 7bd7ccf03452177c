// Tasks 5.1 to 5.5: requests arrive, the worker's scheduler plans steps, and the simulator of the tests of step 5 computes
// them: it knows only what the plans say, refuses one that contradicts itself or reads what is not in the cache, and samples
// the tokens. Everything is counted here, from the plans that it accepted.
#include <algorithm>
#include <deque>

#include "bench/course_counts/judges.h"
#include "bench/course_counts/step_json.h"
#include "tests/step5_scheduler/kv_simulator.h"

namespace ladder::course {
namespace {

constexpr int64_t kVocab = 1000;
constexpr int64_t kMaxSteps = 20000;

struct Request {
  int64_t arrival = 0;  // the step before which it is added
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int turns = 0;  // so often the conversation goes on when all its completions have ended
};

struct Workload {
  BatchConfig batch;
  bool is_static = false, priorities = false;
  int64_t partial_prefills = 1, long_prefill = 0;
  int delay = 0;  // steps that are in flight beside the one that is planned
  std::vector<Request> requests = {};
};

std::vector<int32_t> random_tokens(Random& random, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(integer(random, 0, kVocab - 1));
  return tokens;
}

SamplingParams sampling(Random& random, int64_t max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  params.seed = static_cast<uint64_t>(integer(random, 0, 1 << 30));
  return params;
}

class SchedulerJudge {
 public:
  SchedulerJudge(Worker& worker, Workload load, Random& random)
      : worker_(worker),
        load_(std::move(load)),
        random_(random),
        simulator_(load_.batch.num_kv_blocks, load_.batch.block_size, kVocab, load_.delay) {
    worker_.ask({{"do", "make"},
                 {"worker", "scheduler"},
                 {"batch", load_.batch},
                 {"vocab_size", kVocab},
                 {"static", load_.is_static},
                 {"priorities", load_.priorities},
                 {"partial_prefills", load_.partial_prefills},
                 {"long_prefill", load_.long_prefill}});
    for (const char* name : {"steps", "rows", "preemptions", "recomputed", "tokens_hit", "longest_gap",
                             "longest_wait", "total_wait"})
      counts_[name] = 0;
    std::ranges::stable_sort(load_.requests, {}, &Request::arrival);
    waiting_.assign(load_.requests.begin(), load_.requests.end());
  }

  Counts run() {
    while (!waiting_.empty() || num_unfinished_ > 0 || !tickets_.empty()) {
      add_arrived();
      const bool submitted = std::ssize(tickets_) < simulator_.max_in_flight() && submit();
      if (!tickets_.empty() && (!submitted || std::ssize(tickets_) == simulator_.max_in_flight()))
        collect();
      else if (!submitted && num_unfinished_ > 0)
        throw WorkerError("nothing is scheduled, no step is in flight, and " +
                          std::to_string(num_unfinished_) + " sequences are not done");
      if (!submitted) ++now_;  // an idle step, so that what is to come arrives
      if (now_ > kMaxSteps) throw WorkerError("no end after " + std::to_string(now_) + " steps");
    }
    return counts_;
  }

 private:
  struct Running {
    Request request;
    size_t group = 0;
    int64_t arrival = 0, last_token_step = -1;
    int64_t num_computed = 0, furthest = 0;  // by the plans; the most there ever was
    bool seen = false, done = false;
    std::vector<int32_t> expected, output;
  };

  void add_arrived() {
    while (!waiting_.empty() && waiting_.front().arrival <= now_) {
      const Request request = waiting_.front();
      waiting_.pop_front();
      const auto ids =
          worker_.ask({{"do", "add"}, {"prompt", request.prompt}, {"sampling", request.sampling}})
              .at("ids")
              .get<std::vector<SequenceId>>();
      if (std::ssize(ids) != request.sampling.n) throw WorkerError("add() gave another number of sequences");
      for (int64_t i = 0; i < request.sampling.n; ++i) {
        Running running;
        running.request = request;
        running.group = groups_.size();
        running.arrival = now_;
        running.expected = reference_output(request.prompt, request.sampling,
                                            *request.sampling.seed + static_cast<uint64_t>(i), kVocab,
                                            load_.batch.max_model_len, {});
        if (!running_.emplace(ids[static_cast<size_t>(i)], running).second)
          throw WorkerError("add() gave an id twice");
        ++num_unfinished_;
      }
      groups_.push_back(request.sampling.n);
    }
  }

  Running& find(SequenceId id) {
    const auto found = running_.find(id);
    if (found == running_.end()) throw WorkerError("sequence " + std::to_string(id) + " was never added");
    return found->second;
  }

  bool submit() {
    SchedulerOutput step = worker_.ask({{"do", "schedule"}}).at("output").get<SchedulerOutput>();
    if (step.empty()) return false;
    if (step.total_num_tokens + step.num_static_padding_rows > load_.batch.max_num_batched_tokens)
      throw WorkerError("step " + std::to_string(step.step) + " has more rows than the budget");
    if (std::ssize(step.scheduled) > load_.batch.max_num_seqs)
      throw WorkerError("step " + std::to_string(step.step) + " has more sequences than max_num_seqs");
    // What a plan says of a request is the judge's, not the worker's: tokens and sampling are replaced by the truth.
    for (NewSequence& added : step.new_sequences) {
      Running& running = find(added.id);
      const std::vector<int32_t>& prompt = running.request.prompt;
      if (added.num_prompt_tokens != std::ssize(prompt)) throw WorkerError("a prompt of another length");
      std::vector<int32_t> tokens = running.output;
      if (added.prompt_of < 0) tokens.insert(tokens.begin(), prompt.begin(), prompt.end());
      if (added.token_ids != tokens)
        throw WorkerError("sequence " + std::to_string(added.id) + " is sent with other tokens than it has");
      if (!running.seen) counts_["tokens_hit"] += added.num_computed_tokens;
      running.seen = true;
      running.num_computed = added.num_computed_tokens;
      added.sampling = running.request.sampling;
      added.sampling.seed = seed_of(running, added.id);
    }
    for (const ContinuedSequence& continued : step.continued)
      find(continued.id).num_computed = continued.num_computed_tokens;
    tickets_.push_back(simulator_.submit(step));
    for (const ScheduledSequence& scheduled : step.scheduled) {
      Running& running = find(scheduled.id);
      counts_["recomputed"] +=
          std::clamp<int64_t>(running.furthest - running.num_computed, 0, scheduled.num_tokens);
      running.num_computed += scheduled.num_tokens;
      running.furthest = std::max(running.furthest, running.num_computed);
    }
    counts_["preemptions"] += std::ssize(step.preempted);
    counts_["rows"] += step.total_num_tokens + step.num_static_padding_rows;
    ++counts_["steps"];
    ++now_;
    return true;
  }

  uint64_t seed_of(const Running& running, SequenceId id) const {
    uint64_t index = 0;  // of the completion: ids of one request follow each other
    for (const auto& [other, candidate] : running_)
      if (other < id && candidate.group == running.group) ++index;
    return *running.request.sampling.seed + index;
  }

  void collect() {
    const StepOutput answer = simulator_.collect(tickets_.front());
    tickets_.pop_front();
    const json told = worker_.ask({{"do", "update"}, {"answer", answer}});
    for (const json& update : told.at("updates")) {
      Running& running = find(update.at(0).get<SequenceId>());
      if (running.done) throw WorkerError("a sequence that has ended is updated");
      const auto tokens = update.at(1).get<std::vector<int32_t>>();
      if (!tokens.empty()) {
        const int64_t waited =
            now_ - (running.last_token_step < 0 ? running.arrival : running.last_token_step);
        int64_t& longest = counts_[running.last_token_step < 0 ? "longest_wait" : "longest_gap"];
        longest = std::max(longest, waited);
        if (running.last_token_step < 0) counts_["total_wait"] += waited;
        running.last_token_step = now_;
      }
      running.output.insert(running.output.end(), tokens.begin(), tokens.end());
      if (!update.at(2).get<bool>()) continue;
      if (running.output != running.expected)
        throw WorkerError("sequence " + std::to_string(update.at(0).get<SequenceId>()) +
                          " ended with other tokens");
      running.done = true;
      --num_unfinished_;
      if (--groups_[running.group] == 0) go_on(running);
    }
    if (!told.at("unfinished").get<bool>() && num_unfinished_ > 0)
      throw WorkerError("sequences are forgotten before their end");
  }

  void go_on(const Running& running) {
    if (running.request.turns == 0) return;
    Request next = running.request;
    --next.turns;
    next.arrival = now_ + integer(random_, 0, 5);
    next.prompt.insert(next.prompt.end(), running.output.begin(), running.output.end());
    const std::vector<int32_t> said = random_tokens(random_, integer(random_, 3, 9));
    next.prompt.insert(next.prompt.end(), said.begin(), said.end());
    const auto later = std::ranges::upper_bound(waiting_, next.arrival, {}, &Request::arrival);
    waiting_.insert(later, std::move(next));
  }

  Worker& worker_;
  Workload load_;
  Random& random_;
  KvSimulator simulator_;
  std::deque<Request> waiting_;
  std::map<SequenceId, Running> running_;
  std::vector<int64_t> groups_;  // completions of a request that have not ended
  std::deque<Ticket> tickets_;
  int64_t now_ = 0, num_unfinished_ = 0;
  Counts counts_;
};

BatchConfig batch(int64_t seqs, int64_t tokens, int64_t blocks) {
  return {.max_num_seqs = seqs,
          .max_num_batched_tokens = tokens,
          .max_model_len = 512,
          .block_size = 8,
          .num_kv_blocks = blocks};
}

Counts judge(Worker& worker, Workload load, Random& random) {
  return SchedulerJudge(worker, std::move(load), random).run();
}

}  // namespace

Counts judge_static(Worker& worker, Random& random) {
  Workload load{.batch = batch(8, 64, 400), .is_static = true};
  for (int i = 0; i < 48; ++i)
    load.requests.push_back({integer(random, 0, 60), random_tokens(random, integer(random, 5, 60)),
                             sampling(random, integer(random, 2, 30))});
  return judge(worker, std::move(load), random);
}

// Prompts of very different lengths beside decodes; long ones come first in the order.
Counts judge_mixed(Worker& worker, Random& random) {
  Workload load{.batch = batch(12, 48, 1000), .priorities = true, .partial_prefills = 3, .long_prefill = 44};
  for (int i = 0; i < 60; ++i) {
    const bool is_long = integer(random, 0, 3) == 0;
    load.requests.push_back(
        {integer(random, 0, 200),
         random_tokens(random, is_long ? integer(random, 150, 350) : integer(random, 4, 30)),
         sampling(random, integer(random, 4, 40))});
    load.requests.back().sampling.priority = is_long ? 0 : 1;
  }
  return judge(worker, std::move(load), random);
}

// Several completions of a request, over a few prompts that begin alike, and a cache that is nearly full.
Counts judge_shared(Worker& worker, Random& random) {
  Workload load{.batch = batch(12, 64, 150)};
  std::vector<std::vector<int32_t>> systems;
  for (int i = 0; i < 3; ++i) systems.push_back(random_tokens(random, integer(random, 40, 100)));
  for (int i = 0; i < 40; ++i) {
    Request request{integer(random, 0, 200), systems[static_cast<size_t>(integer(random, 0, 2))],
                    sampling(random, integer(random, 4, 40))};
    const std::vector<int32_t> own = random_tokens(random, integer(random, 3, 60));
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.sampling.n = integer(random, 1, 4);
    load.requests.push_back(std::move(request));
  }
  return judge(worker, std::move(load), random);
}

// Long answers and too few blocks: who runs has to give way.
Counts judge_crowded(Worker& worker, Random& random) {
  Workload load{.batch = batch(10, 96, 64 + integer(random, 0, 6)), .delay = 1};
  for (int i = 0; i < 40; ++i)
    load.requests.push_back({integer(random, 0, 100), random_tokens(random, integer(random, 10, 60)),
                             sampling(random, integer(random, 60, 140))});
  return judge(worker, std::move(load), random);
}

// Conversations, one step ahead: what a sequence has computed is found again by the next turn, and stops are found late.
Counts judge_turns(Worker& worker, Random& random) {
  Workload load{.batch = batch(8, 64, 700), .delay = 1};
  for (int i = 0; i < 16; ++i) {
    Request request{integer(random, 0, 30), random_tokens(random, integer(random, 10, 50)),
                    sampling(random, integer(random, 16, 50))};
    for (int32_t token = 0; token < 20; ++token) request.sampling.stop_token_ids.push_back(50 * token);
    request.turns = 4;
    load.requests.push_back(std::move(request));
  }
  return judge(worker, std::move(load), random);
}

}  // namespace ladder::course
