#pragma once
#include "step2_model/chat/jinja/value.h"

namespace ladder::jinja {

// item.a.b for the path "a.b", as map, sort and others take it; a part of digits, or an integer, is an index. A part
// that is missing gives undefined, and what is asked of that is refused.
Value path_of(Interpreter& interpreter, const Value& item, const Value& path);

}  // namespace ladder::jinja
