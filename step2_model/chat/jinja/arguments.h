#pragma once
// The arguments of a call, by the names of the parameters.
#include <algorithm>
#include <array>

#include "step2_model/chat/jinja/value.h"

namespace ladder::jinja {

// One pointer per parameter, nullptr where it is not given. Refusal: too many arguments, a name that is no parameter
// or given twice, fewer than `required`.
template <size_t N>
std::array<const Value*, N> bind(const Arguments& given, std::string_view who,
                                 const std::array<std::string_view, N>& names, size_t required = 0) {
  std::array<const Value*, N> bound{};
  if (given.positional.size() > N)
    refuse("{} takes at most {} arguments, found {}", who, N, given.positional.size());
  for (size_t i = 0; i < given.positional.size(); ++i) bound[i] = &given.positional[i];
  for (const auto& [name, value] : given.named) {
    const auto at = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (at == N) refuse("{} has no argument {}", who, name);
    if (bound[at] != nullptr) refuse("{}: the argument {} is given twice", who, name);
    bound[at] = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (bound[i] == nullptr) refuse("{}: the argument {} is missing", who, names[i]);
  return bound;
}

inline void expect_no_arguments(const Arguments& given, std::string_view who) {
  bind<0>(given, who, {});
}

// The argument as that type, or `otherwise` where it is not given. Refusal: another type.
int64_t integer_argument(const Value* value, std::string_view who, int64_t otherwise);
const String& string_argument(const Value* value, std::string_view who);
bool flag_argument(const Value* value, bool otherwise);

}  // namespace ladder::jinja
