#pragma once
// Threads inside one operator. All of the project's operators split their work through this one function,
// over OpenMP, the runtime that oneDNN uses too, so that one team of threads serves both.
//
// A split never changes a result: every output element is computed whole by one thread, in an order that does
// not depend on the number of threads.
#include <algorithm>
#include <cstdint>
#include <exception>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace ladder {

// Threads that operators called from this thread may use (per calling thread, so that ranks that run as
// threads share the cores). Without OpenMP it is always 1.
inline int num_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

inline void set_num_threads([[maybe_unused]] int count) {
#ifdef _OPENMP
  omp_set_num_threads(std::max(count, 1));
#endif
}

// Calls fn(begin, end) on consecutive pieces of [0, count), in parallel; no piece is smaller than `grain`
// unless count is. Where a piece throws the others still end; then the caller gets the exception of one of them.
template <class Fn>
void parallel_for(int64_t count, int64_t grain, Fn&& fn) {
  const int64_t pieces =
      std::min<int64_t>(num_threads(), std::max<int64_t>(count / std::max<int64_t>(grain, 1), 1));
  if (count <= 0) return;
  if (pieces == 1) {
    fn(int64_t{0}, count);
    return;
  }
  std::exception_ptr failure;
#ifdef _OPENMP
#pragma omp parallel for schedule(static, 1) num_threads(static_cast <int>(pieces))
#endif
  for (int64_t piece = 0; piece < pieces; ++piece) {
    try {
      fn(count * piece / pieces, count * (piece + 1) / pieces);
    } catch (...) {  // no exception may leave the threads' region
#ifdef _OPENMP
#pragma omp critical(ladder_parallel_for)
#endif
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace ladder
