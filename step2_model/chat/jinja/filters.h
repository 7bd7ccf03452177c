#pragma once
// Jinja's filters: {{ subject | name(arguments) }}. Equal to jinja2's without autoescape, and tojson as transformers
// writes it.
#include <string_view>

#include "step2_model/chat/jinja/value.h"

namespace ladder::jinja {

struct FilterEntry {
  std::string_view name;
  // Refusal where the subject or an argument has a type that the filter does not take.
  Value (*apply)(Interpreter&, const Value& subject, const Arguments&);
};

// nullptr where there is none of this name.
const FilterEntry* find_filter(std::string_view name);

// The three tables that it looks in.
const FilterEntry* find_text_filter(std::string_view name);
const FilterEntry* find_list_filter(std::string_view name);
const FilterEntry* find_selection_filter(std::string_view name);

}  // namespace ladder::jinja
