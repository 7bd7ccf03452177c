#pragma once
// Rendering any template with any variables, which a chat template (step2_model/chat/chat_template.h) does not offer.
#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/json.h"

namespace ladder::testing {

// The text; the variables are from outside. Error: what is refused, with its line.
std::string render_jinja(std::string_view source, const OrderedJson& variables = OrderedJson::object(),
                         const jinja::Limits& limits = {});
// Its bytes, with what is from outside in ⟦ and ⟧.
std::string render_marked(std::string_view source, const OrderedJson& variables = OrderedJson::object());

// The value of an expression, printed; no statement runs.
std::string value_of_jinja(std::string_view expression, const OrderedJson& variables = OrderedJson::object());
std::string marked_value_of_jinja(std::string_view expression,
                                  const OrderedJson& variables = OrderedJson::object());

}  // namespace ladder::testing
