#pragma once
// How many threads serve connections where nobody says.
#include <algorithm>
#include <thread>

namespace ladder {

// All streams of a step become ready at once, and a thread writes its own one after the other, 4 to 5 us each: with 256
// streams and 2 threads the last token waits 600 us, with 8 threads 150 us. Half of the cores is left to the engine, the
// workers and, over the loopback, the clients; beyond 8 waking the threads costs the engine's loop more than it saves.
inline int io_threads_for(unsigned num_cores) {
  return std::clamp(static_cast<int>(num_cores / 2), 2, 8);
}
inline int default_io_threads() {
  return io_threads_for(std::thread::hardware_concurrency());
}

}  // namespace ladder
