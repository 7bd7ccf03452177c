#pragma once
// Task 7.6: ranks that somebody else has started, one process each, on one machine or several: mpirun, or --nnodes (hosts/). Rank 0's process has
// the engine too, and computes its own share where it submits a step.
//
//   rank 0    engine --> LaunchedExecutor: submit()   step to all, without waiting; its own rank launches it
//                                          collect()  the answer, from the rank that samples
//   others    serve_launched_rank()                   a rank of one engine after the other, until rank 0 dismisses them
//
// They talk by messages of Communicators over all of them. Who ends the others when one fails is whoever has started
// them: a rank that throws leaves its peers waiting.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "step1_layers/core/error.h"
#include "step6_engine/engine_makers.h"
#include "step7_parallel/workers/process_rank.h"

namespace ladder {

struct LaunchedWorld {
  // All ranks in their order, as two groups of the CPU: one for steps, in which a rank may wait for hours, and one for
  // what all take part in.
  std::unique_ptr<Communicator> steps, calls;
  // The ranks that name the same colour, in their order. All ranks call it, in the same order.
  std::function<std::unique_ptr<Communicator>(int colour)> make_group;
  std::string started_by = "mpirun";
  int local_rank = 0;        // of this process, among those of its machine
  std::string agreed_error;  // the last AgreedError that rank 0 reports, on the others
  bool broken = false;  // this rank has failed where others wait for it: they can only be ended from outside

  int rank() const { return calls->rank(); }
  int size() const { return calls->size(); }
};

// Something is wrong on some rank, and all have heard of it: the same text on each.
class AgreedError : public Error {
 public:
  using Error::Error;
};
// All ranks come here. AgreedError: some rank's `mine` is not empty; names the first that has any.
void agree_on_no_error(LaunchedWorld& world, const std::string& mine);
// AgreedError: a rank's text is another than rank 0's. `what`: "the arguments", for the message.
void agree_on(LaunchedWorld& world, const std::string& text, const std::string& what);

class LaunchedExecutor final : public Executor {
 public:
  // On rank 0, while the others are in serve_launched_rank(), whose `make_options` gets the arguments. options.config is
  // resolved. AgreedError: it has more or fewer ranks than there are; files differ; a rank cannot load its model.
  LaunchedExecutor(const ExecutorOptions& options, const std::vector<std::string>& arguments,
                   LaunchedWorld& world);
  ~LaunchedExecutor() override;  // the others wait for another engine

  Ticket submit(const SchedulerOutput& step) override;
  StepOutput collect(Ticket ticket) override;
  int max_in_flight() const override;

  const BatchConfig& batch() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// For EngineMakers::executor, on rank 0. `world` outlives what it makes. Error: a maker of a proposer.
ExecutorMaker make_launched_executor(std::vector<std::string> arguments, LaunchedWorld& world);

// On all other ranks. `make_options` gives the model and the parts of it, of rank 0's arguments. Returns when rank 0 has
// dismissed them. Throws what a step throws; errors that all ranks have heard of are rank 0's to report.
void serve_launched_rank(
    const std::function<ExecutorOptions(const std::vector<std::string>& arguments)>& make_options,
    LaunchedWorld& world);
// On rank 0, when it has no engine any more.
void dismiss_launched_ranks(LaunchedWorld& world);

}  // namespace ladder
