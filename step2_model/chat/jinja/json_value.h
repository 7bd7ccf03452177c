#pragma once
// What a request brings, as values of a template: every text and every bracket of it is marked as from outside.
#include "step2_model/chat/jinja/value.h"
#include "step2_model/json.h"

namespace ladder::jinja {

// Invalid UTF-8 becomes U+FFFD. Refusal: more than 100 lists and dicts within each other, an integer beyond 64 bits.
Value value_of_json(Interpreter& interpreter, const OrderedJson& json);

}  // namespace ladder::jinja
