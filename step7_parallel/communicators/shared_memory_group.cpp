#include "step7_parallel/communicators/shared_memory_group.h"

#include <unistd.h>

#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/shared_memory_rank.h"

namespace ladder {

SharedMemoryGroup SharedMemoryGroup::create(const GroupMemoryShape& shape) {
  const size_t bytes = GroupMemory::size_of(shape);
  return SharedMemoryGroup(
      std::make_shared<const GroupMemory>(SharedMemory::create("ladder group", bytes), shape));
}

SharedMemoryGroup SharedMemoryGroup::open(FileDescriptor descriptor) {
  return SharedMemoryGroup(std::make_shared<const GroupMemory>(SharedMemory::open(std::move(descriptor))));
}

std::unique_ptr<Communicator> SharedMemoryGroup::join(int rank, const Patience& patience) const {
  LADDER_CHECK(rank >= 0 && rank < size(), "a group of {} has no rank {}", size(), rank);
  int nobody = 0;
  const int process = ::getpid();
  LADDER_CHECK(memory_->place(rank).process.compare_exchange_strong(nobody, process),
               "process {} cannot join a group as {}", process, memory_->name_of(rank));
  return std::make_unique<SharedMemoryRank>(memory_, rank, patience);
}

std::string SharedMemoryGroup::where() const {
  std::string text;
  for (int rank = 0; rank < size(); ++rank) {
    const GroupMemory::Place& place = memory_->place(rank);
    const uint32_t doing = place.doing.load();
    text += fmt::format("{}: {} call {}{}{}\n", memory_->name_of(rank), doing == 0 ? "after" : "in",
                        place.calls.load(), doing == 0 ? "" : ", ", GroupMemory::call_name(doing));
    if (place.has_left.load() != 0) text.insert(text.size() - 1, ", has left");
  }
  return text;
}

SharedMemoryRank::SharedMemoryRank(std::shared_ptr<const GroupMemory> memory, int rank,
                                   const SharedMemoryGroup::Patience& patience)
    : memory_(std::move(memory)), rank_(rank), patience_(patience) {}

SharedMemoryRank::~SharedMemoryRank() {
  memory_->place(rank_).has_left.store(1);
  memory_->ring_all();
}

bool SharedMemoryRank::is_obstructed(int peer) const {
  if (memory_->closing().state.load() != GroupMemory::Closing::open) return true;
  if (peer != kEverybody) return memory_->place(peer).has_left.load() != 0;
  for (int rank = 0; rank < size(); ++rank)
    if (memory_->place(rank).has_left.load() != 0) return true;
  return false;
}

std::string SharedMemoryRank::obstacle(int peer) const {
  if (std::string reason = memory_->reason(); !reason.empty()) return reason;
  for (int rank = 0; rank < size(); ++rank)
    if ((peer == kEverybody || peer == rank) && memory_->place(rank).has_left.load() != 0)
      return fmt::format("rank {} has left the group", rank);
  return {};
}

std::string SharedMemoryRank::absent_from_meeting() const {
  std::string absent;
  for (int rank = 0; rank < size(); ++rank)
    if (memory_->place(rank).rounds.load() < rounds_)
      absent += (absent.empty() ? "" : ", ") + memory_->name_of(rank);
  return absent;
}

void SharedMemoryRank::check_peer(const char* name, int peer) const {
  LADDER_CHECK(peer >= 0 && peer < size() && peer != rank_, "{}: rank {} has no peer {}", name, rank_, peer);
}

std::vector<CallForm> SharedMemoryRank::forms() const {
  std::vector<CallForm> forms;
  for (int rank = 0; rank < size(); ++rank) forms.push_back(memory_->staging(rank, turn_).form);
  return forms;
}

CallCounts SharedMemoryRank::counts() const {
  CallCounts counts;
  for (int rank = 0; rank < size(); ++rank) {
    const GroupMemory::Staging& staging = memory_->staging(rank, turn_);
    const int64_t* const values = memory_->counts(rank, turn_);
    counts.send.emplace_back(values, values + staging.num_sent);
    counts.recv.emplace_back(values + size(), values + size() + staging.num_received);
  }
  return counts;
}

}  // namespace ladder
