#include "step7_parallel/hosts/host_world.h"

#include <numeric>

#include "step7_parallel/communicators/exchange_texts.h"
#include "step7_parallel/hosts/rendezvous.h"

namespace ladder {

namespace {

constexpr std::chrono::seconds kConnectTimeout{60};
// For the ranks, of which one may load for long while the others wait: who is gone or cut off is the watch's to see.
constexpr std::chrono::minutes kCallTimeout{5};
// For the next step, which comes when somebody asks for something.
constexpr std::chrono::hours kStepTimeout{24 * 365};

}  // namespace

HostWorld::HostWorld(const HostPlace& place, std::function<void(const std::string& cause)> end) {
  Met met = place.rank() == 0 ? receive_ranks(place) : join_ranks(place);
  mesh_ = std::move(met.mesh);
  name_ = met.places[static_cast<size_t>(place.rank())].name;
  watch_ = std::make_unique<HostWatch>(std::move(met.watched), place.silence, std::move(end));
  const auto failed = [watch = watch_.get()](const std::string& cause) { watch->suspect(cause); };
  const auto group = [mesh = mesh_.get(), failed](const std::vector<int>& ranks, auto timeout) {
    return mesh->group(ranks, kConnectTimeout, timeout, failed);
  };
  std::vector<int> all(static_cast<size_t>(place.world_size()));
  std::iota(all.begin(), all.end(), 0);
  world_.steps = group(all, kStepTimeout);
  world_.calls = group(all, kCallTimeout);
  world_.make_group = [group, calls = world_.calls.get()](int colour) {
    const std::vector<std::string> colours = exchange_texts(*calls, std::to_string(colour));
    std::vector<int> ranks;
    for (int rank = 0; rank < calls->size(); ++rank)
      if (colours[static_cast<size_t>(rank)] == std::to_string(colour)) ranks.push_back(rank);
    return group(ranks, kCallTimeout);
  };
  world_.local_rank = place.local_rank;
  world_.started_by = "--nnodes";
}

}  // namespace ladder
