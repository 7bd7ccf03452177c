#pragma once
// Sums of structs, field by field: over engines, where all that is counted may be added.
//
//   auto fields_of(auto& stats) { auto& [a, b, c] = stats; return std::tie(a, b, c); }
//   add_fields(fields_of(to), fields_of(more));
//
// The binding names every field, so none that is added later is forgotten.
#include <array>
#include <cstddef>
#include <tuple>
#include <utility>

namespace ladder {

template <class T, size_t kSize>
void add_field(std::array<T, kSize>& to, const std::array<T, kSize>& more) {
  for (size_t i = 0; i < kSize; ++i) to[i] += more[i];
}
template <class T>
void add_field(T& to, const T& more) {
  to += more;
}

// Two tuples of references of the same length.
template <class To, class More>
void add_fields(const To& to, const More& more) {
  [&]<size_t... i>(std::index_sequence<i...>) {
    (add_field(std::get<i>(to), std::get<i>(more)), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<To>>());
}

}  // namespace ladder
