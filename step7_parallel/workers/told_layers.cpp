#include "step7_parallel/workers/told_layers.h"

#include <exception>
#include <utility>

#include "step1_layers/core/error.h"
#include "step6_engine/process/wire.h"

namespace ladder {

namespace {

// Of a note for room in its ring, which the engine's process makes at once, unless it is stopped.
constexpr std::chrono::seconds kNotePatience{30};
constexpr std::chrono::seconds kLook{1};

// Of a layer's slots. All layers of a step have the same, which travel once.
struct Note {
  int64_t step = 0, layer = 0;
  std::vector<int64_t> slots;  // empty: as in the note before
};
LADDER_WIRE_FORM(Note) {
  auto& [step, layer, slots] = value;
  wire(step, layer, slots);
}

}  // namespace

void LayersOfWorker::save_kv_layer(int /*rank*/, int64_t layer, int64_t launch,
                                   std::span<const int64_t> slots) {
  if (launch < 0 || !is_heard_) return;
  Note note{launch, layer, {}};
  if (std::exchange(told_step_, launch) != launch) note.slots.assign(slots.begin(), slots.end());
  try {
    ring_.write(to_bytes(note), kNotePatience);
  } catch (const Error&) {
    is_heard_ = false;
  }
}

HeardLayers::HeardLayers(KvLayerListener& listener, int num_ranks) : listener_(listener) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    StepRingWriter made({.num_readers = 1}, std::chrono::microseconds(0));
    // A note comes after each layer: who looked out for it in vain would take the layers' core.
    StepRingReader reader = reader_of(made, std::chrono::microseconds(0));
    ranks_.push_back({std::move(made), std::move(reader)});
  }
  for (int rank = 0; rank < num_ranks; ++rank)
    ranks_[static_cast<size_t>(rank)].thread = std::thread([this, rank] { hear(rank); });
}

HeardLayers::~HeardLayers() {
  for (Rank& rank : ranks_) rank.made.close();
  for (Rank& rank : ranks_) rank.thread.join();
}

std::vector<int> HeardLayers::descriptors() const {
  std::vector<int> descriptors;
  for (const Rank& rank : ranks_) descriptors.push_back(rank.made.descriptor());
  return descriptors;
}

void HeardLayers::forget(int64_t step) {
  const std::lock_guard lock(mutex_);
  last_collected_ = step;
}

void HeardLayers::hear(int rank) try {
  StepRingReader& ring = ranks_[static_cast<size_t>(rank)].ring;
  std::string bytes;
  std::vector<int64_t> slots;
  for (;;) {
    const auto read = ring.read(bytes, kLook);
    if (read == StepRingReader::Read::closed) return;
    if (read == StepRingReader::Read::nothing_yet) continue;
    Note note = from_bytes<Note>(bytes);
    if (!note.slots.empty()) slots = std::move(note.slots);
    const std::lock_guard lock(mutex_);
    if (note.step > last_collected_) listener_.save_kv_layer(rank, note.layer, note.step, slots);
  }
} catch (
    const std::
        exception&) {  // no note, since a worker has died in the middle of one (its engine ends, too), or no memory
}

}  // namespace ladder
